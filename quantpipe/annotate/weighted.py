"""Nodes that multiply floats by integer weights: they stay in float, and their weight is held in integers."""

from __future__ import annotations

from collections.abc import Mapping

from quantpipe.graph.view import Graph, Node
from quantpipe.hardware.legality import refusal
from quantpipe.oprules import OP_RULES, rule_of
from quantpipe.types import Form, HardwareSpec, Kernel, Operand, OpSignature, Reason, ReasonKind

LEFT = (ReasonKind.DEVICE, ReasonKind.AROUND)
"""Why a node may be in float and still have a weight in integers: nobody asked for it to be in float."""


def weighted(graph: Graph, spec: HardwareSpec, reasons: Mapping[str, Reason]) -> tuple[Kernel, ...]:
    """Return the nodes in float whose weight the device takes in integers.

    A weight that something else reads, too, stays real.

    `reasons`: float node -> why it is in float.
    """
    dynamic = [n for n in graph.nodes if n.name in reasons and reasons[n.name].kind is ReasonKind.DYNAMIC]
    asked = tuple(_real(n, graph) for n in dynamic if rule_of(n) is not None)
    if spec.weights.block is None or not spec.weights.block.are_real:
        return asked
    captured = {t for n in graph.nodes for t in n.captured}
    found = {n.name: k for n in graph.nodes if n.name in reasons and (k := _kernel(n, graph, spec, reasons[n.name]))}

    def alone(kernel: Kernel) -> bool:
        readers = graph.consumers.get(kernel.weight or "", ())
        shared = all(r.name in found and found[r.name].weight == kernel.weight for r, _ in readers)
        return shared and kernel.weight not in captured and kernel.weight not in graph.output_names

    return asked + tuple(k for k in found.values() if alone(k))


def reason_of(spec: HardwareSpec) -> Reason:
    """Return why such a node is in float."""
    block = spec.weights.block
    size = 0 if block is None else block.size
    return Reason(ReasonKind.WEIGHT_ONLY, f"float inputs times integer weights in blocks of {size}, on {spec.name}")


def signatures_of(graph: Graph, spec: HardwareSpec, node: Node) -> tuple[OpSignature, ...]:
    """Return the ways in which a device multiplies floats by the integer weight of a node."""
    rule = rule_of(node)
    if rule is None:
        return ()
    return tuple(s for s in spec.ops.get(node.op, ()) if s.is_weight_only and refusal(s, node, graph, rule) is None)


def _kernel(node: Node, graph: Graph, spec: HardwareSpec, reason: Reason) -> Kernel | None:
    rule = rule_of(node)
    weight = rule.weight_of(node, graph) if rule is not None else None
    if weight is None or reason.kind not in LEFT or not signatures_of(graph, spec, node):
        return None
    return _real(node, graph)


def _real(node: Node, graph: Graph) -> Kernel:
    """Return a node that multiplies floats by an integer weight, as a kernel without stored integers."""
    rule = OP_RULES[node.op]
    weight = rule.weight_of(node, graph)
    (port,) = rule.activations(node, graph)
    operand = Operand(port, node.inputs[port], Form.FLOAT)
    return Kernel(node.name, node.op, (operand,), node.outputs[0], Form.FLOAT, weight=weight)
