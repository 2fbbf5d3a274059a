"""Dense layers over rows, as transformers have them: MatMul and Add of a bias on [B, S, K] become one Gemm.

A Gemm is one kernel on every device, with its bias in the accumulator; a MatMul and an addition are two, with one more
tensor rounded between them. The rows are flattened before it and unflattened after it, which moves no value:

    [B, S, K] -> Reshape [B·S, K] -> Gemm [B·S, N] -> Reshape [B, S, N]

Exporters write the bias in many ways. It is a vector, [1, N] or [1, 1, N], one number, or [heads, size] after the
Reshape that splits the result into heads. A constant matrix may have leading axes of length one. All of these are
brought to the same form first.

Functions of single values after a layer (Relu, Gelu) work on the flat rows, so that a kernel can fuse them. A layer
that reads the rows of another one takes them as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from quantpipe.graph.edit import constant, is_op, new_constant, new_node, only_user, rank, take_place
from quantpipe.graph.external_weights import copied

VALUEWISE = frozenset({"Relu", "Clip", "LeakyRelu", "Elu", "Gelu", "HardSigmoid", "HardSwish", "Sigmoid", "Tanh"})
"""Functions of each value alone; what else they read is a scalar."""
FLAT = "_flat"
"""What the name of flat rows has behind that of the tensor."""


def rows_flattened(model: ir.Model) -> ir.Model:
    """Return a copy of a model with its dense layers over rows as Gemm; the shapes that it declares are trusted."""
    copy = copied(model)
    common_passes.TopologicalSortPass()(copy)
    flatten_rows(copy.graph)
    common_passes.RemoveUnusedNodesPass()(copy)
    return copy


def flatten_rows(graph: ir.Graph) -> None:
    """Write each MatMul by a constant matrix, and a constant Add after it, as Gemm on flat rows, in place.

    The graph is in topological order. Layers whose input has an unknown number of axes stay.
    """
    rows = _Rows(graph)
    for node in list(graph):
        if node.graph is graph:
            _weight_of_two_axes(graph, node)
            _bias_before_heads(graph, node)
            rows.rewrite(node)


@dataclass(eq=False)
class _Rows:
    """Hold flat rows by the value they were made from, and by the value that was made from them."""

    graph: ir.Graph
    flat: dict[ir.Value, ir.Value] = field(default_factory=dict)
    leading: dict[object, ir.Value] = field(default_factory=dict)
    """What `Shape` says of the axes before the last, by their names or, without names, by the value."""
    shapes: dict[tuple[ir.Value, int], ir.Value] = field(default_factory=dict)

    def rewrite(self, node: ir.Node) -> None:
        found = _dense(self.graph, node)
        if found is None:
            return
        add, bias = found
        data, weight, result = node.inputs[0], node.inputs[1], add.outputs[0]
        assert data is not None and weight is not None and weight.shape is not None  # noqa: S101
        features = int(weight.shape[1])  # type: ignore[arg-type]
        if rank(data) == 2:
            take_place(result, new_node(self.graph, add, "Gemm", [data, weight, bias], name=node.name))
            self.graph.remove([node, add], safe=True)
            return
        back = self._shape_behind(node, data, features)
        flat = self._flat(node, data, int(weight.shape[0]))  # type: ignore[arg-type]
        made = new_node(self.graph, add, "Gemm", [flat, weight, bias], name=node.name)
        self._named(made, f"{result.name}{FLAT}", result.type, [None, features])
        stale = [node, add]
        while (user := only_user(result, self.graph)) is not None and _is_valuewise(user, result):
            made = self._moved(user, made, features)
            result = user.outputs[0]
            stale.append(user)
        rows = new_node(self.graph, stale[-1], "Reshape", [made, back], name=f"{node.name}_rows")
        held = result.is_graph_output()  # whoever reads it is to read this very tensor
        take_place(result, rows)
        for node_after, port in [(use.node, use.idx) for use in rows.uses()]:
            if is_op(node_after, "Reshape") and port == 0 and _says_all(node_after.inputs[1]) and not held:
                node_after.replace_input_with(0, made)  # into heads, say: one view of the flat rows in place of two
        if held:
            made.name = f"{rows.name}_rows"  # not that of the flat rows of what is put back
        else:
            self.flat[rows] = made
        self.graph.remove(stale, safe=True)

    def _moved(self, node: ir.Node, flat: ir.Value, features: int) -> ir.Value:
        """Return the result of a function of single values on flat rows."""
        inputs = [flat, *node.inputs[1:]]
        made = new_node(self.graph, node, node.op_type, inputs, name=node.name)
        for attribute in node.attributes.values():
            made.producer().attributes.add(attribute)  # type: ignore[union-attr]
        self._named(made, f"{node.outputs[0].name}{FLAT}", node.outputs[0].type, [None, features])
        return made

    def _flat(self, before: ir.Node, data: ir.Value, features: int) -> ir.Value:
        """Return the rows of a value, laid flat once for all that read them."""
        if data not in self.flat:
            shape = new_constant(self.graph, "rows_flat", np.array([-1, features], np.int64))
            flat = new_node(self.graph, before, "Reshape", [data, shape], name=f"{data.name}{FLAT}")
            self._named(flat, f"{data.name}{FLAT}", data.type, [None, features])
            self.flat[data] = flat
        return self.flat[data]

    def _shape_behind(self, before: ir.Node, data: ir.Value, features: int) -> ir.Value:
        """Return the shape of a layer's result: a constant where one axis at most is free, else read from a value."""
        assert data.shape is not None  # noqa: S101
        ahead = list(data.shape)[:-1]
        free = [axis for axis in ahead if not isinstance(axis, int)]
        if len(free) <= 1:
            sizes = [axis if isinstance(axis, int) else -1 for axis in ahead]
            return new_constant(self.graph, "rows_shape", np.array([*sizes, features], np.int64))
        leading = self._leading(before, data, ahead)
        if (leading, features) in self.shapes:
            return self.shapes[leading, features]
        size = new_constant(self.graph, "rows_features", np.array([features], np.int64))
        attributes = {"axis": 0}
        shape = new_node(
            self.graph, before, "Concat", [leading, size], name=f"{before.name}_shape", attributes=attributes
        )
        self._named(shape, f"{before.name}_shape", ir.TensorType(ir.DataType.INT64), [len(ahead) + 1])
        self.shapes[leading, features] = shape
        return shape

    def _leading(self, before: ir.Node, data: ir.Value, ahead: list[int | ir.SymbolicDim]) -> ir.Value:
        """Return the first axes of a value at run time; axes of the same names have been read once."""
        named = all(isinstance(axis, int) or axis.value is not None for axis in ahead)
        key = tuple(axis if isinstance(axis, int) else axis.value for axis in ahead) if named else data
        if key not in self.leading:
            alike = (v for v in self.graph.inputs if v.shape is not None and list(v.shape)[: len(ahead)] == ahead)
            source = next(alike, None) if named else None
            place = before if source is None else next(iter(self.graph))
            source = data if source is None else source
            attributes = {"end": len(ahead)}
            found = new_node(self.graph, place, "Shape", [source], name=f"{source.name}_ahead", attributes=attributes)
            self._named(found, f"{source.name}_ahead", ir.TensorType(ir.DataType.INT64), [len(ahead)])
            self.leading[key] = found
        return self.leading[key]

    @staticmethod
    def _named(made: ir.Value, name: str, kind: ir.TypeProtocol | None, shape: list[int | None]) -> None:
        made.name, made.type, made.shape = name, kind, ir.Shape(shape)


