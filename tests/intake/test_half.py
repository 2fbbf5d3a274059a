"""Half-precision models become float32 ones that compute the same; what cannot be said of them is said.

The oracle is the float32 model whose weights were rounded by NumPy, run by onnxruntime.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.errors import ModelError
from quantpipe.graph.execute import Session
from quantpipe.graph.view import Graph
from quantpipe.intake import half
from tests.e2e.models import DIGITS
from tests.graph.outside_nets import conv_net
from tests.intake.half_models import BRAIN, FLOAT, HALF, rounded, to_half
from tests.ops.line import Net, load, normal_samples

KINDS = {HALF: "float16", BRAIN: "bfloat16"}


def with_rounded_weights(model: onnx.ModelProto, kind: int) -> onnx.ModelProto:
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for tensor in found.graph.initializer:
        if tensor.data_type == FLOAT:
            values = rounded(numpy_helper.to_array(tensor), kind).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return found


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(v) for v in session.run(None, feeds)]


def loaded(model: onnx.ModelProto) -> tuple[Graph, dict[str, np.ndarray]]:
    graph = load(model)
    return graph, dict(normal_samples(graph).inputs)


def vit_like() -> onnx.ModelProto:
    """Erf written out, Constant nodes and shape arithmetic, as an exporter leaves them."""
    return onnx.load(DIGITS.parent / "digits_vit.onnx")


def small(op: str, *more: str, opset: int = 17, **attributes: Any) -> onnx.ModelProto:
    """x -> op -> y, both float16 `[N, 4]`."""
    ports = [helper.make_tensor_value_info(n, HALF, ["N", 4]) for n in ("x", "y")]
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *more], ["y"], name="n", **attributes)], "g", ports[:1], ports[1:]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@pytest.mark.sliced(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["whole", "ends in float32", "mixed"])
def test_a_half_model_is_the_float32_model_with_rounded_weights(kind: int, how: str) -> None:
    original = onnx.load(DIGITS)
    options: dict[str, Any] = {"ends in float32": {"ends": False}, "mixed": {"single": {"Add", "Conv"}}}.get(how, {})
    graph, feeds = loaded(to_half(original, kind, **options))
    assert set(graph.dtypes.values()) == {"float32"}
    assert all(node.op != "Cast" for node in graph.nodes)
    expected = run(with_rounded_weights(original, kind), feeds)
    for name, wanted in zip(["logits"], expected, strict=True):
        np.testing.assert_allclose(Session(graph.model).run(feeds)[name], wanted, rtol=1e-4, atol=1e-4)
    assert any(f"the model is in {KINDS[kind]} (" in note for note in graph.notes)
    assert any("outputs are within" in note for note in graph.notes)
    half_ends = kind == HALF and how != "ends in float32"
    assert graph.given == ({"image": "float16", "logits": "float16"} if half_ends else {})


def test_a_float32_model_is_left_alone() -> None:
    graph, _ = loaded(onnx.load(DIGITS))
    assert not graph.given
    assert not any("float16" in note for note in graph.notes)


@pytest.mark.grid
@pytest.mark.parametrize("kind", KINDS)
def test_functions_are_recognized_by_constants_of_half_precision(kind: int) -> None:
    """√2 is 1.4141 in float16; a Gelu stays a Gelu."""
    reference, _ = loaded(vit_like())
    if kind == BRAIN:
        assert (np.sqrt(np.float32(2)) - 1.4140625) < 1e-3  # bfloat16 happens to be as near
    graph, _ = loaded(to_half(vit_like(), kind))
    assert [n.op for n in graph.nodes].count("Gelu") == [n.op for n in reference.nodes].count("Gelu") > 0


def test_constants_inside_branches_are_cast() -> None:
    def branch(value: float) -> onnx.GraphProto:
        constant = numpy_helper.from_array(np.full(4, value, np.float16))
        out = helper.make_tensor_value_info("b", HALF, [4])
        return helper.make_graph([helper.make_node("Constant", [], ["b"], value=constant)], "b", [], [out])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["i"], then_branch=branch(1.5), else_branch=branch(-2.5)),
        helper.make_node("Add", ["x", "i"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(n, HALF, ["N", 4]) for n in ("x", "y")]
    zero = numpy_helper.from_array(np.float16(0), "zero")
    model = helper.make_model(
        helper.make_graph(nodes, "g", ports[:1], ports[1:], [zero]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    graph, feeds = loaded(model)
    x = feeds["x"]
    added = 1.5 if x.sum() > 0 else -2.5
    np.testing.assert_array_equal(Session(graph.model).run(feeds)["y"], x + np.float32(added))


def test_weights_in_files_stay_in_files(tmp_path: Path) -> None:
    from tests.graph.outside_nets import read

    proto = conv_net(norms=False).proto()
    whole = load(to_half(proto))
    path = tmp_path / "net.onnx"
    onnx.save(to_half(proto), path, save_as_external_data=True, location="net.data", size_threshold=0)
    outside = read(path, 0)
    feeds = dict(normal_samples(whole).inputs)
    name = whole.outputs[0].name
    expected = Session(whole.model).run(feeds)[name]
    np.testing.assert_allclose(Session(outside.model).run(feeds)[name], expected, rtol=1e-4, atol=1e-5)


# --- what is said -------------------------------------------------------------------------------------------------


def test_a_wrong_cast_is_seen_on_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    widened = half._widened
    monkeypatch.setattr(half, "_widened", lambda *args: _scaled(widened(*args)))
    graph, _ = loaded(to_half(onnx.load(DIGITS)))
    assert any("This is more than rounding explains" in note for note in graph.notes)


def _scaled(tensor: Any) -> Any:
    import onnx_ir as ir

    return ir.tensor(tensor.numpy() * np.float32(1.2), name=tensor.name)


def test_a_model_that_overflows_in_half_precision_only() -> None:
    net = Net()
    x = net.node("Mul", net.input(None, 4), net.constant(np.float32(60000)))
    net.output(net.node("Mul", x, net.constant(np.float32(60000))))
    graph, _ = loaded(to_half(net.proto()))
    assert any("the model itself overflows" in n and "float16 ends at 65504" in n for n in graph.notes)


def test_weights_beyond_half_precision_are_refused_by_name() -> None:
    net = Net()
    net.output(net.node("MatMul", net.input(None, 4), net.constant(np.full((4, 2), 1e6, np.float32), "heavy")))
    with pytest.raises(ModelError) as error, np.errstate(over="ignore"):
        load(to_half(net.proto()))
    text = str(error.value)
    assert "'heavy'" in text and "float16 ends at 65504" in text and "\n" not in text


def test_an_infinite_mask_in_half_precision_is_no_fault() -> None:
    net = Net()
    x = net.node("Add", net.input(None, 4), net.constant(np.array([0, 0, 0, -np.inf], np.float32), "mask"))
    net.output(net.node("Softmax", x, axis=-1))
    graph, feeds = loaded(to_half(net.proto()))
    x64 = feeds["x"][:, :3].astype(np.float64)
    expected = np.exp(x64) / np.exp(x64).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(Session(graph.model).run(feeds)[graph.outputs[0].name][:, :3], expected, rtol=1e-5)


def test_bits_of_half_precision_are_refused() -> None:
    model = small("BitCast", opset=26, to=TensorProto.INT16)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT16
    with pytest.raises(ModelError, match="BitCast reinterprets the bits of a float16") as error:
        load(model)
    assert "node 'n'" in str(error.value)


def test_a_model_without_kernels_that_is_large_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantpipe.intake.half_check.SMALL_BYTES", 100)
    graph, _ = loaded(to_half(onnx.load(DIGITS), BRAIN))
    assert any("the bfloat16 model was not compared with its float32 form" in note for note in graph.notes)
