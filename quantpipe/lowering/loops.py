"""Write a loop (Scan) of real numbers whose body multiplies a state by integer weights.

The body is that of the float model; in it, each product of the state reads the state's stored integers. Constants stay
outside of the body, which reads them by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import onnx_ir as ir
from onnx_ir.convenience import convert_attributes

from quantpipe.graph.build import Attribute
from quantpipe.graph.view import Node
from quantpipe.oprules.loops import body_of, name_of
from quantpipe.types import Form, LoopProduct, Quantizer

if TYPE_CHECKING:
    from quantpipe.lowering.lower import Context


class StepBody:
    """Write nodes of a body in front of the float product that they take the place of."""

    def __init__(self, body: ir.Graph, before: ir.Node, quantizer: Quantizer, product: LoopProduct) -> None:
        self._body, self._before = body, before
        self.quantizer, self.product = quantizer, product

    @property
    def state(self) -> ir.Value:
        """Return the real state that the product reads, `[1, B, H]`."""
        found = self._before.inputs[0]
        assert found is not None  # noqa: S101  (a product has two operands)
        return found

    def op(self, op_type: str, *inputs: ir.Value | None, name: str, **attributes: Attribute) -> ir.Value:
        """Append a node with one output, and return the output; `name` is put behind that of the product."""
        full = f"{self.product.node}/{name}"
        node = ir.Node("", op_type, inputs, convert_attributes(attributes), num_outputs=1, name=full)
        node.outputs[0].name = f"{full}_out"
        self._body.insert_before(self._before, node)
        return node.outputs[0]


def write_loop(context: Context, node: Node) -> Sequence[ir.Value]:
    """Write a loop with its products in integers; returns its outputs, real numbers under their own names.

    Args:
        context: the graph in the making.
        node: the loop of the float graph.

    Returns:
        The outputs of the new loop.
    """
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
    whole = replace(node, attributes={**node.attributes, "body": ir.AttrGraph("body", body)})
    return context.builder.copy(whole, [context.real(t) for t in node.inputs])
