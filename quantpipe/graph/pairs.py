"""CPUs whose kernels add pairs of uint8 x int8 products in int16: a model that shows it, and what onnxruntime's exact
kernels ask of a model there."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

PAIR = 2 * 255 * 127
"""The greatest sum of two products; int16 does not hold it."""


def pair() -> bytes:
    """A model that adds `y` `[1, 1]` = x_0·127 + x_1·127 of `x` `[1, 2]` uint8."""
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
    """A serialized model in which every int8 tensor that the main graph holds itself, scalars aside, has one reader:
    the others read copies. onnxruntime 1.31.1 makes uint8 weights of int8 ones once per node, and fails when it meets
    one a second time ("Attempt to replace the existing tensor")."""
    model = onnx.load_from_string(data)
    held = {
        t.name: t
        for t in model.graph.initializer
        if t.data_type == TensorProto.INT8 and t.dims and t.data_location != TensorProto.EXTERNAL
    }
    taken: set[str] = set()
    copies = 0
    for node in model.graph.node:
        for slot, name in enumerate(node.input):
            if name in held and name in taken:
                copies += 1
                copy = model.graph.initializer.add()
                copy.CopyFrom(held[name])
                node.input[slot] = copy.name = f"{name}/reader{copies}"
            taken.add(name)
    return model.SerializeToString() if copies else data
