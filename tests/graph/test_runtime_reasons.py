"""onnxruntime's refusals: a sentence of ours with the node or the input, and its own text as the cause."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.errors import ModelError
from quantpipe.graph.execute import Session
from quantpipe.graph.runtime_reasons import lacks_kernel, runtime_reason

MATRIX, LONG = np.zeros((3, 3), np.float32), np.zeros(3, np.float32)
RAW = ("ONNXRuntimeError", "onnxruntime_src", "Status Message", "no description here")


def refusal(op: str, *constants: Any, feeds: Any = None, shape: Any = ("a", "b"), opset: int = 17, **more: Any) -> str:
    """What a session gives of one node of `op` on x [2, 2] and constants, and the sign that the cause is kept."""
    names = [f"c{number}" for number in range(len(constants))]
    output, domain = more.pop("output", TensorProto.FLOAT), more.pop("domain", "")
    node = helper.make_node(op, ["x", *more.pop("between", ()), *names], ["y"], name="odd", domain=domain, **more)
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", output, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in zip(names, constants, strict=True)],
    )
    domains = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=domains, ir_version=10)
    with pytest.raises(ModelError) as caught:
        Session(model.SerializeToString()).run({"x": np.zeros((2, 2), np.float32)} if feeds is None else feeds)
    assert caught.value.__cause__ is not None
    assert not any(sign in str(caught.value) for sign in RAW), caught.value
    return str(caught.value)


@pytest.mark.parametrize(
    ("op", "constants", "options", "said"),
    [
        ("Convolve", (), {}, "the op Convolve is unknown to it at opset 17"),
        ("Foo", (), {"domain": "my.own"}, "the op Foo of the domain 'my.own' is unknown"),
        ("Foo", (), {"domain": "com.microsoft"}, "the op Foo"),
        ("Softmax", (), {"axis": "one"}, "node 'odd' (Softmax) has the attribute axis of another type"),
        ("LRN", (), {}, "node 'odd' (LRN) lacks the attribute size"),
        ("Relu", (), {"foo": 3}, "node 'odd' (Relu) has the attribute foo, which the op does not have"),
        ("Add", (), {}, "node 'odd' (Add) has another number of inputs"),
        ("And", (LONG,), {}, "node 'odd' (And) does not take tensor(float)"),
        ("Size", (), {}, "the file declares y as tensor(float), but its node computes tensor(int64)"),
        ("Add", (LONG.astype(np.float64),), {}, "node 'odd' (Add) has inputs of the types"),
        ("Transpose", (), {"perm": [0, 1, 2]}, "node 'odd' (Transpose): its attributes, bodies and inputs do not fit"),
        ("Add", (LONG,), {}, "node 'odd' (Add) fails on the sample: sizes 2 and 3 of an axis do not broadcast"),
        ("MatMul", (MATRIX,), {}, "data and weight differ in the size"),
        ("Gemm", (MATRIX,), {}, "data and weight differ in the size"),
        ("Reshape", (np.array([3, 5]),), {}, "a tensor of shape [2,2] cannot be reshaped to [3,5]"),
        ("Gather", (np.array([9]),), {}, "an index is outside the tensor"),
        ("Expand", (np.array([3, 3]),), {}, "node 'odd' (Expand) fails on the sample: the shapes or values"),
        ("Concat", (MATRIX,), {"axis": 1}, "have the sizes 3 and 2 on another axis"),
        ("Relu", (), {"feeds": {"x": np.zeros((2, 2, 2), np.float32)}}, "input x has 3 axes instead of 2"),
        ("Relu", (), {"shape": [2, 3]}, "the sample's input x has 2 instead of 3 on axis 1"),
        ("Relu", (), {"feeds": {"x": np.zeros((2, 2))}}, "has the type tensor(double) instead of tensor(float)"),
        ("Relu", (), {"feeds": {}}, "the sample lacks the inputs x"),
        ("Add", (), {"between": ["nothing"]}, "a node reads a tensor that no earlier node, input or constant gives"),
        ("Relu", (), {"opset": 99}, "the file has an opset newer than onnxruntime's"),
        ("Sign", (), {"opset": 5}, "the op Sign is unknown to it at opset 5"),
        (
            "GRU",
            (np.zeros((1, 12, 3), np.float32), np.zeros((1, 12, 4), np.float32)),
            {"hidden_size": 4, "shape": ["t", "n", 3], "feeds": {"x": np.zeros((5, 2, 2), np.float32)}},
            "the sample's input x has 2 instead of 3 on axis 2",
        ),
    ],
)
def test_a_refusal_names_the_place(op: str, constants: Any, options: Any, said: str) -> None:
    assert said in refusal(op, *constants, **options)


def test_an_initial_state_of_another_batch_names_the_option() -> None:
    weights = {"w": np.zeros((1, 12, 3), np.float32), "r": np.zeros((1, 12, 4), np.float32)}
    graph = helper.make_graph(
        [helper.make_node("GRU", ["x", "w", "r", "", "", "h"], ["y"], hidden_size=4, name="gru")],
        "graph",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", "tn3"), ("h", "lm4"))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    for value in graph.input:
        value.type.tensor_type.shape.dim[2].dim_value = int(value.type.tensor_type.shape.dim[2].dim_param)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    session = Session(model.SerializeToString())
    with pytest.raises(ModelError, match=r"initial_h has the shape \[1,4,4\] instead of \[1,2,4\]; model.fixed="):
        session.run({"x": np.zeros((5, 2, 3), np.float32), "h": np.zeros((1, 4, 4), np.float32)})


def test_a_kind_without_a_sentence_points_to_the_log() -> None:
    assert "main.log has its own text" in runtime_reason(ValueError("[ONNXRuntimeError] : 77 : NEVER SEEN"))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("No corresponding Numpy type for Tensor Type. Float8E5M2", "an output has the type Float8E5M2"),
        ("Numpy_type 272 can't be converted to MLDataType.", "an input has a type of which onnxruntime takes no"),
        (
            "INVALID_ARGUMENT : input with name: 'x' expected to be of type: 3 but received a tensor",
            "input x is a seq",
        ),
        ("Unsupported model IR version: 99, max supported IR version: 14", "has IR version 99"),
        ("Error: the graph is not acyclic.", "its nodes form a circle"),
    ],
)
def test_texts_of_other_values_and_files(raw: str, said: str) -> None:
    assert said in runtime_reason(RuntimeError(raw))


def test_a_missing_kernel_is_found_in_the_causes() -> None:
    outer = ModelError("onnxruntime cannot load it", stage="run")
    outer.__cause__ = ValueError("NOT_IMPLEMENTED : Could not find an implementation for Celu(12)")
    assert lacks_kernel(outer) and not lacks_kernel(ModelError("other", stage="run"))


def test_a_damaged_file_is_named() -> None:
    with pytest.raises(ModelError, match="the file is damaged or no ONNX model"):
        Session(b"a letter")


def test_the_checked_sets_hold_no_raw_text() -> None:
    """An example of each sentence that needs a whole graph."""
    relu = [helper.make_node("Relu", ["x"], ["y"], name=n) for n in "ab"]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xyq"]
    for nodes, output, said in (
        (relu, ports[1], "several nodes or inputs of the file have the result y"),
        (relu[:1], ports[2], "no node computes the output q"),
    ):
        model = helper.make_model(helper.make_graph(nodes, "graph", ports[:1], [output]))
        model.ir_version = 10
        model.opset_import[0].version = 17
        with pytest.raises(ModelError, match=said):
            Session(onnx.ModelProto.SerializeToString(model))
