"""Libraries of custom ops: registered with every session, and named by the error where one is missing."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantpipe
from quantpipe.app.explain import settings_of_run
from quantpipe.app.model_options import refuse_custom_ops, refuse_custom_ops_of_run
from quantpipe.errors import ConfigError, ModelError
from quantpipe.graph import custom_ops
from quantpipe.intake.load import load_graph
from quantpipe.version import __version__
from tests.app.configured import settings_of

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
    with pytest.raises(ModelError, match=r"NegPos.*is unknown to it.*library that model\.custom_ops names"):
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


@pytest.mark.parametrize("given", ["own.so", ["a.so", "own_package"]])
def test_only_the_command_line_allows_a_library(given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library runs code when it is loaded: an option or an experiment from elsewhere must not name one."""
    monkeypatch.chdir(tmp_path)
    for name in ("own.so", "a.so"):
        Path(name).write_bytes(b"no library")
    Path("own_package.py").write_text("raise AssertionError('nothing of it is run before it is allowed')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"^model\.custom_ops: is .* in a configuration file, but only the command"):
        refuse_custom_ops(given, ["model=digits", "model.fixed.custom_ops=3"])
    refuse_custom_ops(given, [f"++model.custom_ops={given}"])
    refuse_custom_ops(None, [])
    with pytest.raises(ConfigError, match=r"^runs: the run was made with model\.custom_ops="):
        refuse_custom_ops_of_run(given, tmp_path, "runs")
    assert not custom_ops.custom_ops()


def test_settings_with_a_library_of_a_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantpipe.app.settings.overrides_of", lambda _: ["model=digits"])
    with pytest.raises(ConfigError, match="only the command line may allow code"):
        settings_of("model=digits", f"model.custom_ops={tmp_path}/own.so")


def test_a_run_s_folder_names_no_library(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: {custom_ops: own.so}\ndataset: {_target_: x}\n")
    (tmp_path / "evaluate").mkdir()
    (tmp_path / "evaluate" / "report.json").write_text(json.dumps({"version": __version__}))
    with pytest.raises(ConfigError, match=r"^explain\.run: the run was made with model\.custom_ops=own\.so"):
        settings_of_run(tmp_path, plugins=[])