def _dense(graph: ir.Graph, node: ir.Node) -> tuple[ir.Node, ir.Value] | None:
    """Return (the Add, the bias as a vector) of a MatMul that begins a dense layer, or None."""
    if not is_op(node, "MatMul") or node.inputs[0] is None or node.inputs[1] is None:
        return None
    weight, add = node.inputs[1], only_user(node.outputs[0], graph)
    axes = rank(node.inputs[0]) or 0
    if axes < 2 or weight.const_value is None or rank(weight) != 2 or not is_op(add, "Add"):
        return None
    assert add is not None  # noqa: S101
    bias = _added(add, node.outputs[0])
    array = constant(bias)
    features = weight.const_value.shape.numpy()[1]
    if bias is None or array is None or array.ndim > axes or array.size not in (1, features):
        return None
    if array.shape == (features,):
        return add, bias
    if array.size != array.reshape(-1, array.shape[-1] if array.ndim else 1).shape[1]:
        return None  # it differs from row to row
    vector = np.broadcast_to(array.reshape(-1), (features,))
    return add, new_constant(graph, f"{bias.name}_vector", vector)


def _added(add: ir.Node, value: ir.Value) -> ir.Value | None:
    """Return the operand that an Add adds to a value."""
    return add.inputs[1 - list(add.inputs).index(value)]


