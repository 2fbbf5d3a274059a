"""Why a statement about a tensor cannot hold: what the tensor is, where it is not one that is stored in integers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from quantpipe.annotate.constraints import WHERE, Constraint, ConstraintKind
from quantpipe.errors import ConfigError
from quantpipe.graph.view import Graph
from quantpipe.types import Form, Kernel, Reason, ReasonKind


def refuse_unreached(
    graph: Graph,
    kernels: Sequence[Kernel],
    stored: Collection[str],
    reasons: Mapping[str, Reason],
    *,
    constraints: Mapping[str, Constraint],
) -> None:
    """Reject statements about tensors that reach no tensor which is stored in integers.

    `reasons`: float node -> why it is in float. `constraints`: the statements, by tensor. Raises ConfigError for a
    statement that reaches no tensor, with what the first one that it names is.
    """
    weights = {k.weight for k in kernels if k.weight is not None}
    named: dict[str, list[str]] = {}
    for tensor, constraint in constraints.items():
        if constraint.kind is not ConstraintKind.NONE:
            named.setdefault(constraint.pattern, []).append(tensor)
    for pattern, tensors in sorted(named.items()):
        kind = constraints[tensors[0]].kind
        reached = {*stored, *weights} if kind in (ConstraintKind.ANY, ConstraintKind.UNIFORM) else set(stored)
        if reached.isdisjoint(tensors):
            what = _what(graph, kernels, reasons, tensors[0])
            raise ConfigError(f"the constraint of {pattern!r} cannot hold: {tensors[0]} {what}", where=WHERE)


def _what(graph: Graph, kernels: Sequence[Kernel], reasons: Mapping[str, Reason], tensor: str) -> str:
    for kernel in kernels:
        inside = [graph.by_name[name].outputs[0] for name in (kernel.node, *kernel.fused)]
        if tensor == kernel.weight:
            return (
                f"is the weight of {kernel.node}. Ranges of weights follow from their values (threshold.weights); "
                "legal for weights are {kind: uniform, scale, zero_point, dtype} with one scale or a list of them, "
                "{kind: any, bits: N} and none"
            )
        if tensor == kernel.bias:
            return f"is the bias of {kernel.node}, which is stored at the scale of the products that it is added to"
        if tensor in inside and tensor != kernel.output:
            return (
                f"is inside the kernel {kernel.node} with its fused ops; constrain its output {kernel.output} instead"
            )
        if tensor == kernel.output and kernel.form is Form.RAW:
            return f"leaves {kernel.node} as accumulator, and is not stored"
    nodes = [n for n, _ in graph.consumers.get(tensor, ())]
    nodes += [graph.producers[tensor]] if tensor in graph.producers else []
    for node in reversed(nodes):
        if node.name in reasons and reasons[node.name].kind is ReasonKind.DYNAMIC and graph.is_constant(tensor):
            return f"is read by {node.name}, whose integers annotate.dynamic chooses; legal is none"
        if node.name in reasons:
            return f"is real, since {node.name} stays in float: {reasons[node.name]}"
    if graph.is_constant(tensor):
        return "is a constant that no op computes with in integers"
    return "is not stored in integers"
