"""Find the parts of a model that VTA's instructions cannot express, from its shapes alone, before any numbers."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import Family, OpRule, rule_of
from quantpipe.oprules.matrix import TransposedForm
from quantpipe.realize.vta.isa import INPUTS, WEIGHTS
from quantpipe.types import Kernel, Topology

LEFT_TO_HOST = (Family.MOVE, Family.CLAMP)
"""Families that the host can run where VTA has no instructions."""


def unfit(graph: Graph, topology: Topology) -> Iterator[tuple[str, str]]:
    """Yield (node, why) of every kernel for which the form would be rejected."""
    for kernel in topology.kernels:
        node = graph.by_name[kernel.node]
        rule = rule_of(node)
        why = "it is no op of VTA's" if rule is None else _why(graph, kernel, node, rule)
        if why is not None:
            yield kernel.node, why


def _why(graph: Graph, kernel: Kernel, node: Node, rule: OpRule) -> str | None:
    if rule.family is Family.ACCUMULATE:
        if kernel.weight is None:
            return "it multiplies two activations as matrices"
        if isinstance(rule.matrix, TransposedForm):
            return "a transposed convolution reads with gaps"
        return _window(node, graph.shapes[kernel.weight][2:])
    if rule.family is Family.SUM:
        made = graph.shapes[kernel.output]
        constant = any(graph.is_constant(o.tensor) for o in kernel.operands)
        broadcast = any(graph.shapes[o.tensor] != made for o in kernel.operands)
        return "an operand is a constant, or broadcast" if constant or broadcast else None
    if rule.family is Family.AVERAGE:
        return _window(node, node.attr("kernel_shape", list(graph.shapes[kernel.operands[0].tensor][2:])))
    if rule.family is Family.PRODUCT or rule.family in LEFT_TO_HOST:
        return None
    return "it is no sum of products"


def _window(node: Node, taps: object) -> str | None:
    sizes = [int(t) for t in taps]  # type: ignore[attr-defined]
    if len(sizes) > 2:
        return "its window has three axes"
    spans = [(t - 1) * d + 1 for t, d in zip(sizes, node.attr("dilations", [1] * len(sizes)), strict=True)]
    if prod(spans) > INPUTS or prod(sizes) > WEIGHTS:
        return f"its window of {prod(sizes)} elements does not fit the buffers"
    return None