def _weight_of_two_axes(graph: ir.Graph, node: ir.Node) -> None:
    """Take leading axes of length one off the constant matrix of a MatMul whose data have as many axes."""
    weight = node.inputs[1] if is_op(node, "MatMul") else None
    if weight is None or weight.const_value is None or not 2 < (rank(weight) or 0) <= (rank(node.inputs[0]) or 0):
        return
    shape = tuple(weight.const_value.shape.numpy())
    if all(n == 1 for n in shape[:-2]):
        matrix = np.asarray(weight.const_value.numpy()).reshape(shape[-2:])
        node.replace_input_with(1, new_constant(graph, f"{weight.name}_matrix", matrix))


def _bias_before_heads(graph: ir.Graph, node: ir.Node) -> None:
    """Move a bias [heads, size] to before the Reshape that splits the result of a MatMul into heads."""
    if not is_op(node, "MatMul") or node.inputs[1] is None or node.inputs[1].const_value is None:
        return
    heads = only_user(node.outputs[0], graph)
    if not is_op(heads, "Reshape") or heads is None or heads.inputs[0] is not node.outputs[0]:
        return
    add = only_user(heads.outputs[0], graph)
    if not is_op(add, "Add") or add is None:
        return
    bias, parted, whole = _added(add, heads.outputs[0]), heads.outputs[0].shape, node.inputs[1].shape
    array = constant(bias)
    if bias is None or array is None or parted is None or whole is None or rank(node.inputs[0]) is None:
        return
    shape = tuple(n for i, n in enumerate(array.shape) if n != 1 or any(m != 1 for m in array.shape[:i]))
    if len(shape) < 2 or array.ndim > len(parted) or tuple(parted)[-len(shape) :] != shape or array.size != whole[-1]:
        return
    vector = new_constant(graph, f"{bias.name}_vector", array.reshape(-1))
    moved = new_node(graph, heads, "Add", [node.outputs[0], vector], name=add.name)
    kind = heads.outputs[0].type or ir.TensorType(ir.DataType.FLOAT)
    moved.name, moved.shape, moved.type = f"{add.outputs[0].name}_whole", node.outputs[0].shape, kind
    heads.replace_input_with(0, moved)
    take_place(add.outputs[0], heads.outputs[0])
    graph.remove(add, safe=True)


def _says_all(shape: ir.Value | None) -> bool:
    """Return whether a shape copies no axis of its input (by 0), so that it is valid for other views of it."""
    maker = None if shape is None else shape.producer()
    parts = list(maker.inputs) if maker is not None and is_op(maker, "Concat") else [shape]
    arrays = [constant(part) for part in parts]
    return all(array is None or np.all(array != 0) for array in arrays) and (len(parts) > 1 or arrays[0] is not None)


def _is_valuewise(node: ir.Node, data: ir.Value) -> bool:
    others = [value for value in node.inputs[1:] if value is not None]
    scalars = all((array := constant(value)) is not None and array.size == 1 for value in others)
    return is_op(node, *VALUEWISE) and node.inputs[0] is data and scalars
