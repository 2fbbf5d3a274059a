"""Several forms of one plan: what a run writes, says, compares and files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import quantpipe
from quantpipe.app.chosen_forms import forms_of
from quantpipe.app.compose import option
from quantpipe.errors import AgreementError, ConfigError
from quantpipe.realize import BACKENDS
from quantpipe.realize.c import runner
from quantpipe.report import text
from tests.ops.line import Net, hardware

QUICK: dict[str, Any] = {
    "evaluate": {"agreement_samples": 8, "layer_samples": 4, "latency_runs": 1, "baseline": "none"}
}
needs_compiler = pytest.mark.skipif(runner.compiler() is None, reason=runner.missing_compiler())


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    net = Net(seed=5)
    x = net.input(None, 3, 8, 8)
    a = net.node("Relu", net.conv(x, 3, 4, 3, 3, pads=[1, 1, 1, 1]))
    b = net.node("Add", net.conv(a, 4, 4, 3, 3, pads=[1, 1, 1, 1]), a)
    net.output(net.dense(net.node("Flatten", net.node("GlobalAveragePool", net.node("Relu", b))), 4, 3))
    return net.proto()


@pytest.fixture(scope="module")
def samples() -> tuple[Any, Any]:
    rng = np.random.default_rng(2)
    return rng.integers(0, 255, (150, 3, 8, 8), np.uint8), rng.integers(0, 3, 150)


def run(model: Any, samples: Any, device: str, **options: Any) -> Any:
    data = {"preprocess": {"scale": "1/255", "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.25, 0.3]}}
    return quantpipe.quantize(model, samples, device, dataset=data, **QUICK, **options)


@pytest.mark.program
@needs_compiler
def test_all_forms_are_written_compared_and_told_in_one_line(model: Any, samples: Any, tmp_path: Path) -> None:
    result = run(model, samples, "ort_cpu", realize=["qdq", "integer", "c", "sidecars"], folder=tmp_path / "run")
    rows = {row["form"]: row for row in result.report["forms"]}
    assert list(rows) == ["qdq", "integer", "c", "sidecars"]
    assert [rows[f]["differing"] for f in rows] == [0, 0, 0, None]
    assert rows["sidecars"]["why_not"] and all(rows[f]["exact"] for f in rows)
    assert "qdq, integer, c: 0 differing in all of them" in str(result).replace("\n", " ")
    folder = tmp_path / "run" / "realize"
    for row in rows.values():
        assert (folder / row["file"]).is_file() and row["bytes"] > 0
    assert result.model_path == folder / "model.onnx"
    shipped = (folder / "SHIP.md").read_text()
    for name in ("model.onnx", "model.integer.onnx", "model.c", "encodings.json", "plan.json", "0.4, 0.5, 0.6"):
        assert name in shipped


RAW = "np.full((1, 3, 8, 8), 200.0)"
"""In place of the zeros that stand for a raw sample."""


@pytest.mark.program
@needs_compiler
@pytest.mark.parametrize(
    ("device", "forms"),
    [
        ("ort_cpu", ["qdq", "integer", "c", "sidecars", "qonnx"]),
        ("fbgemm", ["qoperator", "integer"]),
        ("tflite_int8", ["integer", "tflite", "tflite_integer_io"]),
        ("tflite_xnnpack", ["integer", "tflite"]),
        ("vta", ["integer", "vta", "qonnx", "qdq"]),
    ],
)
def test_the_code_in_ship_md_runs(
    device: str, forms: list[str], model: Any, samples: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every block runs in the folder as it stands, prepares a raw sample right, and gives what model.onnx gives."""
    result = run(model, samples, device, realize=forms, folder=tmp_path / "run", verify="warn")
    folder, rows = result.folder / "realize", {row["form"]: row for row in result.report["forms"]}
    shipped = (folder / "SHIP.md").read_text()
    monkeypatch.chdir(folder)
    sections = dict(re.findall(r"## Run (\S+)\n(.*?)(?=\n## |\Z)", shipped, re.S))
    prepared = (200.0 / 255 - np.reshape([0.4, 0.5, 0.6], (3, 1, 1))) / np.reshape([0.2, 0.25, 0.3], (3, 1, 1))
    x = np.broadcast_to(prepared, (1, 3, 8, 8)).astype(np.float32)
    (wanted,) = ort.InferenceSession("model.onnx").run(None, {"x": x})
    name, q = model.graph.output[0].name, result.plan
    for form in forms:
        (block,) = re.findall(r"```python\n(.*?)```", sections[rows[form]["file"]], re.S)
        code = re.sub(r"np\.zeros\(\(1, 3, 8, 8\)\)", RAW, block)
        assert len(block.splitlines()) <= (12 if form == "sidecars" else 8)
        known: dict[str, Any] = {}
        exec(block, dict(known))  # as it stands
        exec(code, known)
        if form == "vta":
            assert len(known["instructions"]) == rows[form]["facts"]["instructions"] and known["memory"].any()
            continue
        assert code != block
        if form == "sidecars":  # onnxruntime's own tool, by the plan's scales; it rounds more tensors
            known["outputs"] = ort.InferenceSession("model.ort.onnx").run(None, {"x": x})
        found = known["outputs"]
        found = np.asarray(found[name] if not isinstance(found, list) else found[0])
        if form in ("c", "tflite_integer_io"):
            held = q.quantizers.get(name)
            scale, zero = (q.raw_scales[name], 0) if held is None else (held.scale, held.zero_point)
            found = (found.astype(np.float32) - zero) * scale
        loose = form == "sidecars" or not rows[form]["exact"]
        assert np.allclose(found.reshape(wanted.shape), wanted, atol=0.05 if loose else 1e-6), form


