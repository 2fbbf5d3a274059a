"""Append nodes to the body of a loop: products of its state, and the state that a step passes to the next one."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from onnx_ir.convenience import convert_attributes

from quantpipe.graph.build import Attribute
from quantpipe.types import LoopProduct, Quantizer


class StepBody:
    """Write nodes of a body before the float product that they replace."""

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
        """Append a node with one output, and return the output; `name` is appended to the product's name."""
        full = f"{self.product.node}/{name}"
        node = ir.Node("", op_type, inputs, convert_attributes(attributes), num_outputs=1, name=full)
        node.outputs[0].name = f"{full}_out"
        self._body.insert_before(self._before, node)
        return node.outputs[0]


class CarriedState:
    """Write nodes that store a state from step to step: in a body, after the node that makes it, or before a loop.

    `value` is the real state; `op` appends a node with one output, and returns the output.
    """

    def __init__(self, value: ir.Value, quantizer: Quantizer, op: Callable[..., ir.Value]) -> None:
        self.value, self.quantizer, self._op = value, quantizer, op

    def op(self, op_type: str, *inputs: ir.Value, name: str, to: int | None = None) -> ir.Value:
        """Append a node with one output, and return the output; `name` is appended to the state's name."""
        target = {} if to is None else {"to": to}
        return self._op(op_type, *inputs, name=f"{self.quantizer.tensor}/{name}", **target)
