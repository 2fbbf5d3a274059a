"""Ops that ONNX defines by functions: written out where rules then see inside, or where onnxruntime has no kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from quantpipe.errors import ModelError
from quantpipe.graph.execute import Session
from quantpipe.graph.op_tables import WRITTEN_OUT
from quantpipe.graph.view import Graph
from quantpipe.intake import runnable
from quantpipe.intake.load import load_graph
from quantpipe.intake.opsets import raise_to
from quantpipe.intake.rewrites import DECLARED
from quantpipe.oprules import OP_RULES
from tests.ops.line import line, with_products

Array = np.ndarray


def values(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


Shapes = dict[str, list[int | None]]


def model(
    opset: int, nodes: list[onnx.NodeProto], inputs: Shapes, constants: dict[str, Array] | None = None
) -> onnx.ModelProto:
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", *s[1:]]) for n, s in inputs.items()]
    out = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    held = [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(nodes, "net", ports, out, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8 if opset < 21 else 10)


def node(op: str, *inputs: str, output: str = "y", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [output], name=op.lower(), **attributes)


QKV = {n: [None, 5, 8] for n in "qkv"}
CASES = {
    "attention": model(23, [node("Attention", "q", "k", "v", q_num_heads=2, kv_num_heads=2, is_causal=1)], QKV),
    "attention of four axes": model(
        24, [node("Attention", "q", "k", "v", scale=0.3)], {n: [None, 2, 5, 4] for n in "qkv"}
    ),
    "rotary": model(
        23,
        [node("RotaryEmbedding", "q", "cos", "sin", "ids")],
        {"q": [None, 2, 5, 8]},
        {"cos": values(6, 4), "sin": values(6, 4), "ids": np.tile(np.arange(5), (3, 1))},
    ),
    "swish": model(24, [node("Swish", "q", alpha=1.5)], {"q": [None, 8]}),
    "groups": model(
        21,
        [node("GroupNormalization", "q", "g", "b", num_groups=2)],
        {"q": [None, 4, 5, 5]},
        {"g": values(4), "b": values(4)},
    ),
}  # fmt: skip


def feeds(proto: onnx.ModelProto) -> dict[str, Array]:
    dims = {i.name: [d.dim_value or 3 for d in i.type.tensor_type.shape.dim] for i in proto.graph.input}
    return {name: values(*shape) for name, shape in dims.items()}


def loaded(proto: onnx.ModelProto, folder: Path) -> Graph:
    onnx.save(proto, folder / "net.onnx")
    return load_graph(folder / "net.onnx", lambda graph: feeds(proto), isolate=False)


def outputs(graph: Graph, given: dict[str, Array]) -> Array:
    return Session(graph.model).run(given)["y"]


@pytest.mark.parametrize("name", CASES)
def test_a_function_is_written_out_and_gives_the_same(name: str, tmp_path: Path) -> None:
    proto = CASES[name]
    graph = loaded(proto, tmp_path)
    assert not graph.notes
    assert WRITTEN_OUT.isdisjoint(n.op for n in graph.nodes)
    owner = proto.graph.node[0].name
    assert any(n.name == owner or n.name.startswith(f"{owner}/") for n in graph.nodes)
    (wanted,) = ReferenceEvaluator(proto).run(None, feeds(proto))
    np.testing.assert_allclose(outputs(graph, feeds(proto)), wanted, rtol=1e-4, atol=1e-5)


def test_no_op_with_a_rule_is_written_out() -> None:
    """But those that are joined again where a device declares them."""
    assert WRITTEN_OUT.difference(DECLARED).isdisjoint(OP_RULES)


def test_products_of_an_attention_run_in_integers(tmp_path: Path) -> None:
    """Without the products before it, nothing would give it integers."""
    projections = [node("MatMul", n, f"w{n}", output=f"{n}_") for n in "qkv"]
    heads = {"q_num_heads": 2, "kv_num_heads": 2}
    held = {f"w{n}": values(8, 8) for n in "qkv"}
    proto = model(23, [*projections, node("Attention", "q_", "k_", "v_", **heads)], QKV, held)
    graph = loaded(proto, tmp_path)
    made = line(graph, with_products())
    products = [k.op for k in made.topology.kernels if k.op == "MatMul"]
    assert len(products) == 5
    assert made.agree(made.plan(8), "qdq").differing == 0


def test_an_op_without_a_kernel_goes_by_its_function(tmp_path: Path) -> None:
    """onnxruntime 1.32 knows no SwiGLU; the body holds a Swish, which has a body in turn."""
    proto = model(28, [node("Swish", "q", output="s"), node("SwiGLU", "s", "k")], {"q": [None, 8], "k": [None, 8]})
    graph = loaded(proto, tmp_path)
    assert {"Sigmoid", "Mul"} <= {n.op for n in graph.nodes}
    (note,) = graph.notes
    assert "SwiGLU" in note and "since onnxruntime does not run it as it is" in note


def test_an_op_with_neither_is_refused_by_name(tmp_path: Path) -> None:
    proto = model(17, [node("Nothing", "q")], {"q": [None, 8]})
    with pytest.raises(ModelError) as caught:
        loaded(proto, tmp_path)
    assert "Nothing" in str(caught.value) and "Legal are" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("opset", range(1, 7))
def test_the_first_opsets_are_converted(opset: int, tmp_path: Path) -> None:
    """onnxruntime has no Relu of opset 1 to 5, and no Add of 6."""
    nodes = [node("Conv", "q", "w", "b", output="c", kernel_shape=[3, 3]), node("Relu", "c", output="r")]
    nodes.append(node("MaxPool", "r", output="p", kernel_shape=[2, 2], strides=[2, 2]))
    nodes.append(node("Add", "p", "p") if opset == 6 else node("Sigmoid", "p"))
    constants = {"w": values(4, 3, 3, 3), "b": values(4)}
    proto = model(opset, nodes, {"q": [None, 3, 8, 8]}, constants)
    graph = loaded(proto, tmp_path)
    assert graph.opset >= 17 and graph.inputs[0].shape[0] is None
    (note,) = graph.notes
    assert f"from opset {opset} to 17" in note
    (wanted,) = ReferenceEvaluator(model(17, nodes, {"q": [None, 3, 8, 8]}, constants)).run(None, feeds(proto))
    np.testing.assert_allclose(outputs(graph, feeds(proto)), wanted, rtol=1e-4, atol=1e-5)
    made = line(graph)
    assert made.agree(made.plan(8), "qdq").differing == 0


def test_a_written_out_function_is_compared_with_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A converter that changes what a model computes is found."""
    nodes = [node("Relu", "q", output="r"), node("Sigmoid", "r")]

    def wrong(given: ir.Model, least: int) -> ir.Model:
        newer = raise_to(given, least)
        next(n for n in newer.graph if n.op_type == "Sigmoid").op_type = "Tanh"
        return newer

    monkeypatch.setattr(runnable, "raise_to", wrong)
    with pytest.raises(ModelError, match="differ from onnx"):
        loaded(model(5, nodes, {"q": [None, 8]}), tmp_path)
