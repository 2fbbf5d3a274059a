"""Fold products and sums with constants into the layer before or after them: one stored tensor less each.

Nets with learned gains have them after every layer and function. (PaddleOCR's mobile nets have y = g·x + o, with one g
and one o per tensor.) Files that prepare pictures have them before the first layer. As ops of their own they would
round their result once more. With f, o per output channel and g, c per input channel:

    (W x + b)·f + o = (W·f) x + (b·f + o)        W (g·x + c) = (W·g) x + W c

A product stays where another node reads the weight. A sum before a layer with padding stays, because the padding has
no c. A product before such a sum passes it: (g·x + c) = g·(x + c/g).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.graph.edit import attribute, constant, is_op, new_constant, only_user, operand, rank, take_place

EVEN = 2.0
"""Ratio of the gains of input channels up to which they become part of weights: more would take range from others."""

LARGEST = 1e3
"""Sums with more stay, such as masks: a bias of that size would leave a weight few steps."""

Vector = NDArray[np.float64]


def constants_into_layers(graph: ir.Graph, node: ir.Node, *, sums: bool) -> None:
    """Fold a product with a constant into the layer that makes its operand, else into the one that reads it.

    Folds sums likewise if `sums`: they change the order in which float32 adds.
    """
    found = _Step.of(graph, node)
    if found is not None and (sums or found.is_product) and not _into_producer(graph, found):
        _into_consumer(graph, found)


@dataclass(frozen=True, eq=False)
class _Step:
    """A product or a sum of `data` and a constant."""

    node: ir.Node
    data: ir.Value
    constant: NDArray[np.float32]

    @staticmethod
    def of(graph: ir.Graph, node: ir.Node | None) -> _Step | None:
        """Return the step that a node is, or None; its result has as many axes as its operand."""
        if node is None or node.graph is not graph or not is_op(node, "Mul", "Add"):
            return None
        for data, other in (node.inputs, reversed(node.inputs)):
            array, axes = constant(other), rank(data)
            if data is not None and array is not None and data.const_value is None and axes is not None:
                most = np.inf if node.op_type == "Mul" else LARGEST
                fits = array.dtype == np.float32 and array.ndim <= axes and bool(np.all(np.abs(array) < most))
                return _Step(node, data, array) if fits else None
        return None

    @property
    def is_product(self) -> bool:
        return self.node.op_type == "Mul"

    def per_channel(self, axis: int, channels: int) -> Vector | None:
        """Return the constant as one number per channel along an axis of the operand, None if it is more."""
        axes = rank(self.data) or 0
        shape = (1,) * (axes - self.constant.ndim) + self.constant.shape
        wide = [i for i, size in enumerate(shape) if size != 1]
        if wide and (wide != [axis] or shape[axis] != channels):
            return None
        return np.array(np.broadcast_to(self.constant.reshape(-1), (channels,)), np.float64)


@dataclass(frozen=True, eq=False)
class _Layer:
    """A Conv, ConvTranspose or Gemm with constants; weights as `[groups, inputs of a group, outputs of a group, …]`."""

    node: ir.Node
    weight: NDArray[np.float32]
    bias: Vector
    order: tuple[int, ...]
    groups: int
    shared: bool
    """Whether another node reads the weight, too: a product would make a second weight, such as a second embedding."""

    @staticmethod
    def of(graph: ir.Graph, node: ir.Node | None) -> _Layer | None:
        """Return the layer that a node is, or None; weights in files stay as they are."""
        if node is None or node.graph is not graph or not is_op(node, "Conv", "ConvTranspose", "Gemm"):
            return None
        value, given = node.inputs[1], operand(node, 2)
        if value is None or isinstance(value.const_value, ir.ExternalTensor):
            return None
        weight, bias = constant(value), constant(given)
        plain = all(float(attribute(node, name, default)) == default for name, default in _PLAIN)
        if weight is None or weight.dtype != np.float32 or not plain or (given is not None and bias is None):
            return None
        dense = node.op_type == "Gemm"
        turned = node.op_type == "Conv" or (dense and bool(attribute(node, "transB", 0)))
        groups = 1 if dense else int(attribute(node, "group", 1))
        order = (1, 0) if turned else (0, 1)
        outputs = weight.shape[order[1]] * (1 if node.op_type == "Conv" else groups)
        if bias is not None and bias.size not in (1, outputs):
            return None
        known = np.zeros(outputs) if bias is None else np.broadcast_to(bias.reshape(-1), (outputs,)).astype(np.float64)
        return _Layer(node, weight, known, order, groups, only_user(value, graph) is None)

    @property
    def inputs(self) -> int:
        """Return the number of input channels."""
        own = int(self.weight.shape[self.order[0]])
        return own * self.groups if self.node.op_type == "Conv" else own

    @property
    def pads(self) -> bool:
        """Return whether values from outside the operand may take part."""
        automatic = attribute(self.node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID")
        return automatic or any(attribute(self.node, "pads", ())) or self.node.op_type == "ConvTranspose"

    def _grouped(self) -> NDArray[np.float64]:
        """Return the weight, float64 `[groups, inputs, outputs, kernel]`."""
        weight = self.weight.astype(np.float64)
        outer, inner = weight.shape[:2]
        weight = weight.reshape(self.groups, outer // self.groups, inner, -1)
        return weight if self.order == (0, 1) else weight.transpose(0, 2, 1, 3)

    def _written(self, grouped: NDArray[np.float64]) -> NDArray[np.float32]:
        found = grouped if self.order == (0, 1) else grouped.transpose(0, 2, 1, 3)
        return found.reshape(self.weight.shape).astype(np.float32)

    def outputs_times(self, factor: Vector) -> NDArray[np.float32]:
        """Return the weight with each output channel times a number."""
        return self._written(self._grouped() * factor.reshape(self.groups, 1, -1, 1))

    def inputs_times(self, factor: Vector) -> NDArray[np.float32]:
        """Return the weight with each input channel times a number."""
        return self._written(self._grouped() * factor.reshape(self.groups, -1, 1, 1))

    def response(self, values: Vector) -> Vector:
        """Return what the layer makes of one number per input channel, without its bias, where it does not pad."""
        shares = np.einsum("giok,gi->go", self._grouped(), values.reshape(self.groups, -1))
        return np.asarray(shares.reshape(-1))

    def write(self, graph: ir.Graph, weight: NDArray[np.float32] | None, bias: Vector) -> bool:
        """Give the node other numbers; return False where float32 does not hold them."""
        stored = bias.astype(np.float32)
        if not np.all(np.isfinite(stored)) or (weight is not None and not np.all(np.isfinite(weight))):
            return False
        name = self.node.outputs[0].name
        if weight is not None:
            self.node.replace_input_with(1, new_constant(graph, f"{name}_weight", weight))
        if operand(self.node, 2) is not None or np.any(stored):
            if len(self.node.inputs) < 3:
                self.node.resize_inputs(3)
            self.node.replace_input_with(2, new_constant(graph, f"{name}_bias", stored))
        return True


_PLAIN = (("alpha", 1.0), ("beta", 1.0), ("transA", 0))


def _into_producer(graph: ir.Graph, step: _Step) -> bool:
    layer = _Layer.of(graph, step.data.producer())
    if layer is None or only_user(step.data, graph) is None or (step.is_product and layer.shared):
        return False
    numbers = step.per_channel(1, len(layer.bias))
    if numbers is None:
        return False
    with np.errstate(over="ignore"):
        weight, bias = (
            (layer.outputs_times(numbers), layer.bias * numbers) if step.is_product else (None, layer.bias + numbers)
        )
        done = layer.write(graph, weight, bias)
    if done:
        take_place(step.node.outputs[0], step.data)
        graph.remove(step.node, safe=True)
    return done


def _into_consumer(graph: ir.Graph, step: _Step) -> None:
    reader = only_user(step.node.outputs[0], graph)
    passed = _Step.of(graph, reader) if step.is_product else None
    added = passed if passed is not None and not passed.is_product else None
    layer = _Layer.of(graph, reader if added is None else only_user(added.node.outputs[0], graph))
    result = step.node.outputs[0] if added is None else added.node.outputs[0]
    if layer is None or layer.node.op_type == "ConvTranspose" or layer.node.inputs[0] is not result:
        return
    numbers = step.per_channel(1, layer.inputs)
    shape = step.data.shape
    if numbers is None or shape is None or (step.constant.size > 1 and shape[1] != layer.inputs):
        return  # a constant with more channels than its operand repeats it
    sizes = np.abs(numbers)
    with np.errstate(over="ignore"):
        if not step.is_product:
            done = not layer.pads and layer.write(graph, None, layer.bias + layer.response(numbers))
        elif layer.shared or sizes.min() == 0 or sizes.max() > EVEN * sizes.min():
            return
        else:
            weight = layer.inputs_times(numbers)
            done = bool(np.all(np.isfinite(weight))) and _pass_sum(graph, added, step)
            done = done and layer.write(graph, weight, layer.bias)
    if done:
        step.node.outputs[0].replace_all_uses_with(step.data)
        graph.remove(step.node, safe=True)


def _pass_sum(graph: ir.Graph, added: _Step | None, product: _Step) -> bool:
    """Divide the constant of a sum after a product by the product's; return False where float32 does not hold it."""
    if added is None:
        return True
    quotient = added.constant.astype(np.float64) / product.constant.astype(np.float64)
    same_axes = quotient.ndim <= (rank(product.data) or 0)
    stored = quotient.astype(np.float32)
    if not same_axes or not np.all(np.isfinite(stored)):
        return False
    port = 0 if added.node.inputs[1] is added.data else 1
    added.node.replace_input_with(port, new_constant(graph, f"{added.node.name}_shift", stored))
    return True