def test_files_say_what_they_are_made_of(model: Any, samples: Any, tmp_path: Path) -> None:
    result = run(model, samples, "vta", folder=tmp_path / "run")
    proto = onnx.load(result.model_path)
    stored = {p.key: p.value for p in proto.metadata_props}
    assert (proto.producer_name, proto.producer_version) == ("quantpipe", quantpipe.__version__)
    for key in ("model", "strategy", "hardware_digest"):
        assert stored[f"quantpipe.{key}"].startswith("sha256:")
    assert stored["quantpipe.hardware"] == "vta" and stored["quantpipe.form"] == "integer"
    assert json.loads(stored["quantpipe.preprocessing"])["mean"] == [0.4, 0.5, 0.6]
    ports = json.loads(stored["quantpipe.inputs"])["x"]
    q = result.plan.quantizers["x"]
    assert (ports["scale"], ports["zero_point"], ports["stored"]) == (float(q.scale), 0, "int8")
    assert json.loads(stored["quantpipe.outputs"])
    onnx.checker.check_model(proto, full_check=True)


def test_the_opset_is_the_least_that_the_nodes_need(model: Any, samples: Any) -> None:
    result = run(model, samples, "ort_cpu")
    found = onnx.load(result.model_path)
    (opset,) = [o.version for o in found.opset_import if o.domain == ""]
    needed = max(onnx.defs.get_schema(n.op_type, max_inclusive_version=opset).since_version for n in found.graph.node)
    assert opset == max(needed, 13) < 17
    lower = onnx.ModelProto()
    lower.CopyFrom(found)
    lower.opset_import[0].version = needed - 1
    with pytest.raises(Exception):  # noqa: B017  (the checker has several)
        onnx.checker.check_model(lower, full_check=True)
        ort.InferenceSession(lower.SerializeToString())


