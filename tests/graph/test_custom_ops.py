"""Libraries of custom ops: registered with every session, and named by the error where one is missing."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantpipe
from quantpipe.errors import ConfigError, ModelError
from quantpipe.graph import custom_ops
from quantpipe.graph.load import load_graph

DOMAIN = "ai.onnx.contrib"
X = np.random.default_rng(0).standard_normal((64, 3, 8, 8)).astype(np.float32)


@pytest.fixture(autouse=True)
def none_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_ops, "_USED", {})


def net(
    nodes: list[onnx.NodeProto], domain: str, features: list[int], held: dict[str, np.ndarray[Any, Any]]
) -> onnx.ModelProto:
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", ["n", *features]), ("y", None))]
    constants = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in held.items()]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], constants)
    domains = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 3 if domain == "ai.onnx.ml" else 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def contrib() -> onnx.ModelProto:
    """Return two convolutions around an op of onnxruntime-extensions."""
    rng = np.random.default_rng(1)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        helper.make_node("NegPos", ["a"], ["n", "p"], domain=DOMAIN),
        helper.make_node("Sub", ["p", "n"], ["s"]),
        helper.make_node("Conv", ["s", "v"], ["y"]),
    ]
    held = {"w": rng.standard_normal((8, 3, 3, 3)), "v": rng.standard_normal((4, 8, 1, 1))}
    return net(nodes, DOMAIN, [3, 8, 8], held)


def test_the_op_stays_in_float_between_integers(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_extensions")
    onnx.save(contrib(), tmp_path / "m.onnx")
    dataset = {"samples": {"calibrate": 16, "search": 16, "evaluate": 16}}
    result = quantpipe.quantize(tmp_path / "m.onnx", X, custom_ops="onnxruntime_extensions", dataset=dataset)
    assert result.report["agreement"]["differing"] == 0
    assert "NegPos" in str(result.report["float_nodes"])


def test_every_session_registers_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "ops.so"
    library.write_bytes(b"ops")
    seen: list[str] = []
    monkeypatch.setattr(ort.SessionOptions, "register_custom_ops_library", lambda options, path: seen.append(path))
    custom_ops.use_custom_ops([str(library), str(library)])
    onnx.save(net([helper.make_node("Relu", ["x"], ["y"])], "", [3], {}), tmp_path / "m.onnx")
    graph = load_graph(tmp_path / "m.onnx", lambda g: {"x": X[:4, :, 0, 0]}, isolate=False)
    assert set(seen) == {str(library)}
    make, arguments = graph.__reduce__()
    monkeypatch.setattr(custom_ops, "_USED", {})
    make(*arguments)  # as in another process
    assert custom_ops.custom_ops() == (str(library),)


def test_a_package_names_its_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = ModuleType("our_ops")
    package.get_library_path = lambda: str(tmp_path / "ours.so")  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "our_ops", package)
    custom_ops.use_custom_ops(["our_ops"])
    assert custom_ops.custom_ops() == (str(tmp_path / "ours.so"),)


@pytest.mark.parametrize(
    ("name", "found"), [("lib/none.so", "there is no such file"), ("json", "no installed package with a function")]
)
def test_a_library_that_is_not_there_is_named(name: str, found: str) -> None:
    with pytest.raises(ConfigError, match=f"model.custom_ops: names '{name}'.*{found}"):
        custom_ops.use_custom_ops([name])


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    library = tmp_path / "text.so"
    library.write_text("no library")
    custom_ops.use_custom_ops([str(library)])
    onnx.save(net([helper.make_node("Relu", ["x"], ["y"])], "", [3], {}), tmp_path / "m.onnx")
    with pytest.raises(ConfigError, match=r"model\.custom_ops: names .*text\.so, which onnxruntime cannot register"):
        load_graph(tmp_path / "m.onnx", lambda g: {"x": X[:4, :, 0, 0]}, isolate=False)


@pytest.mark.parametrize("value", [3, [""], {"a": 1}])
def test_values_of_another_kind_are_refused(value: Any, tmp_path: Path) -> None:
    onnx.save(contrib(), tmp_path / "m.onnx")
    with pytest.raises(ConfigError, match=r"model\.custom_ops"):
        quantpipe.quantize(tmp_path / "m.onnx", X, custom_ops=value)


def test_without_the_library_the_key_is_named(tmp_path: Path) -> None:
    onnx.save(contrib(), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"NegPos.*is not a registered.*library that model\.custom_ops names"):
        load_graph(tmp_path / "m.onnx", lambda g: {"x": X})


def test_ops_of_ai_onnx_ml_stay_and_the_rest_is_cleaned(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    nodes = [
        helper.make_node("Scaler", ["x"], ["s"], domain="ai.onnx.ml", offset=[0.5] * 16, scale=[2.0] * 16),
        helper.make_node("Gemm", ["s", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Normalizer", ["r"], ["n"], domain="ai.onnx.ml", norm="L2"),
        helper.make_node("Gemm", ["n", "v"], ["y"]),
    ]
    held = {"w": rng.standard_normal((16, 32)), "v": rng.standard_normal((32, 4))}
    onnx.save(net(nodes, "ai.onnx.ml", [16], held), tmp_path / "m.onnx")
    graph = load_graph(tmp_path / "m.onnx", lambda g: {"x": X.reshape(64, -1)[:, :16].copy()})
    assert [n.op for n in graph.nodes] == ["Scaler", "Gemm", "Relu", "Normalizer", "Gemm"]
    assert not graph.notes


def test_the_code_that_loads_a_file_registers_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from quantpipe.realize.deployment import how_to_run, loading_code
    from tests.ops.line import Net, hardware, load

    net = Net(1)
    net.output(net.node("Relu", net.input(None, 3), name="relu"))
    graph, spec = load(net), hardware("ort_cpu")
    assert "register" not in loading_code("model.onnx", {}, graph, {}) + how_to_run("model.onnx", {}, spec)
    monkeypatch.setattr(custom_ops, "_USED", {str(tmp_path / "ours.so"): None})
    assert 'options.register_custom_ops_library("ours.so")' in loading_code("model.onnx", {}, graph, {})
    assert "the custom ops of ours.so registered" in how_to_run("model.onnx", {}, spec)
