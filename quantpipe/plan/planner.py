"""The planner: builds the plan of one strategy after the other for one topology."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import suppress
from copy import copy
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir
from cachetools import LRUCache
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.errors import HardwareError
from quantpipe.graph.external_weights import file_array, place_of, row_blocks
from quantpipe.graph.view import Graph
from quantpipe.hardware.storage import Types, narrowest, storage_types, weight_only_types
from quantpipe.oprules import rule_of
from quantpipe.oprules.lookup import Functions
from quantpipe.plan import weight_blocks as blocks
from quantpipe.plan.bounds import reach
from quantpipe.plan.builder import PlanBuilder
from quantpipe.plan.families import plan_kernel
from quantpipe.plan.given_blocks import kept_weight
from quantpipe.plan.overrides import NO_OVERRIDES, Overrides
from quantpipe.plan.requantize import requantize
from quantpipe.plan.table_numbers import given_table, row_table, tied_table
from quantpipe.plan.weights import (
    choose_cell_weight,
    choose_dynamic_weight,
    choose_loop_weight,
    choose_real_weight,
    choose_weight,
    ends,
)
from quantpipe.types import (
    BlockGrid,
    Blocks,
    DType,
    Form,
    HardwareSpec,
    Isa,
    Kernel,
    LoopProduct,
    LoopSite,
    Quantizer,
    QuantPlan,
    Range,
    RowTable,
    Schema,
    Strategy,
    TableSite,
    Topology,
    WeightSite,
    WeightTensor,
)

Scale = tuple[np.float32, int, int, int]
"""A scale, its zero point, and the smallest and largest integer."""

BlockScales = tuple[ir.TensorProtocol, NDArray[np.float32], BlockGrid]
"""The float scales of a weight's blocks and their grid, after the constant that they were searched for."""

SCALES_MB = 256
"""Memory for searched scales of blocks; with blocks of 32 they are those of a model of 1.6 GB."""

_SEARCHED: WeakKeyDictionary[ir.Model, LRUCache[Hashable, BlockScales]] = WeakKeyDictionary()
"""Scales of blocks by model: the search, recovery and the plan of the result have planners of their own."""

_LOCK = Lock()

HALF_PAIR = 64
"""With no weight beyond it no pair of uint8 x int8 products leaves int16: 255 · (64 + 64) < 2^15."""


def loop_products(builder: PlanBuilder, site: LoopSite) -> tuple[LoopProduct, ...]:
    """Return the numbers of a loop's products, in the order of its body.

    Raises HardwareError where a sum may leave int32.
    """
    data, found = builder.quantizers[site.state], []
    for node, tensor in site.products:
        weight = builder.weights[tensor]
        bound = int(np.max(reach(builder.topology, weight, data), initial=0))
        if bound > DType.INT32.qmax:
            raise HardwareError(
                f"the sums of {node} may reach {bound}, beyond int32; give its state or its weight fewer bits",
                stage="plan",
                where=site.node,
            )
        scale = np.asarray(np.float64(data.scale) * weight.scale.astype(np.float64), np.float32)
        found.append(LoopProduct(node, tensor, scale, bound))
    return tuple(found)


