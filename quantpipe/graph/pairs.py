"""Deal with CPUs whose kernels add pairs of uint8 x int8 products in int16.

Here are a model that shows it, and what onnxruntime's exact kernels (session option `session.x64quantprecision`) ask of
a model.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from quantpipe.graph.edit import new_constant, new_node
from quantpipe.graph.external_weights import place_of
from quantpipe.graph.op_tables import CAST

PAIR = 2 * 255 * 127
"""The greatest sum of two products; int16 does not hold it."""

INT8 = ir.DataType.INT8


def pair() -> bytes:
    """Return a model that adds `y` `[1, 1]` = x_0·127 + x_1·127 of `x` `[1, 2]` uint8."""
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])],
        "pair",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [1, 1])],
        [helper.make_tensor("w", TensorProto.INT8, [2, 1], [127, 127])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def separated(data: bytes) -> bytes:
    """Return a serialized model in which every int8 tensor of the main graph, scalars aside, has one reader.

    The other readers read copies. onnxruntime 1.31.1 makes uint8 weights of int8 ones once per node. It fails when it
    finds one a second time ("Attempt to replace the existing tensor").
    """
    model = onnx.load_from_string(data)
    held = {
        t.name: t
        for t in model.graph.initializer
        if t.data_type == TensorProto.INT8 and t.dims and t.data_location != TensorProto.EXTERNAL
    }
    names = {n for node in model.graph.node for n in (*node.input, *node.output)}
    names |= {t.name for t in (*model.graph.initializer, *model.graph.input)}
    read: set[str] = set()
    copies = 0
    for node in model.graph.node:
        for slot, name in enumerate(node.input):
            if name in held and name in read:
                copies += 1
                while (own := f"{name}/reader{copies}") in names:
                    copies += 1
                names.add(own)
                copy = model.graph.initializer.add()
                copy.CopyFrom(held[name])
                node.input[slot] = copy.name = own
            read.add(name)
    return model.SerializeToString() if copies else data


def separate(graph: ir.Graph, unique: Callable[[str], str]) -> None:
    """Give every int8 tensor of a graph in the making one reader, in place, without storing a weight twice.

    Each further reader has a Reshape of its own, to the same shape, which the runtime makes a constant at load. (It
    would remove an Identity or a Cast first.) A tensor in a file gets further names for the same place; zero points are
    copied. `unique` makes names.
    """
    shapes: dict[tuple[int, ...], ir.Value] = {}
    for value in [*graph.initializers.values(), *_unpacked(graph)]:
        if value.dtype != INT8 or not value.shape or value.is_graph_input():
            continue
        dims, last = value.shape.numpy(), value
        for number, use in enumerate(list(value.uses())[1:], 1):
            name = unique(f"{value.name}/reader{number}")
            if len(dims) < 2 or place_of(value.const_value) is not None:
                same = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
                graph.register_initializer(same)
            else:
                if dims not in shapes:
                    text = unique(f"shape_{'x'.join(map(str, dims))}")
                    shapes[dims] = new_constant(graph, text, np.asarray(dims, np.int64))
                same = new_node(graph, use.node, "Reshape", [last, shapes[dims]], name=name)
                same.name, same.type, same.shape = name, value.type, value.shape
                last = same  # several of one tensor would be merged
            use.node.replace_input_with(use.idx, same)


def _unpacked(graph: ir.Graph) -> list[ir.Value]:
    """Return values cast to int8 from constants at load (4-bit or block weights), with type and shape."""
    found: list[ir.Value] = []
    made_at_load: set[ir.Value] = set()
    for node in graph:
        constant = all(v is not None and (v.const_value is not None or v in made_at_load) for v in node.inputs)
        if not node.inputs or not constant:
            continue
        made_at_load.update(node.outputs)
        if node.op_type == CAST and node.attributes["to"].as_int() == INT8:
            (made,) = node.outputs
            source = node.inputs[0]
            made.type, made.shape = ir.TensorType(INT8), made.shape or (source.shape if source is not None else None)
            found.append(made)
    return found
