"""Recovered weights of any strategy: each layer rounded on the float model's own input, made once per (tensor, bits).

A search that measures candidates with these weights knows what their bits lose after recovery, and not what they lose
with rounding to the nearest (at few bits, many times as much). The moments come from the float model, so nothing
depends on the other choices of a candidate, and a tensor's integers serve every candidate that has its bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from quantpipe import intmath
from quantpipe.arrays import Floats
from quantpipe.graph.external_weights import beside
from quantpipe.graph.view import Graph
from quantpipe.plan import Overrides, Planner, pair_limit
from quantpipe.recover.reconstruct.float_moments import first_users
from quantpipe.recover.reconstruct.layer import LayerOptions
from quantpipe.recover.reconstruct.moments import Moments
from quantpipe.recover.reconstruct.prepare import WeightLayer, layer_of
from quantpipe.types import Form, Kernel, Quantizer, Schema, Strategy, Topology, WeightTensor


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
        *,
        moments: Mapping[str, Moments],
        options: LayerOptions,
    ) -> None:
        self._graph, self._topology, self._schema, self._planner = graph, topology, schema, planner
        self._moments, self._options = moments, options
        self._users = first_users(topology, graph)
        self._made: dict[tuple[str, int, int | None, bytes, bytes, int | None], _Made] = {}

    def on(self, topology: Topology) -> Variants:
        """Return the same for another topology whose weights have the same users; what is made is shared."""
        other = copy(self)
        other._topology, other._planner = topology, self._planner.on(topology)
        return other

    def overrides(self, strategy: Strategy) -> Overrides:
        """Return the integers and biases that `Planner.plan` takes in place of rounding to the nearest."""
        found = Overrides({}, {})
        for tensor, kernel in self._users.items():
            layer = layer_of(self._graph, self._topology, kernel)
            assert layer is not None  # noqa: S101  (chosen so in first_users)
            made = self._of(tensor, kernel, layer, strategy)
            found.weights[tensor] = made.weight
            if layer.bias is not None and kernel.form is not Form.FLOAT:
                found.biases[kernel.node] = layer.bias + made.shift
        return found

    def _of(self, tensor: str, kernel: Kernel, layer: WeightLayer, strategy: Strategy) -> _Made:
        thresholds = np.asarray(strategy.weights[tensor], np.float64)
        start = self._planner.weight(tensor, strategy.bits[tensor], thresholds)
        if kernel.form is Form.FLOAT:  # its inputs are real, and its bias stays as it is
            return self._solved(layer, start, thresholds, np.zeros(layer.channels), largest_pair=None)
        operand = kernel.operands[0].tensor
        group, bits = self._topology.group_of[operand], strategy.bits[self._topology.group_of[operand].key]
        scale, *grid = intmath.scale_zero_point(strategy.ranges[group.key], bits, group.dtype, self._schema.activations)
        zero, qmin, qmax = grid
        data = Quantizer(operand, np.asarray(scale, np.float32), zero, group.dtype, bits, qmin, qmax)
        limit = pair_limit(self._planner.spec, self._graph, self._topology, kernel=kernel, weight=start, data=data)
        solve = partial(self._solved, layer, start, thresholds, largest_pair=limit)
        made = solve(np.zeros(layer.channels))
        floor = layer.floor(float(scale), None if layer.bias is None else layer.bias + made.shift)
        # A channel whose bias does not fit is rare: only then do the activations' bits matter.
        low = np.broadcast_to(made.weight.scale, floor.shape) < floor
        return solve(np.where(low, floor, 0.0)) if np.any(low) else made

    def _solved(
        self, layer: WeightLayer, start: WeightTensor, thresholds: Floats, floor: Floats, *, largest_pair: int | None
    ) -> _Made:
        size = None if start.block is None else start.block.size
        key = (start.tensor, start.bits, size, thresholds.tobytes(), floor.tobytes(), largest_pair)
        if key not in self._made:
            made, solved = layer.solved(
                start,
                self._moments[start.tensor],
                floor,
                self._schema,
                options=self._options,
                largest_pair=largest_pair,
            )
            made = replace(made, values=beside(made.values, start.values))
            self._made[key] = _Made(made, solved.bias_shift.reshape(-1))
        return self._made[key]
