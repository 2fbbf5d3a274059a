"""A layer of the network as the algebra of recovery wants it, and its solution as a plan wants it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from quantpipe import intmath
from quantpipe.arrays import Array, Floats
from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import rule_of
from quantpipe.oprules.matrix import MatrixForm
from quantpipe.plan import MOST_BIAS_STEPS, kernel_order
from quantpipe.recover.reconstruct.block_solver import BlockLayout, solve_blocks
from quantpipe.recover.reconstruct.gptq import PairBound
from quantpipe.recover.reconstruct.layer import LayerOptions, Solved, WeightGrid, solve
from quantpipe.recover.reconstruct.moments import Moments
from quantpipe.types import Form, Kernel, Schema, Topology, WeightSite, WeightTensor


@dataclass(frozen=True, eq=False)
class WeightLayer:
    """Describe a layer whose weight is to be found.

    `weight` is in the model's own form; `bias` `[C]` is in real units, or None without a bias; `channels` is C;
    `takes_bias`: whether its op could have one.
    """

    node: Node
    form: MatrixForm
    site: WeightSite
    weight: Array
    bias: Floats | None
    channels: int
    takes_bias: bool

    @cached_property
    def matrix(self) -> Floats:
        """Return `[G, O, K]`."""
        return np.asarray(self.form.matrix(self.node, self.weight.astype(np.float64)))

    @property
    def per_channel(self) -> bool:
        """Return whether each output channel has a scale of its own."""
        return self.site.axis is not None

    def floor(self, input_scale: float, bias: Floats | None) -> Floats:
        """Return the smallest weight scale per output channel at which a bias still fits.

        `bias`: the bias `[C]` in real units, or None. Returns the scales `[C]`; all are equal where the tensor has one
        scale.
        """
        if bias is None:
            return np.zeros(self.channels)
        steps = MOST_BIAS_STEPS if self.per_channel else MOST_BIAS_STEPS * 2**8
        floor = np.abs(bias) / (steps * input_scale)
        return floor if self.per_channel else np.full(self.channels, floor.max())

    def pair_bound(self, most: int) -> PairBound | None:
        """Return what limits two weights together in the order of the kernel; None where that is not known."""
        places = np.arange(self.weight.size).reshape(self.weight.shape)
        ordered = kernel_order(places, self.site.channel_axis)
        if ordered is None:
            return None
        columns = self.form.matrix(self.node, places)[0, 0].astype(np.int64)
        wanted = ordered[int(np.flatnonzero(ordered.reshape(len(ordered), -1)[:, 0] == columns.min())[0])].reshape(-1)
        by_place = np.argsort(columns, kind="stable")
        return PairBound(by_place[np.searchsorted(columns, wanted, sorter=by_place)], most)

    def solved(
        self,
        before: WeightTensor,
        moments: Moments,
        floor: Floats,
        schema: Schema,
        *,
        options: LayerOptions,
        largest_pair: int | None = None,
    ) -> tuple[WeightTensor, Solved]:
        """Return the weight with other integers and scale in place of the ones in `before`, and the whole solution.

        `floor`: minimum scales, `[C]`. `largest_pair`: the largest magnitude of two weights of a pair together, where
        there is a limit.
        """
        options = replace(
            options,
            correct_bias=options.correct_bias and self.takes_bias,
            scale_search=options.scale_search and self.site.fixed is None,
        )
        if before.block is not None:
            return self._in_blocks(before, moments, floor, schema, options=options)
        groups, outs, _ = self.matrix.shape

        def spread(array: Array) -> Array:
            return np.broadcast_to(array.reshape(-1), (groups * outs,)).reshape(groups, outs)

        zero = spread(before.zero_point).astype(np.int64)
        _, _, qmin, qmax = intmath.scales_zero_points(
            [-1.0], [1.0], before.bits, self.site.dtype, schema=schema.weights
        )
        bits, bounds, pairs = before.bits, (qmin - zero, qmax - zero), None
        if largest_pair is not None and (pairs := self.pair_bound(largest_pair)) is None:
            half = largest_pair // 2  # any two weights may be a pair
            bits, bounds = before.bits - 1, (np.full(zero.shape, -half), np.full(zero.shape, half))
        found = solve(
            self.matrix,
            moments,
            spread(before.scale).astype(np.float32),
            spread(floor),
            grid=WeightGrid(bits, bounds, schema.weights, self.per_channel, pairs),
            options=options,
        )
        values = self.form.weight(self.node, found.integers + zero[..., np.newaxis], self.weight.shape)
        scale = found.scale.reshape(-1) if self.per_channel else found.scale.reshape(-1)[0]
        made = replace(before, values=values.astype(before.values.dtype), scale=np.asarray(scale, np.float32))
        return made, found

    def _in_blocks(
        self, before: WeightTensor, moments: Moments, floor: Floats, schema: Schema, *, options: LayerOptions
    ) -> tuple[WeightTensor, Solved]:
        shape = self.weight.shape
        layout = BlockLayout(
            shape,
            self.site.channel_axis,
            lambda weight: self.form.matrix(self.node, weight),
            lambda matrix: self.form.weight(self.node, matrix, shape),
        )
        found, scale, grid = solve_blocks(
            self.matrix, moments, before, floor, schema=schema.weights, options=options, layout=layout
        )
        values = layout.weight(found.integers).astype(before.values.dtype)
        return replace(before, values=values, scale=scale, block=grid), found


def layer_of(graph: Graph, topology: Topology, kernel: Kernel) -> WeightLayer | None:
    """Return the layer of a kernel; None without a weight, for no matrix product, and for integers that are given."""
    node = graph.by_name[kernel.node]
    rule = rule_of(node)
    if kernel.weight is None or rule is None or rule.matrix is None:
        return None
    site = topology.weight_of[kernel.weight]
    if site.frozen:
        return None
    bias = None if kernel.bias is None else graph.constant(kernel.bias).astype(np.float64).reshape(-1)
    channels = graph.shapes[kernel.weight][site.channel_axis]
    takes_bias = rule.bias is not None and kernel.form is not Form.FLOAT  # of a node in float it stays as it is
    return WeightLayer(node, rule.matrix, site, graph.constant(kernel.weight), bias, channels, takes_bias)