@pytest.mark.program
@needs_compiler
def test_a_fault_in_the_second_form_ends_the_run(
    model: Any, samples: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from quantpipe.realize.c import narrow

    own = narrow.narrowed
    monkeypatch.setattr("quantpipe.realize.c.sums.narrowed", lambda *a, **k: f"(({own(*a, **k)}) ^ 1)")
    with pytest.raises(AgreementError, match=r"model\.c does not hold the searched integers"):
        run(model, samples, "ort_cpu", realize=["qdq", "c"], folder=tmp_path / "run")
    again = run(model, samples, "ort_cpu", realize=["qdq", "c"], folder=tmp_path / "warned", verify="warn")
    assert again.report["forms"][1]["differing"] > 0
    assert "differ" in str(text.forms(again.report["forms"]))


@pytest.mark.program
def test_a_missing_compiler_is_a_warning(model: Any, samples: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    found = run(model, samples, "ort_cpu", realize=["qdq", "c"])
    assert found.report["forms"][1]["why_not"] and found.report["forms"][1]["differing"] is None
    assert any("no C compiler" in warning for warning in found.warnings)


@pytest.mark.program
def test_q_dq_of_a_device_that_shifts_is_counted_and_decides_nothing(model: Any, samples: Any) -> None:
    found = run(model, samples, "vta", realize=["integer", "qdq"])
    row = found.report["forms"][1]
    assert row["form"] == "qdq" and not row["exact"] and row["differing"] > 0 and "shift" in row["inexact"]
    assert found.report["agreement"]["differing"] == 0
    assert any("does not compute exactly" in warning for warning in found.warnings)
    with pytest.raises(ConfigError, match=r"realize=\[integer,qdq\]"):
        run(model, samples, "vta", realize="qdq")
    warned = run(model, samples, "vta", realize="qdq", verify="warn")
    assert [row["form"] for row in warned.report["forms"]] == ["integer", "qdq"]


@pytest.mark.program
def test_q_dq_for_tensorrt_fuses_residual_adds(model: Any, samples: Any) -> None:
    with pytest.raises(ConfigError, match=r"only loads as float.*realize=\[integer,qdq\]"):
        run(model, samples, "tensorrt", realize="qdq")
    found = run(model, samples, "tensorrt", realize=["integer", "qdq"])
    row = found.report["forms"][1]
    assert not row["exact"] and row["elements"] and row["differing"] is not None
    written = onnx.load(found.folder / "realize" / row["file"])
    made = {o: n for n in written.graph.node for o in n.output}
    kinds = {i.name: i.data_type for i in written.graph.initializer}
    for node in written.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            assert kinds[node.input[2]] == onnx.TensorProto.INT8, "no other integers"
            zero = next(i for i in written.graph.initializer if i.name == node.input[2])
            assert not np.any(onnx.numpy_helper.to_array(zero)), "zero points nowhere"
        elif node.op_type == "Add":
            assert sorted(made[i].op_type for i in node.input) == ["Conv", "DequantizeLinear"]
        elif node.op_type not in ("Flatten",):
            ends = {made[i].op_type for i in node.input if i in made}
            assert node.op_type in ("Conv", "Relu", "Clip", "Gemm", "GlobalAveragePool"), node.op_type
            assert ends <= {"DequantizeLinear", "Conv", "Add", "Relu", "Gemm"}, ends


def test_the_form_of_model_onnx_is_the_first_exact_one() -> None:
    spec = hardware("ort_cpu")
    assert forms_of({"backend": "c", "forms": {"c": True, "qdq": True}}, spec, verify="fail") == ("qdq", "c")
    assert forms_of({"backend": "c", "forms": {"c": True}}, spec, verify="fail") == ("integer", "c")
    assert forms_of({"backend": "qoperator", "forms": {"auto": True}}, spec, verify="fail") == ("qoperator",)
    assert forms_of({"backend": "auto", "forms": {"auto": True}}, spec, verify="fail") == ("qdq",)
    assert forms_of({"backend": "qdq", "forms": ["integer", "qdq"]}, spec, verify="fail") == ("integer", "qdq")
    vta = hardware("vta")
    assert forms_of({"backend": "qdq", "forms": {"qdq": True, "c": True}}, vta, verify="warn") == (
        "integer",
        "qdq",
        "c",
    )
    with pytest.raises(ConfigError, match="legal are"):
        forms_of({"backend": "x", "forms": {"auto": True}}, spec, verify="fail")
    with pytest.raises(ConfigError, match="legal is a mapping"):
        forms_of({"backend": "qdq", "forms": 3}, spec, verify="fail")


@pytest.mark.parametrize("form", [*BACKENDS, "c", "sidecars", "auto"])
def test_every_form_is_an_option_that_names_itself(form: str) -> None:
    content = option("realize", form)
    assert content == {"backend": form, "forms": {form: True}}
