"""The rows of ops from plug-in packages, made from what the packages declare.

Files of this feature, both `plugin_op.py`: `oprules` (rows of ops), `evaluate` (compares kernels). `intake/patterns.py`
joins patterns.
"""

from __future__ import annotations

from functools import lru_cache, partial
from math import prod

from quantpipe import extend
from quantpipe.extend import DeviceOp, NodeFacts
from quantpipe.graph.view import Graph, Node
from quantpipe.oprules.rule import Family, OpRule


def plugged_rule(name: str) -> OpRule | None:
    """Return the row of an installed op by its qualified name; None for an unknown name."""
    op = extend.op_of(name)
    return None if op is None else _rule(op, name)


def facts_of(op: DeviceOp, node: Node, graph: Graph) -> NodeFacts:
    """Return the facts of a node for a plug-in op."""
    named = dict(zip(op.inputs, node.inputs, strict=False))
    return NodeFacts(
        node.name,
        {name: node.attr(name) for name in node.attributes},
        {name: tuple(graph.shapes[t]) for name, t in named.items() if t in graph.shapes},
        {name: graph.constant(t) for name, t in named.items() if name in op.constants and graph.is_constant(t)},
    )


@lru_cache(maxsize=256)
def _rule(op: DeviceOp, name: str) -> OpRule:
    return OpRule(
        Family.DEVICE,
        data=op.data,
        weight=None if op.weight is None else op.inputs.index(op.weight),
        refuse=partial(_refuses, op, name),
        macs=partial(_macs, op, name),
        channel_axis=partial(_axis, op),
        fixed=op.fixed,
        tied=tuple(op.inputs.index(name) for name in op.same_scale),
    )


def _axis(op: DeviceOp, node: Node, graph: Graph) -> int:
    return op.channel_axis


def _macs(op: DeviceOp, name: str, node: Node, graph: Graph) -> int:
    return int(extend.called(name, "macs", op.macs, facts_of(op, node, graph)))


def _refuses(op: DeviceOp, name: str, node: Node, graph: Graph) -> str | None:
    """Return a constant that is computed at run time, an absent activation, or the package's own reason."""
    for wanted, tensor in zip(op.inputs, node.inputs, strict=False):
        if tensor and (wanted == op.weight or wanted in op.constants) and not graph.is_constant(tensor):
            return f"its {wanted} is computed at run time, not constant"
    needed = [*(op.inputs[p] for p in op.data), *([op.weight] if op.weight is not None else [])]
    given = {name for name, tensor in zip(op.inputs, node.inputs, strict=False) if tensor}
    if absent := [name for name in needed if name not in given]:
        return f"it lacks its input {absent[0]}"
    if not prod(graph.shapes.get(node.outputs[0], (1,))):
        return "its result is empty"
    said: str | None = extend.called(name, "refuse", op.refuse, facts_of(op, node, graph))
    return said
