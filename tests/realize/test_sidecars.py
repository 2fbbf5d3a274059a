"""The sidecars, read back by others: onnxruntime's own quantizer, and plain readers of the other two formats."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)

from quantpipe.realize.sidecars import CACHE, ENCODINGS, FLOAT, OVERRIDES, Sidecars
from quantpipe.types import Accumulate
from tests.ops.line import Line, Net, line
from tests.realize.executed import MADE


def net() -> Net:
    made = Net(seed=11)
    x = made.input(None, 3, 6, 6)
    a = made.node("Relu", made.conv(x, 3, 4, 3, 3, pads=[1, 1, 1, 1]))
    b = made.conv(a, 4, 4, 3, 3, pads=[1, 1, 1, 1], group=4)
    made.output(made.node("Add", a, b, output="sum"))
    return made


@pytest.fixture(scope="module")
def asymmetric() -> Line:
    return line(net(), "ort_cpu")


@pytest.fixture(scope="module")
def symmetric() -> Line:
    return line(net(), "tensorrt_both")


def files(made: Line, plan: Any, folder: Path) -> dict[str, bytes]:
    written = Sidecars().write(made.graph, made.topology, plan, MADE)
    for name, content in written.files.items():
        (folder / name).write_bytes(content)
    return dict(written.files)


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """Samples for a quantizer whose scales are given anyway."""

    def __init__(self, made: Line) -> None:
        self._batches = iter([b.inputs for b in made.samples.batches(4)])

    def get_next(self) -> Any:
        return next(self._batches, None)


def test_onnxruntime_quantizes_to_the_very_numbers_of_the_plan(asymmetric: Line, tmp_path: Path) -> None:
    made, plan = asymmetric, asymmetric.plan()
    files(made, plan, tmp_path)
    given = json.loads((tmp_path / OVERRIDES).read_text())
    overrides = {
        name: [
            {**e, "quant_type": QuantType.from_string(e["quant_type"]), "scale": np.array(e["scale"], np.float32),
             "zero_point": np.array(e["zero_point"], np.uint8 if "UInt" in e["quant_type"] else np.int8)}
            for e in entries
        ]
        for name, entries in given.items()
    }  # fmt: skip
    quantize_static(
        tmp_path / FLOAT,
        tmp_path / "theirs.onnx",
        Reader(made),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        extra_options={"TensorQuantOverrides": overrides, "ForceQuantizeNoInputCheck": True},
    )
    theirs = onnx.load(tmp_path / "theirs.onnx")
    constants = {i.name: numpy_helper.to_array(i) for i in theirs.graph.initializer}
    scales, stored = {}, {}
    for node in theirs.graph.node:
        if node.op_type == "QuantizeLinear":
            scales[node.input[0].removesuffix("_QuantizeLinear_Input")] = (
                float(constants[node.input[1]]),
                int(constants[node.input[2]]),
            )
        elif node.op_type == "DequantizeLinear" and node.input[0] in constants:
            stored[node.output[0].removesuffix("_DequantizeLinear_Output")] = constants[node.input[0]]
    met = [t for t, q in plan.quantizers.items() if t in scales]
    assert {"x", "relu1_out"} <= set(met), set(scales)
    for tensor in met:
        q = plan.quantizers[tensor]
        assert scales[tensor] == (float(q.scale), q.zero_point), tensor
    checked = 0
    for name, weight in plan.weights.items():
        theirs_q = stored[name] if name in stored else constants[f"{name}_quantized"]
        assert np.array_equal(theirs_q, weight.values), name
        checked += 1
    assert checked == 2


def test_the_cache_has_the_scales_in_their_bits(symmetric: Line, asymmetric: Line, tmp_path: Path) -> None:
    plan = symmetric.plan()
    text = files(symmetric, plan, tmp_path)[CACHE].decode()
    head, *rows = text.splitlines()
    assert head.startswith("TRT-") and head.endswith("EntropyCalibration2")
    found = {name: struct.unpack("!f", bytes.fromhex(bits))[0] for name, bits in (row.rsplit(": ", 1) for row in rows)}
    assert found == {t: float(q.scale) for t, q in plan.quantizers.items()}
    assert CACHE not in Sidecars().write(asymmetric.graph, asymmetric.topology, asymmetric.plan(), MADE).files


@pytest.mark.parametrize("device", ["ort_cpu", "tensorrt_both", "fbgemm", "snpe"])
def test_encodings_stand_for_the_same_real_numbers(device: str, tmp_path: Path) -> None:
    """AIMET: real = scale · (q + offset) with q from 0 to 2^bw - 1."""
    made = line(net(), device)
    plan = made.plan()
    found = json.loads(files(made, plan, tmp_path)[ENCODINGS])
    assert found["version"] == "1.0.0"
    activations = {e["name"]: e for e in found["activation_encodings"]}
    assert set(activations) == set(plan.quantizers)
    for name, q in plan.quantizers.items():
        e = activations[name]
        assert e["enc_type"] == "PER_TENSOR" and e["dtype"] == "INT" and e["bw"] == q.bits
        low = e["scale"][0] * e["offset"][0]
        high = e["scale"][0] * ((1 << e["bw"]) - 1 + e["offset"][0])
        assert low == pytest.approx(float(q.scale) * (q.qmin - q.zero_point), abs=1.01 * float(q.scale))
        assert high == pytest.approx(float(q.scale) * (q.qmax - q.zero_point))
        assert e["is_sym"] == (e["offset"][0] == -(1 << (e["bw"] - 1)))
    for e in found["param_encodings"]:
        weight = plan.weights[e["name"]]
        assert np.array_equal(np.float32(e["scale"]), weight.scale.reshape(-1))
        assert len(e["offset"]) == len(e["scale"]) == (1 if e["enc_type"] == "PER_TENSOR" else len(weight.values))


def test_the_float_model_lies_on_the_grid(asymmetric: Line, tmp_path: Path) -> None:
    made, plan = asymmetric, asymmetric.plan()
    files(made, plan, tmp_path)
    model = onnx.load(tmp_path / FLOAT)
    onnx.checker.check_model(model)
    constants = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    for kernel in plan.kernels.values():
        if not isinstance(kernel, Accumulate):
            continue
        w = plan.weights[kernel.weight]
        steps = constants[w.tensor] / w.scale.reshape(-1, *[1] * (w.values.ndim - 1))
        assert np.array_equal(np.rint(steps), w.values) and np.abs(steps - np.rint(steps)).max() < 1e-4
        bias = constants[made.graph.by_name[kernel.node].inputs[2]]
        assert np.array_equal(np.rint(bias.astype(np.float64) / kernel.acc_scale), kernel.bias)
    assert next(p.value for p in model.metadata_props if p.key == "quantpipe.form") == "sidecars"
