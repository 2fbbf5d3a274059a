"""What realized files say of themselves, read back by the readers of their formats and held against the run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from PIL import Image

import quantpipe
from quantpipe.artifacts import digest_json
from quantpipe.data import ImageFolderDataset
from quantpipe.intake.tflite import litert
from tests.ops.line import Net
from tests.realize.test_many_forms import QUICK

CLASSES = ("ant", "bee", "cat")
PREPROCESS = {"scale": 1 / 255, "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.25, 0.3]}
SPLITS = {"calibrate": 24, "search": 24, "evaluate": 24}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run over pictures in folders that name their classes, with a file of every form."""
    why = litert.missing()
    if why is not None:
        assert os.environ.get("CI") != "true", why
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("read_back")
    net = Net(seed=5)
    a = net.node("Relu", net.conv(net.input(None, 3, 8, 8), 3, 4, 3, 3, pads=[1, 1, 1, 1]))
    net.output(net.dense(net.node("Flatten", net.node("GlobalAveragePool", a)), 4, len(CLASSES)))
    onnx.save(net.proto(), folder / "model.onnx")
    rng = np.random.default_rng(0)
    for name in CLASSES:
        (folder / "pictures" / name).mkdir(parents=True)
        for number in range(30):
            picture = Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8))
            picture.save(folder / "pictures" / name / f"{number}.png")
    data = ImageFolderDataset(path=str(folder / "pictures"), samples=SPLITS, preprocess=PREPROCESS)
    forms = ["integer", "qdq", "qonnx", "sidecars", "tflite", "tflite_integer_io"]
    options: dict[str, Any] = {"realize": forms, "verify": "warn", "folder": folder / "run", **QUICK}
    return folder / "model.onnx", quantpipe.quantize(folder / "model.onnx", data, "tflite_int8", **options)


def of_onnx(path: Path) -> tuple[dict[str, str], dict[str, tuple[float, int]]]:
    """The entries of a file's metadata, and the grids that its nodes at the ends have: port -> (scale, zero point)."""
    proto = onnx.load(path)
    constants = {i.name: onnx.numpy_helper.to_array(i) for i in proto.graph.initializer}
    ends = {v.name for v in (*proto.graph.input, *proto.graph.output)}
    grids = {}
    for node in proto.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear", "Quant"):
            for port in ends & {node.input[0], *node.output}:
                grids[port] = float(constants[node.input[1]]), int(constants[node.input[2]])
    stored = {p.key.removeprefix("quantpipe."): p.value for p in proto.metadata_props}
    assert all(p.key.startswith("quantpipe.") for p in proto.metadata_props)
    return stored, grids


def of_tflite(path: Path) -> tuple[dict[str, str], dict[str, tuple[float, int]]]:
    """The same of a .tflite file, whose grids stand at its tensors."""
    model = litert.schema().Model.GetRootAs(path.read_bytes())
    entries = {model.Metadata(n).Name(): model.Metadata(n).Buffer() for n in range(model.MetadataLength())}
    told = json.loads(model.Buffers(entries[b"quantpipe"]).DataAsNumpy().tobytes())
    grids = {}
    for name in (*told["inputs"], *told["outputs"]):  # behind QUANTIZE, where the file takes real numbers
        of = model.Subgraphs(0).Tensors(told["tensors"][name]["index"]).Quantization()
        assert (of.ScaleLength(), of.ZeroPointLength()) == (1, 1)
        grids[name] = float(of.Scale(0)), int(of.ZeroPoint(0))
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in told.items()}, grids


Read = Callable[[Path], tuple[dict[str, str], dict[str, tuple[float, int]]]]
FILES: dict[str, Read] = {
    "integer": of_onnx,
    "qdq": of_onnx,
    "qonnx": of_onnx,
    "sidecars": of_onnx,
    "tflite": of_tflite,
    "tflite_integer_io": of_tflite,
}


@pytest.mark.parametrize("form", FILES)
def test_a_file_says_what_it_was_made_of(form: str, finished: Any) -> None:
    source, result = finished
    row = next(row for row in result.report["forms"] if row["form"] == form)
    stored, grids = FILES[form](result.folder / "realize" / row["file"])
    assert (stored["version"], stored["form"], stored["hardware"]) == (quantpipe.__version__, form, "tflite_int8")
    # Digests: of the file that was given, of the strategy and the device that plan.json was made of.
    origin = json.loads((result.folder / "realize" / "plan.json").read_text())["origin"]
    assert stored["model"] == f"sha256:{hashlib.sha256(source.read_bytes()).hexdigest()}" == origin["inputs"]["model"]
    assert stored["strategy"] == origin["inputs"]["strategy"]
    assert stored["hardware_digest"] == digest_json(origin["config"]["hardware"])
    # What is done to a picture, and what the outputs are called.
    preprocessing = json.loads(stored["preprocessing"])
    assert {name: preprocessing[name] for name in PREPROCESS} == PREPROCESS and preprocessing["layout"] == "NCHW"
    assert json.loads(stored["class_names"]) == list(CLASSES)
    # Scales and zero points: those of the plan, and those of the file's own nodes.
    ports = json.loads(stored["inputs"]) | json.loads(stored["outputs"])
    assert set(ports) == {"x", "gemm1_out"}
    for name, port in ports.items():
        q = result.plan.quantizers[name]
        assert (port["scale"], port["zero_point"]) == (float(q.scale), q.zero_point)
        assert port["range"] == [q.qmin, q.qmax]
    assert set(grids) == (set() if form == "sidecars" else set(ports)), "model.float.onnx stores no integers"
    for name, (scale, zero) in grids.items():
        assert (ports[name]["scale"], ports[name]["zero_point"]) == (scale, zero), name


@pytest.mark.parametrize("form", ["integer", "tflite_integer_io"])
def test_a_raw_picture_reaches_the_integers_that_the_file_tells_of(form: str, finished: Any) -> None:
    """Whoever has nothing but the file: a picture through its preprocessing and scales, classes by its names."""
    _, result = finished
    row = next(row for row in result.report["forms"] if row["form"] == form)
    path = result.folder / "realize" / row["file"]
    stored, _ = FILES[form](path)
    how, port = json.loads(stored["preprocessing"]), json.loads(stored["inputs"])["x"]
    raw = np.random.default_rng(9).integers(0, 256, (1, 8, 8, 3)).astype(np.float32)
    real = (raw * how["scale"] - np.array(how["mean"])) / np.array(how["std"])
    if form == "integer":
        found = outputs(path, real)
    else:
        steps = np.rint(real.astype(np.float32) / np.float32(port["scale"])) + port["zero_point"]
        runner = litert.interpreter().Interpreter(model_path=str(path)).get_signature_runner()
        (integers,) = runner(x=np.clip(steps, *port["range"]).astype(port["dtype"])).values()
        out = json.loads(stored["outputs"])["gemm1_out"]
        found = (integers.astype(np.float32) - out["zero_point"]) * np.float32(out["scale"])
    wanted, step = outputs(result.model_path, real), json.loads(stored["outputs"])["gemm1_out"]["scale"]
    assert found.shape == (1, len(json.loads(stored["class_names"])))
    assert np.abs(found - wanted).max() < 1.01 * step  # LiteRT's default kernels round otherwise than the device
    assert np.abs(found - outputs(result.model_path, raw / 255)).max() > 3 * step, "other preprocessing is seen"


def outputs(path: Path, real: Any) -> Any:
    """What an ONNX file gives for a prepared picture."""
    session = ort.InferenceSession(str(path))
    (found,) = session.run(None, {"x": real.transpose(0, 3, 1, 2).astype(np.float32)})
    return found
