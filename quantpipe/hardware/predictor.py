"""Predict the latency and the energy of each layer from figures that were fitted to measured layers.

A hardware file may hold, per kind of kernel, what one unit of each amount of work takes (`cost.layers`). This module
defines the kinds and the amounts, and adds the prediction up. `conform/layer_times.py` fits the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod

from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import Family, rule_of
from quantpipe.oprules.work import multiply_accumulates
from quantpipe.types import HardwareSpec, Topology

QUANTITIES: Mapping[str, str] = {"latency": "microseconds", "energy": "nanojoules"}
"""What is predicted, and its unit."""
AMOUNTS = ("launch", "macs", "padded", "columns", "taps", "pixels", "reads", "results", "weights")
"""Amounts of work of a layer and sample.

One start; multiply-accumulates; the same with channels and windows padded to blocks of 16; values that a convolution
gathers from its windows; places that its windows read; windows, or rows of a product; activations that are read and
written; weights.
"""
ANY = "any"
"""The kind of layers of whose kind none was measured."""
BLOCK = 16
FAST_BITS = 8


@dataclass(frozen=True)
class LayerWork:
    """Hold the kind of one layer, and its amounts of work by name."""

    kind: str
    amounts: Mapping[str, float]


def layer_works(topology: Topology, graph: Graph, bits: Mapping[str, int]) -> dict[str, LayerWork]:
    """Return the work of each layer of one sample, by node: kernels with what is fused into them, and float nodes."""
    inside = {node for site in topology.sites for node in site.nodes[1:]}.union(topology.fused_into)
    return {node.name: _work(node, topology, graph, bits) for node in graph.nodes if node.name not in inside}


def _work(node: Node, topology: Topology, graph: Graph, bits: Mapping[str, int]) -> LayerWork:
    rule, kernel = rule_of(node), topology.kernel_of.get(node.name)
    weight = kernel.weight if kernel is not None else rule.weight_of(node, graph) if rule is not None else None
    made = (kernel.output,) if kernel is not None else node.outputs
    macs = float(multiply_accumulates(node, graph))
    shape = graph.shapes.get(weight or "", ())
    stem = rule.family.value if rule is not None else "other"
    padded, columns, taps, pixels = macs, 0.0, 0.0, 0.0
    if macs and weight is not None and rule is not None and rule.family is Family.ACCUMULATE:
        stem = _of_weight(shape)
        pixels = macs / max(prod(shape), 1)
        taps = pixels * prod(shape[2:])
        if stem != "depthwise" and macs:
            padded = macs * _in_blocks(shape[0]) * _in_blocks(prod(shape[1:])) * _in_blocks(pixels)
        if stem in ("pointwise", "spatial"):
            columns = macs / max(shape[0], 1)
    used = [t for t in (weight, *(o.tensor for o in kernel.operands)) if t is not None] if kernel is not None else []
    wide = any(bits.get(t, FAST_BITS) > FAST_BITS for t in used)
    width = "float" if kernel is None else "int16" if wide else "int8"
    batch = graph.fixed_batch or 1
    reads = sum(prod(graph.shapes.get(t, ())) for t in node.inputs if t and not graph.is_constant(t)) / batch
    results = sum(prod(graph.shapes.get(t, ())) for t in made if t) / batch
    amounts = {
        "launch": 1.0,
        "macs": macs,
        "padded": padded,
        "columns": columns,
        "taps": taps,
        "pixels": pixels,
        "reads": float(reads),
        "results": float(results),
        "weights": float(prod(shape)) if weight is not None else 0.0,
    }
    return LayerWork(f"{width} {stem}", amounts)


def _in_blocks(count: float) -> float:
    """Return how many times as many there are when a device fills its last block."""
    return ceil(count / BLOCK) * BLOCK / count


def _of_weight(shape: tuple[int, ...]) -> str:
    """Return the kind of a layer with products by the shape of its weight `[out, in / groups, …]`."""
    if len(shape) < 3:
        return "dense"
    if shape[1] == 1 and shape[0] > 1:
        return "depthwise"
    return "pointwise" if prod(shape[2:]) == 1 else "spatial"


def predicted_layer(work: LayerWork, figures: Mapping[str, Mapping[str, float]]) -> float:
    """Return the prediction for one layer by the figures of its kind, else of the same op in 8 bits, else of any."""
    stem = work.kind.partition(" ")[2]
    known = next((figures[k] for k in (work.kind, f"int8 {stem}", f"float {stem}", ANY) if k in figures), {})
    return sum(known.get(name, 0.0) * amount for name, amount in work.amounts.items())


def predicted(quantity: str, topology: Topology, graph: Graph, spec: HardwareSpec, *, bits: Mapping[str, int]) -> float:
    """Return the predicted latency in microseconds, or energy in nanojoules, of one sample."""
    figures = spec.cost.layers[quantity]
    return sum(predicted_layer(work, figures) for work in layer_works(topology, graph, bits).values())


PREDICTED: Mapping[str, str] = {"predicted_latency": "latency", "energy": "energy"}
"""Costs that a hardware file with `cost.layers` has -> the quantity."""
