"""Write a float loop (Scan) whose body multiplies a state by integer weights.

The body is the float model's; in it, each product of the state reads the state's stored integers. Constants stay
outside of the body, which reads them by name.

Files of this feature, all `recurrent_loop.py`: `oprules` (finds them), `types`, `annotate` (decides), `lowering`
(writes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import onnx_ir as ir
from onnx_ir.convenience import convert_attributes

from quantpipe.graph.view import Graph, Node
from quantpipe.lowering.context import Context
from quantpipe.lowering.loop_writers import CarriedState, StepBody
from quantpipe.oprules.recurrent_loop import body_of, made_of, name_of
from quantpipe.types import Form


def write_loop(context: Context, node: Node) -> Sequence[ir.Value]:
    """Write a loop with its products in integers; return its float outputs under their own names."""
    site, own = context.topology.loop_of[node.name], body_of(node)
    assert own is not None  # noqa: S101  (annotate takes loops alone)
    weights = {weight for _, weight in site.products}
    for tensor in node.captured:
        if tensor not in weights:
            context.get(tensor, Form.FLOAT)  # the body reads it by name
    body = own.clone(allow_outer_scope_values=True)
    by_name = {name_of(inner): inner for inner in body}
    for product in context.plan.loops[node.name]:
        inner = by_name[product.node]
        step = StepBody(body, inner, context.plan.quantizers[site.state], product)
        made, old = context.dialect.multiply_state(context, step), inner.outputs[0]
        old.replace_all_uses_with(made, replace_graph_outputs=True)
        body.remove(inner, safe=True)
    for tensor in site.carried:
        _store(context, body, made_of(body.outputs[node.outputs.index(tensor)]), tensor=tensor)
    whole = replace(node, attributes={**node.attributes, "body": ir.AttrGraph("body", body)})
    return context.builder.copy(whole, _given(context, node, own))


def _store(context: Context, body: ir.Graph, made: ir.Value | None, *, tensor: str) -> None:
    """Let all readers of a step's result read the stored value."""
    maker = None if made is None else made.producer()
    assert made is not None and maker is not None  # noqa: S101  (a state that nothing makes is carried by none)
    last = maker

    def op(op_type: str, *inputs: ir.Value, name: str, **target: int) -> ir.Value:
        nonlocal last
        node = ir.Node("", op_type, inputs, convert_attributes(target), num_outputs=1, name=name)
        node.outputs[0].name = f"{name}_out"
        body.insert_after(last, node)
        last = node
        return node.outputs[0]

    readers = list(made.uses())
    stored = context.dialect.store_state(context, CarriedState(made, context.plan.quantizers[tensor], op))
    stored.type, stored.shape = made.type, made.shape
    for reader in readers:
        reader.node.replace_input_with(reader.idx, stored)
    for place, value in enumerate(body.outputs):
        if value is made:
            body.outputs[place] = stored


def _given(context: Context, node: Node, body: ir.Graph) -> list[ir.Value | None]:
    """Return the inputs of a loop; first states are stored like the states of each step."""
    found = [context.real(tensor) for tensor in node.inputs]
    carried = {made_of(body.outputs[node.outputs.index(t)]): t for t in context.topology.loop_of[node.name].carried}
    states = len(node.inputs) - int(node.attr("num_scan_inputs", 0))
    for place, first in enumerate(node.inputs[:states]):
        tensor = carried.get(made_of(body.outputs[place]))
        if tensor is None or _is_zero(context.graph, first):
            continue
        op = partial(_before, context, f"{node.name}/first {place}")
        real = found[place]
        assert real is not None  # noqa: S101  (states are given)
        state = CarriedState(real, context.plan.quantizers[tensor], op)
        found[place] = context.dialect.store_state(context, state)
    return found


def _before(context: Context, at: str, op_type: str, *inputs: ir.Value, name: str, to: int | None = None) -> ir.Value:
    """Write a node before a loop."""
    if to is None:
        return context.builder.op(op_type, *inputs, name=f"{at}: {name}")
    return context.builder.op(op_type, *inputs, name=f"{at}: {name}", to=to)


def _is_zero(graph: Graph, tensor: str) -> bool:
    """Return whether a first state is all zeros, which every grid has."""
    if graph.is_constant(tensor):
        return not np.any(graph.constant(tensor))
    maker = graph.producers.get(tensor)
    if maker is None or maker.op != "ConstantOfShape":
        return False
    value = maker.attr("value")
    return value is None or not np.any(np.asarray(value))