class Planner:
    """Builds plans for one topology.

    Integer weights are made once per (tensor, bits, thresholds), scales of activations once per (range, bits, type).
    """

    def __init__(self, graph: Graph, topology: Topology, spec: HardwareSpec, schema: Schema) -> None:
        self._graph, self._topology, self._spec, self._schema = graph, topology, spec, schema
        self._weights: dict[tuple[str, int, int | None, DType, int | None, bytes], WeightTensor] = {}
        self._tables: dict[tuple[str, int], RowTable] = {}
        self._tied: dict[str, tuple[WeightTensor, RowTable]] = {}
        self._scales: dict[tuple[Range, int, DType], Scale] = {}
        self._types = storage_types(topology)
        self.functions = Functions(graph)

    @property
    def spec(self) -> HardwareSpec:
        """Return the device that plans are for."""
        return self._spec

    def release(self) -> None:
        """Forget the integer weights that were made."""
        self._weights.clear()

    def on(self, topology: Topology) -> Planner:
        """Return a planner for another topology of the same graph; integer weights are shared."""
        other = copy(self)
        other._topology, other._types = topology, storage_types(topology)
        return other

    def plan(
        self, strategy: Strategy, overrides: Overrides = NO_OVERRIDES, kernels: tuple[Kernel, ...] | None = None
    ) -> QuantPlan:
        """Return all numbers of a strategy.

        `kernels`: plan these kernels only, with those whose accumulators they read; None: all. Raises HardwareError
        where the device cannot express one of the numbers.
        """
        topology = self._topology if kernels is None else self._topology.restricted(kernels)
        strategy = overrides.applied(strategy)
        types = self._types.at(strategy.bits)

        def weight(tensor: str, bits: int, thresholds: NDArray[np.float64]) -> WeightTensor:
            return self.weight(tensor, bits, thresholds, types[tensor])

        builder = PlanBuilder(
            self._graph, topology, self._spec, self._schema, strategy, overrides, weight, self.functions
        )
        self._choose_quantizers(builder, types)
        for kernel in topology.kernels:
            if kernel.weight is not None:
                choose_weight(builder, kernel)
        for kernel in topology.weighted:
            if kernel.node in topology.dynamic:
                choose_dynamic_weight(builder, kernel)
            else:
                choose_real_weight(builder, kernel.weight or "")
        for site in topology.loops:
            for _, tensor in site.products:
                choose_loop_weight(builder, site, tensor)
        for cell in topology.cells:
            for tensor in cell.weights:
                choose_cell_weight(builder, tensor)
        for kernel in topology.kernels:
            rule = rule_of(self._graph.by_name[kernel.node])
            if rule is not None:
                builder.kernels[kernel.node] = plan_kernel(builder, kernel, rule)
        narrowings = {
            k.output: requantize(builder, k, builder.raw[k.output], builder.quantizers[k.output], clamp=False)
            for k in topology.kernels
            if k.form is Form.RAW and k.output in builder.quantizers
        }
        return QuantPlan(
            narrowings=narrowings,
            constants={t: _constant(builder, t) for t in topology.constants},
            loops={site.node: loop_products(builder, site) for site in topology.loops},
            tables={t.tensor: self._table(t, strategy.bits[t.tensor], builder.weights) for t in topology.tables},
            quantizers=builder.quantizers,
            weights=builder.weights,
            kernels=builder.kernels,
            raw_scales=builder.raw,
            rescales=tuple(builder.rescales),
            raised=tuple(builder.raised),
        )

    def weight(
        self, tensor: str, bits: int, thresholds: NDArray[np.float64], dtype: DType | None = None
    ) -> WeightTensor:
        """Return the integer weights of one constant: q = clamp(rint(w / s) + z).

        `thresholds`: thresholds `()` or `[C]`, or ranges `[C, 2]`, in real units. `dtype`: what they are stored in
        (None: the type of the topology); the numbers do not depend on it.
        """
        site = self._topology.weight_of[tensor]
        dtype = dtype or site.dtype
        size = None if site.block is None else site.block.size
        key = (tensor, bits, site.axis, dtype, size, np.asarray(thresholds, np.float64).tobytes())
        if key not in self._weights and site.block is not None:
            self._weights[key] = self._in_blocks(site, site.block, bits, dtype, limits=ends(thresholds))
        if key not in self._weights:
            low, high = ends(thresholds)
            scale, zero, qmin, qmax = intmath.scales_zero_points(low, high, bits, dtype, schema=self._schema.weights)
            if site.axis is None:
                scale, zero = scale.reshape(()), zero.reshape(())
            values = self._integers(tensor, scale, zero, (qmin, qmax), dtype=dtype)
            self._weights[key] = WeightTensor(tensor, values, scale, site.axis, dtype, bits, zero)
        return self._weights[key]

    def _in_blocks(
        self,
        site: WeightSite,
        block: Blocks,
        bits: int,
        dtype: DType,
        *,
        limits: tuple[NDArray[np.float64], NDArray[np.float64]],
    ) -> WeightTensor:
        weight = self._graph.constant(site.tensor)
        rows = blocks.rows_of(weight.astype(np.float32, copy=False), site.channel_axis)
        if block.are_real:
            types = weight_only_types(self._spec, self._graph.by_name[site.nodes[0]].op)
            dtype = narrowest(types, bits)
            given = self._graph.imported.kept_weights.get(site.tensor) if self._graph.imported is not None else None
            if site.frozen and given is not None:
                kept = kept_weight(given, site, dtype, self._schema.weights)
                if kept is not None:
                    return kept
            real, grid = self._block_scales(site, block, bits, dtype, rows=rows, limits=limits)
            integers = blocks.integers(rows, real, grid, dtype.numpy)
            codes = blocks.as_weight(integers, weight.shape, site.channel_axis)
            return WeightTensor(site.tensor, codes, real, site.axis, dtype, bits, block=grid)
        widest = dtype.qmax if self._spec.isa is not Isa.ANY or dtype is not DType.INT8 else HALF_PAIR
        made, scale, grid = blocks.in_blocks(
            rows, limits, bits, widest=widest, blocks=block, schema=self._schema.weights
        )
        values = blocks.as_weight(made, weight.shape, site.channel_axis).astype(dtype.numpy)
        scale = scale.reshape(()) if site.axis is None else scale
        return WeightTensor(site.tensor, values, scale, site.axis, dtype, bits, block=grid)

    def _block_scales(
        self,
        site: WeightSite,
        block: Blocks,
        bits: int,
        dtype: DType,
        *,
        rows: NDArray[Any],
        limits: tuple[NDArray[np.float64], NDArray[np.float64]],
    ) -> tuple[NDArray[np.float32], BlockGrid]:
        """Return the float scales of a weight's blocks, searched once for a constant of the model."""
        schema, constant = self._schema.weights, self._graph.constant_tensor(site.tensor)
        ranges = tuple(end.tobytes() for end in limits)
        key = (site.tensor, site.channel_axis, block.size, bits, dtype, schema, ranges)
        with _LOCK:
            known = _SEARCHED.setdefault(self._graph.model, LRUCache(SCALES_MB << 20, getsizeof=_bytes))
            found = known.get(key)
        if found is None or found[0] is not constant:
            found = (constant, *blocks.with_scales(rows, limits, bits, dtype, size=block.size, schema=schema))
            with _LOCK, suppress(ValueError):  # too large to be kept
                known[key] = found
        return found[1:]

    def _table(self, site: TableSite, bits: int, weights: Mapping[str, WeightTensor]) -> RowTable:
        """Return the integers of a table, made once per (tensor, bits) and shared; a tied table has its weight's."""
        tensor = site.tensor
        if (weight := weights.get(site.weight or "")) is not None:
            held = self._tied.get(tensor)
            if held is None or held[0] is not weight:
                held = self._tied[tensor] = (weight, tied_table(tensor, weight))
            return held[1]
        found = self._tables.get((tensor, bits))
        if found is None:
            if self._spec.tables is None:
                raise HardwareError("the device stores no tables in integers", stage="plan", where=tensor)
            imported = self._graph.imported
            given = imported.kept_weights.get(tensor) if imported is not None else None
            kept = given_table(given, self._spec.tables) if given is not None else None
            outside = place_of(self._graph.constant_tensor(tensor)) is not None
            made = self._graph.constant(tensor)
            found = kept or row_table(tensor, made, bits, self._spec.tables, outside=outside)
            self._tables[tensor, bits] = found
        return found

    def _integers(
        self, tensor: str, scale: NDArray[np.float32], zero: NDArray[np.int64], bounds: tuple[int, int], *, dtype: DType
    ) -> NDArray[Any]:
        """Integers of a weight; for one that stays in its file they go to a file, too, a few rows at a time."""
        qmin, qmax = bounds
        site, weight = self._topology.weight_of[tensor], self._graph.constant(tensor)
        if place_of(self._graph.constant_tensor(tensor)) is None:
            return intmath.quantize(weight, scale, zero, qmin=qmin, qmax=qmax, dtype=dtype, axis=site.axis)
        values = file_array(weight.shape, dtype.numpy)
        for rows in row_blocks(weight):
            own, offset = (scale[rows], zero[rows]) if site.axis == 0 else (scale, zero)
            values[rows] = intmath.quantize(
                weight[rows], own, offset, qmin=qmin, qmax=qmax, dtype=dtype, axis=site.axis
            )
        return values

    def _choose_quantizers(self, builder: PlanBuilder, types: Types) -> None:
        """Give every tensor its quantizer: a walk of recovery plans all of them once per layer."""
        for group in builder.topology.groups:
            bits, found = builder.strategy.bits[group.key], builder.strategy.ranges[group.key]
            key = (found, bits, group.dtype)
            if key not in self._scales:
                self._scales[key] = intmath.scale_zero_point(*key, builder.schema.activations)
            scale, zero, qmin, qmax = self._scales[key]
            for tensor in group.tensors:
                builder.quantizers[tensor] = Quantizer(
                    tensor, np.asarray(scale, np.float32), zero, types[tensor], bits, qmin, qmax
                )


def _constant(builder: PlanBuilder, tensor: str) -> NDArray[Any]:
    q = builder.quantizers[tensor]
    return intmath.quantize(
        builder.graph.constant(tensor), q.scale, q.zero_point, qmin=q.qmin, qmax=q.qmax, dtype=q.dtype
    )


def _bytes(searched: BlockScales) -> int:
    """Return the bytes of the scales and zero points of a weight's blocks."""
    _, scale, grid = searched
    return int(scale.nbytes + grid.zero_point.nbytes + grid.multiplier.nbytes)
