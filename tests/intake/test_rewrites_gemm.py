"""Gemm with alpha, beta and transA, and with operands that are no constants, as the forms that rules know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.graph.execute import Session
from quantpipe.intake.load import load_graph
from quantpipe.intake.output_difference import difference

Array = np.ndarray[Any, Any]


def values(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


def model(held: dict[str, Array], fed: dict[str, Array], **attributes: Any) -> onnx.ModelProto:
    names = [n for n in ("a", "b", "c") if n in held or n in fed]
    nodes = [
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("Gemm", ["r", *names[1:]], ["y"], name="dense", **attributes),
    ]
    free = {"a": 1 if attributes.get("transA") else 0}
    ports = [
        helper.make_tensor_value_info(
            n, TensorProto.FLOAT, ["n" if axis == free.get(n) else size for axis, size in enumerate(a.shape)]
        )
        for n, a in fed.items()
    ]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    constants = [numpy_helper.from_array(a, n) for n, a in held.items()]
    graph = helper.make_graph(nodes, "net", ports, [out], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


X, W, V = values(3, 8), values(8, 4), values(4)
CASES: dict[str, tuple[dict[str, Array], dict[str, Array], dict[str, Any], list[str]]] = {
    "alpha": ({"b": W}, {"a": X}, {"alpha": 2.0}, ["Relu", "Gemm"]),
    "beta": ({"b": W, "c": V}, {"a": X}, {"beta": 0.5}, ["Relu", "Gemm"]),
    "both, transB": ({"b": W.T.copy(), "c": V}, {"a": X}, {"alpha": 0.25, "beta": -3.0, "transB": 1}, ["Relu", "Gemm"]),
    "one number": ({"b": W, "c": np.float32([0.5])}, {"a": X}, {}, ["Relu", "Gemm"]),
    "a row": ({"b": W, "c": V[None]}, {"a": X}, {"beta": 2.0}, ["Relu", "Gemm"]),
    "transA": ({"b": W, "c": V}, {"a": X.T.copy()}, {"transA": 1, "alpha": 2.0}, ["Relu", "Transpose", "Gemm"]),
    "bias per row": ({"b": W, "c": values(3, 1)}, {"a": X}, {"beta": 2.0}, ["Relu", "Gemm", "Add"]),
    "bias at run time": ({"b": W}, {"a": X, "c": values(3, 4)}, {"beta": 2.0}, ["Relu", "Gemm", "Mul", "Add"]),
    "two activations": ({}, {"a": X, "b": W}, {"alpha": 2.0}, ["Relu", "MatMul", "Mul"]),
    "two activations, transB": (
        {"c": V},
        {"a": X, "b": W.T.copy()},
        {"transB": 1},
        ["Relu", "Transpose", "MatMul", "Add"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_stay_and_no_factor_is_left(name: str, tmp_path: Path) -> None:
    held, fed, attributes, ops = CASES[name]
    given = model(held, fed, **attributes)
    onnx.save(given, tmp_path / "m.onnx")
    graph = load_graph(tmp_path / "m.onnx", lambda g: fed)
    assert sorted(n.op for n in graph.nodes) == sorted(ops) and not graph.notes
    assert "dense" in graph.by_name
    for node in graph.nodes:
        assert (
            not {"alpha", "beta", "transA"} & set(node.attributes)
            or node.attr("alpha", 1.0) == node.attr("beta", 1.0) == 1
        )
    assert difference(Session(ir.from_proto(given)).run(fed), Session(graph.model).run(fed)) < 1e-6


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_integers_of_a_file_follow_alpha(axis: int | None, tmp_path: Path) -> None:
    """Q/DQ around a Gemm with alpha: its integers are kept, with scales alpha times those of the file."""
    rng = np.random.default_rng(0)
    integers = rng.integers(-127, 128, (8, 4)).astype(np.int8)
    scale = np.float32(0.02) if axis is None else rng.uniform(0.01, 0.03, (8, 4)[axis]).astype(np.float32)
    held = {"w": integers, "ws": scale, "wz": np.zeros(np.shape(scale), np.int8), "b": values(4)}
    held |= {"xs": np.float32(0.1), "xz": np.uint8(128), "ys": np.float32(0.2), "yz": np.uint8(120)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=axis or 0),
        helper.make_node("Gemm", ["xd", "wd", "b"], ["g"], name="dense", alpha=2.0),
        helper.make_node("QuantizeLinear", ["g", "ys", "yz"], ["gq"]),
        helper.make_node("DequantizeLinear", ["gq", "ys", "yz"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", s]) for n, s in (("x", 8), ("y", 4))]
    graph = helper.make_graph(
        nodes, "net", ports[:1], ports[1:], [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, tmp_path / "m.onnx")
    found = load_graph(tmp_path / "m.onnx", lambda g: {"x": X})
    assert found.imported is not None and not found.imported.lost
    (weight,) = found.imported.weights
    assert np.array_equal(weight.values, integers)
    assert np.allclose(weight.grid.scale, 2 * np.asarray(scale)) and weight.tensor == found.by_name["dense"].inputs[1]


def test_a_matrix_behind_a_transpose_is_the_weight_of_a_product(tmp_path: Path) -> None:
    table, ids = values(7, 5), np.int64([[0, 3, 6], [1, 1, 2]])
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], name="look"),
        helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0], name="turn"),
        helper.make_node("MatMul", ["rows", "turned"], ["y"], name="head"),
    ]
    port = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 3])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "net", [port], [out], [numpy_helper.from_array(table, "table")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), tmp_path / "m.onnx")
    found = load_graph(tmp_path / "m.onnx", lambda raw: {"ids": ids})
    (product,) = [node for node in found.nodes if node.op == "MatMul"]
    assert [node.op for node in found.nodes] == ["Gather", "MatMul"]
    np.testing.assert_array_equal(found.constant(product.inputs[1]), table.T)
    (y,) = Session(found.model).run({"ids": ids}).values()
    np.testing.assert_allclose(y, table[ids] @ table.T, rtol=1e-5)
