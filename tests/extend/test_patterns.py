"""Which sub-graphs are joined to one node of a plug-in op, and which are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.extend import DeviceOp, Extension, function
from quantpipe.graph.io import model_bytes
from quantpipe.intake.load import load_graph
from quantpipe.intake.patterns import join_patterns
from quantpipe.testing import installed
from tests.extend import example  # noqa: F401  (the path of the example package)

from example_npu.gate import GATE, INTEGERS, interpret, numbers  # isort: skip

REFERENCE = function("""
    <domain: "example.npu", opset_import: ["" : 17]>
    Tail <alpha> (x, w) => (y) {
        three = Constant <value = float {3.0}> ()
        leaky = LeakyRelu <alpha: float = @alpha> (x)
        scaled = Mul (leaky, three)
        sum = Add (scaled, w)
        y = Softmax <axis: int = 1> (sum)
    }
""")
TAIL = DeviceOp(REFERENCE, numbers, INTEGERS, interpret, constants=("w",), pattern=True)


def graph(*, three: float = 3.0, axis: int = 1, read: bool = False, turned: bool = False, alpha: Any = 0.2) -> Any:
    more = {} if alpha is None else {"alpha": alpha}
    sums = ["w", "scaled"] if turned else ["scaled", "w"]
    nodes = [
        helper.make_node("LeakyRelu", ["x"], ["leaky"], name="leaky", **more),
        helper.make_node("Mul", ["three", "leaky"] if turned else ["leaky", "three"], ["scaled"], name="mul"),
        helper.make_node("Add", sums, ["sum"], name="add"),
        helper.make_node("Softmax", ["sum"], ["y"], name="soft", axis=axis),
    ]
    outputs = ["y", "leaky"] if read else ["y"]
    constants = [numpy_helper.from_array(np.float32(three), "three")]
    constants += [numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(3, 4), "w")]
    ports = [helper.make_tensor_value_info(o, TensorProto.FLOAT, ["N", 3, 4]) for o in outputs]
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 4])
    made = helper.make_graph(nodes, "g", [port], ports, constants)
    return ir.from_proto(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def run(data: bytes) -> Any:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    return ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})


@pytest.mark.parametrize("given", [{}, {"turned": True}, {"alpha": None}, {"three": 3.0000001}])
def test_matches_are_one_node_and_compute_the_same(given: dict[str, Any]) -> None:
    model = graph(**given)
    before = run(model_bytes(model))
    with installed(Extension((TAIL,)), "own"):
        joined = join_patterns(model, [TAIL])
        assert [(n.domain, n.op_type) for n in joined.graph] == [("example.npu", "Tail")]
        data = model_bytes(joined)
    assert [f.name for f in onnx.load_from_string(data).functions] == ["Tail"]
    for a, b in zip(before, run(data), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("given", [{"three": 2.5}, {"axis": 2}, {"read": True}])
def test_what_computes_something_else_stays(given: dict[str, Any]) -> None:
    model = graph(**given)
    assert join_patterns(model, [TAIL]) is model
    assert join_patterns(model, []) is model


def test_two_activations_match_in_their_own_order() -> None:
    """x · clip(g / 4 + 1/2): the operands of the product may stand either way, and x is not g."""
    names = {"slope": 0.25, "half": 0.5, "zero": 0.0, "one": 1.0}
    constants = [numpy_helper.from_array(np.float32(v), n) for n, v in names.items()]
    for order in (["a", "open"], ["open", "a"]):
        nodes = [
            helper.make_node("Mul", ["b", "slope"], ["scaled"], name="m"),
            helper.make_node("Add", ["half", "scaled"], ["raised"], name="a"),
            helper.make_node("Clip", ["raised", "zero", "one"], ["open"], name="c"),
            helper.make_node("Mul", order, ["y"], name="p"),
        ]
        ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 3]) for n in ("a", "b", "y")]
        made = helper.make_graph(nodes, "g", ports[:2], ports[2:], constants)
        model = ir.from_proto(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
        (node,) = join_patterns(model, [GATE]).graph
        assert [v.name for v in node.inputs] == ["a", "b"]


def dense(form: str) -> onnx.ModelProto:
    """Relu of a dense layer, with its bias in front, as MatMul and Add or as a Gemm."""
    rng = np.random.default_rng(4)
    weight = rng.standard_normal((4, 5)).astype(np.float32)
    nodes = {
        "matmul": [
            helper.make_node("MatMul", ["x", "w"], ["p"]),
            helper.make_node("Add", ["b", "p"], ["sum"]),
        ],
        "gemm": [helper.make_node("Gemm", ["x", "w", "b"], ["sum"], alpha=1.0)],
        "turned": [helper.make_node("Gemm", ["x", "w", "b"], ["sum"], transB=1)],
        "half": [helper.make_node("Gemm", ["x", "w", "b"], ["sum"], alpha=0.5)],
    }[form]
    constants = {"w": weight.T.copy() if form == "turned" else weight, "b": rng.standard_normal(5).astype(np.float32)}
    made = helper.make_graph(
        [*nodes, helper.make_node("Relu", ["sum"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 5])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


DENSE = function("""
    <domain: "example.npu", opset_import: ["" : 17]>
    DenseRelu (x, w, b) => (y) {
        product = MatMul (x, w)
        sum = Add (product, b)
        y = Relu (sum)
    }
""")
DENSE_RELU = DeviceOp(DENSE, numbers, INTEGERS, interpret, weight="w", constants=("b",), pattern=True)


@pytest.mark.parametrize("leading", [("N",), ("N", 5)])
def test_a_product_with_a_bias_is_found_after_the_clean_up(leading: tuple[Any, ...], tmp_path: Path) -> None:
    """Which makes a Gemm of it, and of rows of a longer tensor a Gemm between two Reshapes."""
    given = dense("matmul")
    for port, last in ((given.graph.input[0], 4), (given.graph.output[0], 5)):
        port.CopyFrom(helper.make_tensor_value_info(port.name, TensorProto.FLOAT, [*leading, last]))
    onnx.save(given, tmp_path / "net.onnx")
    feeds = {"x": np.ones((3, *leading[1:], 4), np.float32)}
    with installed(Extension((DENSE_RELU,)), "faulty"):
        found = load_graph(
            tmp_path / "net.onnx", lambda raw: feeds, isolate=False, declared=["example.npu.DenseRelu", "Gemm"]
        )
    assert [n.op for n in found.nodes] == ["example.npu.DenseRelu"]


@pytest.mark.parametrize("form", ["matmul", "gemm", "turned", "half"])
def test_a_product_with_a_bias_is_found_as_a_gemm_too(form: str) -> None:
    given = dense(form)
    found = ir.to_proto(join_patterns(ir.from_proto(given), [DENSE_RELU]))
    assert len(found.graph.node) == (2 if form == "half" else 1)
    found.functions.append(DENSE)
    x = {"x": np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)}
    wanted, again = (
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, x)[0]
        for m in (given, found)
    )
    np.testing.assert_allclose(again, wanted, rtol=1e-6, atol=1e-6)
