"""Bound accumulators and biases from the weights alone, before any range is known.

The worst case of an accumulator needs no calibration: integer weights follow from the weights, and stored activations
can be no larger than their type. A bias in accumulator steps does need the input's scale, so the result is the minimum
input range at which the bias fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.graph.view import Graph
from quantpipe.hardware.storage import widest_accumulator
from quantpipe.oprules import Family, rule_of
from quantpipe.types import Granularity, HardwareSpec, Kernel, Schema, Symmetry, Topology


@dataclass(frozen=True)
class Accumulation:
    """Hold the sums of one kernel.

    `worst`: largest |Σ (q_x - z)·q_w| that its weights allow, bias not counted; `limit`: what the accumulator holds.
    `bias_threshold`: the input threshold T (real units) from which its bias fits (0: none).
    """

    node: str
    worst: int
    limit: int
    bias_threshold: float

    @property
    def overflows(self) -> bool:
        """Return whether some input can make a sum beyond the accumulator."""
        return self.worst > self.limit


def accumulations(graph: Graph, topology: Topology, spec: HardwareSpec, schema: Schema) -> tuple[Accumulation, ...]:
    """Return the sums of every kernel with constant weights, in graph order."""
    found = []
    for kernel in topology.kernels:
        if kernel.weight is None:
            found += _of_activations(graph, topology, spec, kernel, schema=schema)
            continue
        integers, scale = _integers(graph, topology, schema, kernel)
        group = topology.group_of[kernel.operands[0].tensor]
        span = _span(min(group.max_bits, group.dtype.bits), schema)
        worst = int(np.abs(integers).sum(axis=-1, dtype=np.int64).max(initial=0)) * span
        limit = widest_accumulator(topology, spec, kernel.node).qmax
        found.append(Accumulation(kernel.node, worst, limit, _bias_threshold(graph, spec, kernel, scale, span=span)))
    return tuple(found)


def _of_activations(
    graph: Graph, topology: Topology, spec: HardwareSpec, kernel: Kernel, *, schema: Schema
) -> list[Accumulation]:
    """Return the sums of a product of two activations, over the last axis of the first."""
    rule = rule_of(graph.by_name[kernel.node])
    if rule is None or rule.family is not Family.ACCUMULATE:
        return []
    groups = [topology.group_of[o.tensor] for o in kernel.operands if o.tensor in topology.group_of]
    spans = [_span(min(g.max_bits, g.dtype.bits), schema) for g in groups]
    worst = graph.shapes[kernel.operands[0].tensor][-1] * math.prod(spans)
    return [Accumulation(kernel.node, worst, widest_accumulator(topology, spec, kernel.node).qmax, 0.0)]


def _integers(
    graph: Graph, topology: Topology, schema: Schema, kernel: Kernel
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return (integer weights `[outputs, K]`, scale per output) at the highest bits, with ranges by the extremes."""
    site = topology.weight_of[kernel.weight or ""]
    node = graph.by_name[kernel.node]
    rule = rule_of(node)
    values = graph.constant(site.tensor).astype(np.float64)
    if rule is not None and rule.matrix is not None:
        matrix = rule.matrix.matrix(node, values)
        rows = matrix.reshape(-1, matrix.shape[-1])
    else:
        rows = np.moveaxis(values, site.channel_axis, 0).reshape(values.shape[site.channel_axis], -1)
    low, high = rows.min(axis=1, initial=0.0), rows.max(axis=1, initial=0.0)
    if schema.weights.granularity is Granularity.PER_TENSOR:
        low, high = np.full_like(low, low.min(initial=0.0)), np.full_like(high, high.max(initial=0.0))
    scale, zero, qmin, qmax = intmath.scales_zero_points(low, high, site.max_bits, site.dtype, schema=schema.weights)
    steps = scale.astype(np.float64)
    stored = np.clip(intmath.round_real(rows / steps[:, None]) + zero[:, None], qmin, qmax)
    return stored.astype(np.int64) - zero[:, None], steps


def _span(bits: int, schema: Schema) -> int:
    """Return the maximum |q - z| of a stored activation."""
    if schema.activations.symmetry is Symmetry.SYMMETRIC:
        return 1 << (bits - 1)
    return (1 << bits) - 1


def _bias_threshold(
    graph: Graph, spec: HardwareSpec, kernel: Kernel, scale: NDArray[np.float64], *, span: int
) -> float:
    if kernel.bias is None or not graph.is_constant(kernel.bias):
        return 0.0
    bias = np.abs(graph.constant(kernel.bias).astype(np.float64).reshape(-1))
    if bias.size != scale.size:
        return 0.0
    return float((bias / (scale * spec.bias.qmax)).max(initial=0.0)) * span
