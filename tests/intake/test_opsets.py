"""Models of every opset that onnx and onnxruntime take get in, with the same function and the same integer nodes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from quantpipe.graph.execute import Session
from quantpipe.graph.io import model_bytes
from tests.ops.line import line, load, normal_samples

LEAST, NEWEST = 7, min(onnx.defs.onnx_opset_version(), 28)


def constants(**shapes: tuple[int, ...]) -> list[onnx.TensorProto]:
    rng = np.random.default_rng(3)
    return [numpy_helper.from_array((0.3 * rng.standard_normal(s)).astype(np.float32), n) for n, s in shapes.items()]


def model(
    nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto], shape: list[int | str], opset: int
) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 5])
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def conv_net(opset: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("MaxPool", ["r"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["p"], ["g"], name="mean"),
        helper.make_node("Flatten", ["g"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "fw", "fb"], ["y"], name="dense"),
    ]
    return model(nodes, constants(w=(4, 3, 3, 3), b=(4,), fw=(4, 5), fb=(5,)), ["N", 3, 8, 8], opset)


def dense_net(opset: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="first"),
        helper.make_node("Add", ["m", "b"], ["a"], name="bias"),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("Gemm", ["r", "fw", "fb"], ["y"], name="last"),
    ]
    return model(nodes, constants(w=(6, 8), b=(8,), fw=(8, 5), fb=(5,)), ["N", 6], opset)


@pytest.mark.sliced(5)
@pytest.mark.parametrize("opset", range(LEAST, NEWEST + 1))
@pytest.mark.parametrize("net", [conv_net, dense_net])
def test_every_opset_gets_in(net: Callable[[int], onnx.ModelProto], opset: int) -> None:
    proto = net(opset)
    graph = load(proto)
    assert graph.opset == min(max(opset, 17), 27) and not graph.notes
    feeds = dict(normal_samples(graph).inputs)
    expected = Session(proto.SerializeToString()).run(feeds)["y"]
    np.testing.assert_allclose(Session(model_bytes(graph.model)).run(feeds)["y"], expected, rtol=1e-4, atol=1e-5)
    made = line(graph)
    assert all(made.topology.node_conds.values())
    assert made.agree(made.plan(), "qdq").differing == 0
