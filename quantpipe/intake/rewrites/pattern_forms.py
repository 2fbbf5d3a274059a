"""List the forms that a pattern may have in a clean model.

The clean-up makes one Gemm of a MatMul and the addition of its bias, and exporters write dense layers so, too. A
package that writes the two ops in its function means both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
import onnx_ir as ir


@dataclass(frozen=True, eq=False)
class PatternForm:
    """Hold a function to look for, and which of its inputs stand transposed in the model."""

    function: onnx.FunctionProto
    transposed: frozenset[str] = frozenset()


def forms_of(function: onnx.FunctionProto) -> Iterator[PatternForm]:
    """Yield a function as it is, then with a Gemm for each product with a bias, with weights `[K, O]` and `[O, K]`."""
    yield PatternForm(function)
    pairs = list(_products_with_bias(function))
    if not pairs:
        return
    for turned in (0, 1):
        form = onnx.FunctionProto()
        form.CopyFrom(function)
        for product, addition, bias in pairs:
            place = next(i for i, n in enumerate(form.node) if n.output[0] == addition.output[0])
            ends = [product.input[0], product.input[1], bias]
            form.node[place].CopyFrom(onnx.helper.make_node("Gemm", ends, list(addition.output), transB=turned))
            form.node.remove(next(n for n in form.node if n.output[0] == product.output[0]))
        weights = frozenset(product.input[1] for product, _, _ in pairs)
        if not turned:
            yield PatternForm(form)
        elif weights <= set(function.input):
            yield PatternForm(form, weights)


def turn(graph: ir.Graph, value: ir.Value) -> ir.Value:
    """Return the transposed constant as another initializer; it is made once."""
    name, tensor = f"{value.name}/transposed", ir.convenience.get_const_tensor(value)
    if name not in graph.initializers and tensor is not None:
        made = ir.tensor(tensor.numpy().T.copy(), name=name)
        kind, shape = ir.TensorType(made.dtype), ir.Shape(tuple(made.numpy().shape))
        graph.register_initializer(ir.Value(name=name, type=kind, shape=shape, const_value=made))
    return graph.initializers[name]


def _products_with_bias(function: onnx.FunctionProto) -> Iterator[tuple[onnx.NodeProto, onnx.NodeProto, str]]:
    """Yield products of two matrices whose only reader is an addition, with the addition and its other operand."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in function.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for node in function.node:
        found = readers.get(node.output[0], [])
        if (node.domain, node.op_type) != ("", "MatMul") or len(found) != 1 or node.output[0] in function.output:
            continue
        if (found[0].domain, found[0].op_type) == ("", "Add"):
            (bias,) = [name for name in found[0].input if name != node.output[0]] or [""]
            if bias:
                yield node, found[0], bias
