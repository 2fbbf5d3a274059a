"""Where training starts: a problem with a strategy, and each weight as its plan has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.arrays import along
from quantpipe.graph.view import Graph
from quantpipe.intake.rewrites.batch_norms import BatchNorm
from quantpipe.plan import Overrides, Problem
from quantpipe.plan.saturating_pairs import data_of, pair_limit
from quantpipe.plan.weight_blocks import real_weight
from quantpipe.train.train_options import TrainOptions
from quantpipe.train.weight_parameters import WeightStart
from quantpipe.types import QuantPlan, Range, ScaleGroup, Strategy, WeightSite, WeightTensor


@dataclass(frozen=True, eq=False)
class TrainedState:
    """Hold what training starts from: a problem, a strategy with its overrides, and its plan."""

    problem: Problem
    strategy: Strategy
    overrides: Overrides
    plan: QuantPlan
    norms: Mapping[str, BatchNorm] = field(default_factory=dict)
    """Result of a convolution -> the BatchNormalization that the clean-up folded into it."""

    @property
    def graph(self) -> Graph:
        """Return the float graph."""
        return self.problem.graph

    @property
    def applied(self) -> Strategy:
        """Return the strategy with the ranges of the overrides."""
        return self.overrides.applied(self.strategy)


def weight_start(state: TrainedState, site: WeightSite, stored: WeightTensor) -> WeightStart:
    """Return where the weight of a site starts: the plan's integers in the site's own type, and what bounds them."""
    schema = state.problem.schema.weights
    qmin, qmax = intmath.integer_bounds(stored.bits, site.dtype, schema, positive=False)
    return WeightStart(
        state.graph.constant(site.tensor).astype(np.float32),
        stored.centred().astype(np.int64),
        stored.scale,
        site.axis,
        site.channel_axis,
        stored.zero_point,
        qmin,
        qmax,
        schema.power_of_two,
        _pair_limit(state, site, stored),
    )


def start_range(options: TrainOptions, group: ScaleGroup, found: Range) -> Range:
    """Return where a range starts: DoReFa clips activations to [0, 1]."""
    if options.activations != "dorefa" or group.fixed is not None or found.threshold == 0:
        return found
    return Range(-1.0 if found.low < 0 else 0.0, 1.0)


def _pair_limit(state: TrainedState, site: WeightSite, stored: WeightTensor) -> int | None:
    """Return the largest magnitude of two neighbours along K, where the device has such a limit."""
    problem, limits = state.problem, list[int | None]()
    for node in site.nodes:
        kernel = problem.topology.kernel_of.get(node) or problem.topology.weighted_of.get(node)
        data = None if kernel is None else data_of(kernel, problem.topology, state.plan)
        if kernel is not None and data is not None:
            limits.append(
                pair_limit(problem.spec, problem.graph, problem.topology, kernel=kernel, weight=stored, data=data)
            )
    return min((limit for limit in limits if limit is not None), default=None)


def real_values(stored: WeightTensor, site: WeightSite) -> NDArray[np.float32]:
    """Return the real values of a weight that is not learned."""
    if stored.has_real_blocks:
        return real_weight(stored, site.channel_axis)
    scale = along(stored.scale.astype(np.float64), stored.axis or 0, stored.values.ndim)
    return np.asarray(stored.centred() * scale, np.float32)
