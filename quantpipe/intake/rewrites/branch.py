"""An If whose condition is constant is the branch that it takes."""

from __future__ import annotations

import onnx_ir as ir

from quantpipe.graph.edit import constant, is_op, take_place


def inline_known_branch(graph: ir.Graph, node: ir.Node) -> None:
    """Put the nodes of the branch where the If stood; names that are taken get the If's name in front."""
    condition = constant(node.inputs[0]) if is_op(node, "If") else None
    if condition is None:
        return
    body = node.attributes["then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"].value
    names = {v.name for n in graph for v in n.outputs} | set(graph.initializers) | {v.name for v in graph.inputs}
    for value in list(body.initializers.values()):
        body.initializers.pop(value.name)
        if value.name in names:
            value.name = f"{node.name}/{value.name}"
        graph.register_initializer(value)
    results = list(body.outputs)
    body.outputs.clear()
    for inner in list(body):
        body.remove(inner)
        for value in inner.outputs:
            if value.name in names:
                value.name = f"{node.name}/{value.name}"
        inner.name = f"{node.name}/{inner.name or inner.op_type}"
        graph.insert_before(node, inner)
    for old, new in zip(node.outputs, results, strict=True):
        if new.producer() is None or new in graph.inputs:
            identity = ir.Node("", "Identity", inputs=[new], num_outputs=1, name=f"{node.name}/pass")
            graph.insert_before(node, identity)
            new = identity.outputs[0]
        take_place(old, new)
    graph.remove(node, safe=True)
