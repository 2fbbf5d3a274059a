"""Recovered weights of any strategy: each layer rounded on the float model's own input, made once per (tensor, bits).

A search that measures candidates with these weights knows what their bits lose after recovery, and not what they lose
with rounding to the nearest (at few bits, many times as much). The moments are those of the float model, so nothing
depends on the other choices of a candidate, and a tensor's integers serve every candidate that has its bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.graph.view import Graph
from quantpipe.oprules import rule_of
from quantpipe.plan import MOST_BIAS_STEPS, Overrides, Planner
from quantpipe.recover.float_moments import first_users
from quantpipe.recover.layer import LayerOptions, solve
from quantpipe.recover.moments import Moments
from quantpipe.types import Kernel, Schema, Strategy, Topology, WeightTensor

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Made:
    weight: WeightTensor
    shift: Floats
    """What the bias of each output channel gets besides, `[C]`."""


class Variants:
    """The recovered weights and biases of strategies. Solving is deterministic: what was asked before plays no part."""

    def __init__(
        self,
        graph: Graph,
        topology: Topology,
        schema: Schema,
        planner: Planner,
        moments: Mapping[str, Moments],
        options: LayerOptions,
    ) -> None:
        self._graph, self._topology, self._schema, self._planner = graph, topology, schema, planner
        self._moments, self._options = moments, options
        self._users = first_users(topology, graph)
        self._made: dict[tuple[str, int, bytes, bytes], _Made] = {}

    def overrides(self, strategy: Strategy) -> Overrides:
        """For `Planner.plan`: integers and biases that take the place of rounding to the nearest."""
        found = Overrides({}, {})
        for tensor, kernel in self._users.items():
            made = self._of(tensor, kernel, strategy)
            found.weights[tensor] = made.weight
            if kernel.bias is not None:
                bias = self._graph.constant(kernel.bias).astype(np.float64).reshape(-1)
                found.biases[kernel.node] = bias + made.shift
        return found

    def _of(self, tensor: str, kernel: Kernel, strategy: Strategy) -> _Made:
        thresholds = np.asarray(strategy.weights[tensor], np.float64)
        start = self._planner.weight(tensor, strategy.bits[tensor], thresholds)
        free = np.zeros(start.scale.size)
        made = self._solved(kernel, start, thresholds, free)
        floor = self._floor(kernel, strategy, start.axis is not None)
        # A channel whose bias does not fit is rare: only then do the activations' bits matter.
        low = np.broadcast_to(made.weight.scale, floor.shape) < floor
        return self._solved(kernel, start, thresholds, np.where(low, floor, 0.0)) if np.any(low) else made

    def _floor(self, kernel: Kernel, strategy: Strategy, per_channel: bool) -> Floats:
        """The least weight scale at which the bias still fits, per channel or `[1]`."""
        if kernel.bias is None:
            return np.zeros(1)
        group = self._topology.group_of[kernel.operands[0].tensor]
        scale, *_ = intmath.scale_zero_point(
            strategy.ranges[group.key], strategy.bits[group.key], group.dtype, self._schema.activations
        )
        bias = np.abs(self._graph.constant(kernel.bias).astype(np.float64).reshape(-1))
        floor = bias / ((MOST_BIAS_STEPS if per_channel else MOST_BIAS_STEPS * 2**8) * float(scale))
        return floor if per_channel else floor.max(keepdims=True)

    def _solved(self, kernel: Kernel, start: WeightTensor, thresholds: Floats, floor: Floats) -> _Made:
        key = (start.tensor, start.bits, thresholds.tobytes(), floor.tobytes())
        if key not in self._made:
            self._made[key] = self._solve(kernel, start, floor)
        return self._made[key]

    def _solve(self, kernel: Kernel, start: WeightTensor, floor: Floats) -> _Made:
        node = self._graph.by_name[kernel.node]
        rule = rule_of(node)
        assert rule is not None and rule.matrix is not None  # noqa: S101  (chosen so in first_users)
        site, weight = self._topology.weight_of[start.tensor], self._graph.constant(start.tensor)
        matrix = rule.matrix.matrix(node, weight.astype(np.float64))
        shape, per_channel = matrix.shape[:2], site.axis is not None

        def spread(array: NDArray[np.generic]) -> NDArray[np.generic]:
            return np.broadcast_to(array.reshape(-1), (shape[0] * shape[1],)).reshape(shape)

        zero = spread(start.zero_point).astype(np.int64)
        _, _, qmin, qmax = intmath.scales_zero_points([-1.0], [1.0], start.bits, site.dtype, self._schema.weights)
        solved = solve(
            matrix,
            self._moments[start.tensor],
            spread(start.scale).astype(np.float32),
            spread(floor).astype(np.float64),
            start.bits,
            (qmin - zero, qmax - zero),
            self._schema.weights,
            per_channel,
            self._options,
        )
        values = rule.matrix.weight(node, solved.integers + zero[..., np.newaxis], weight.shape)
        scale = solved.scale.reshape(-1) if per_channel else solved.scale.reshape(-1)[0]
        made = WeightTensor(
            start.tensor,
            values.astype(start.values.dtype),
            np.asarray(scale, np.float32),
            start.axis,
            start.dtype,
            start.bits,
            start.zero_point,
        )
        return _Made(made, solved.bias_shift.reshape(-1))
