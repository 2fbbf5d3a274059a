"""Quantized files of onnxruntime's own quantizer beside their float model: what is wrong, and what is promised."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.calibrate import CalibrationDataReader
from onnxruntime.quantization.shape_inference import quant_pre_process
from sklearn.datasets import load_digits

import quantpipe
from quantpipe.data import DigitsDataset
from quantpipe.errors import ConfigError, ModelError
from quantpipe.graph.session_options import EXACT_PAIRS, KEY
from tests.api.nets import small_net
from tests.api.test_imported import SAMPLES
from tests.explain.written_qdq import STYLES, written

FORMS = {
    "qdq": (QuantFormat.QDQ, QuantType.QUInt8, QuantType.QInt8, True),
    "qdq_int8": (QuantFormat.QDQ, QuantType.QInt8, QuantType.QInt8, False),
    "qoperator": (QuantFormat.QOperator, QuantType.QUInt8, QuantType.QInt8, False),
}


class Digits(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        images = (load_digits().images[:64] / 16).astype(np.float32)
        self._feeds = iter([{"image": part[:, None]} for part in np.split(images, 8)])

    def get_next(self) -> Any:
        return next(self._feeds, None)


@cache
def prepared() -> Path:
    """The float model, its BatchNormalizations folded by onnxruntime."""
    path = Path(mkdtemp()) / "float.onnx"
    quant_pre_process(str(quantpipe.example_model()), str(path))
    return path


@cache
def made(name: str, excluded: Sequence[str] = ()) -> Path:
    """A file that onnxruntime's quantizer has made, some nodes left out."""
    path = Path(mkdtemp()) / f"{name}.onnx"
    form, activations, weights, per_channel = FORMS[name]
    kinds = {"activation_type": activations, "weight_type": weights, "per_channel": per_channel}
    quantize_static(prepared(), path, Digits(), quant_format=form, nodes_to_exclude=list(excluded), **kinds)
    return path


def explained(file: Path, culprits: int = 2, **options: Any) -> dict[str, Any]:
    return quantpipe.explain_file(file, prepared(), DigitsDataset(), culprits=culprits, **options)


def beside_pairs(answer: dict[str, Any]) -> list[str]:
    """The doubts but for pairs of products that saturate on other processors."""
    return [said for said in answer["doubts"] if "can saturate in int16" not in said]


def test_channels_that_saturate_on_other_processors_are_counted_as_lint_counts_them() -> None:
    file = made("qdq")
    notes = [f.message for f in quantpipe.lint(file, "ort_cpu").findings if f.rule == "pairs"]
    counts = [int(re.findall(r"of (\d+) of", note)[0]) for note in notes]
    (said,) = explained(file, culprits=1)["doubts"]
    assert len(counts) > 1 and f"and {len(counts) - 1} more" in said and f"({sum(counts)} channels)" in said


def test_a_file_that_asks_for_exact_sums_saturates_nowhere(tmp_path: Path) -> None:
    model = onnx.load(made("qdq"))
    model.metadata_props.add(key=KEY, value=json.dumps(EXACT_PAIRS))
    onnx.save(model, tmp_path / "exact.onnx")
    assert explained(tmp_path / "exact.onnx", culprits=1)["doubts"] == []


@pytest.mark.grid
@pytest.mark.parametrize("name", list(FORMS))
@pytest.mark.sliced(5)
def test_scales_and_integers_alone_lose_what_the_file_loses(name: str) -> None:
    """So the file was read as a whole: nothing of it was left out, nothing put in the wrong place."""
    answer = explained(made(name))
    assert answer["loss_by_scales"] == pytest.approx(answer["loss"], rel=0.05)
    assert beside_pairs(answer) == []
    kinds = [row["kind"] for row in answer["causes"]]
    assert kinds.count("weight") == 10 and kinds.count("bias") == 10
    assert all(row["accumulated"] for row in answer["causes"] if row["kind"] == "tensor" and row["tensor"] != "image")
    assert len(answer["accumulators"]) == 10 and all(0 < row["used"] < 0.01 for row in answer["accumulators"])
    assert "compared with float.onnx" in str(answer)


@pytest.mark.grid
@pytest.mark.parametrize("name", list(FORMS))
def test_a_promise_is_what_the_tool_gives(name: str) -> None:
    """Nodes that advice leaves in float, left out by onnxruntime's quantizer itself: the loss that was promised.

    Its scales are those of the file that was explained, and its optimizer may spoil the new one: explain says so then.
    """
    before = explained(made(name))
    row = next(r for r in before["advice"] if r["overrides"] and "float_nodes" in r["overrides"][0])
    nodes = row["overrides"][0].partition("=")[2].strip("[]").split(",")
    after = explained(made(name, tuple(nodes)))
    spoiled = [said for said in after["doubts"] if "onnxruntime's optimizations" in said]
    loss = after["loss_by_scales"] if spoiled else after["loss"]
    assert before["loss"] - loss == pytest.approx(row["loss_before"] - row["loss_after"], rel=0.2)


def edited(name: str, edit: Callable[[dict[str, onnx.TensorProto]], None]) -> Path:
    """The file with other constants."""
    model = onnx.load(made(name))
    edit({tensor.name: tensor for tensor in model.graph.initializer})
    path = Path(mkdtemp()) / "planted.onnx"
    onnx.save(model, path)
    return path


def put(tensor: onnx.TensorProto, array: np.ndarray[Any, Any]) -> None:
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def test_a_range_ten_times_too_small_is_named_first() -> None:
    def smaller(constants: dict[str, onnx.TensorProto]) -> None:
        scale = constants["block2.pointwise.out_scale"]
        put(scale, np.asarray(numpy_helper.to_array(scale) / 10))

    answer = explained(edited("qdq", smaller))
    worst = answer["causes"][0]
    assert worst["tensor"] == "block2.pointwise.out"
    assert worst["clipping"] > 10 * worst["rounding"] and worst["saturated"] > 0.1
    first = answer["advice"][0]
    assert first["members"] == ["block2.pointwise.out"] and first["gain"] > 0.9
    assert any(row["change"].startswith("range by") and row["gain"] > 0.9 for row in answer["advice"])


@pytest.mark.grid
def test_a_bias_that_overflows_is_named_first() -> None:
    def cut_off(constants: dict[str, onnx.TensorProto]) -> None:
        model = onnx.load(made("qdq_int8"))
        by_result = {node.output[0]: node for node in model.graph.node}
        conv = next(node for node in model.graph.node if node.name == "stem.conv")
        bias, scale = (constants[name] for name in by_result[conv.input[2]].input[:2])
        real = numpy_helper.to_array(bias).astype(np.float64) * numpy_helper.to_array(scale)
        small = np.abs(real).max() / 2**31 / 20  # a twentieth of the greatest bias is all that fits
        put(scale, np.full_like(numpy_helper.to_array(scale), small))
        ends = np.iinfo(np.int32)
        put(bias, np.clip(np.rint(real / np.float32(small)), ends.min, ends.max).astype(np.int32))

    answer = explained(edited("qdq_int8", cut_off))
    worst = answer["causes"][0]
    assert worst["kind"] == "bias" and worst["node"] == "stem.conv" and worst["overflow"] > 0
    assert answer["advice"][0]["gain"] > 0.5
    assert "stem.conv" in answer["advice"][0]["role"]
    assert max(row["bias"] for row in answer["accumulators"]) == pytest.approx(1.0)
    assert "overflow" in str(answer)


@pytest.mark.grid
def test_weights_alone(tmp_path: Path) -> None:
    onnx.save(small_net(), tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "m.onnx", weight_type=QuantType.QInt8)
    answer = quantpipe.explain_file(tmp_path / "m.onnx", tmp_path / "float.onnx", SAMPLES, culprits=1)
    assert {row["kind"] for row in answer["causes"]} == {"weight", "float"}
    assert all(row["accumulated"] for row in answer["causes"] if row["kind"] == "float")
    assert answer["loss"] > 0


@pytest.mark.grid
def test_what_is_no_file_of_this_model(tmp_path: Path) -> None:
    onnx.save(small_net(), tmp_path / "other.onnx")
    with pytest.raises(ModelError, match=r"is not made from .*its inputs are image"):
        quantpipe.explain_file(made("qdq"), tmp_path / "other.onnx", SAMPLES)
    with pytest.raises(ModelError, match="has no integers"):
        quantpipe.explain_file(prepared(), prepared(), DigitsDataset())
    with pytest.raises(ConfigError, match="is quantized itself"):
        quantpipe.explain_file(made("qdq"), made("qdq"), DigitsDataset())
    other = onnx.load(prepared())
    for tensor in other.graph.initializer:  # the same network, trained otherwise
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.ndim > 1:
            put(tensor, np.random.default_rng(1).normal(0, array.std(), array.shape).astype(np.float32))
    onnx.save(other, tmp_path / "trained.onnx")
    with pytest.raises(ModelError, match=r"its weights have an SQNR of only .* dB"):
        quantpipe.explain_file(made("qdq"), tmp_path / "trained.onnx", DigitsDataset())


@pytest.mark.grid
@pytest.mark.parametrize("tool", list(STYLES))
def test_files_as_other_tools_write_them(tool: str, tmp_path: Path) -> None:
    model, pictures = small_net(), SAMPLES[0]
    onnx.save(model, tmp_path / "float.onnx")
    onnx.save(written(model, pictures, STYLES[tool]), tmp_path / f"{tool}.onnx")
    answer = quantpipe.explain_file(tmp_path / f"{tool}.onnx", tmp_path / "float.onnx", pictures, culprits=1)
    assert beside_pairs(answer) == []
    assert answer["loss_by_scales"] == pytest.approx(answer["loss"], rel=0.2) and answer["loss"] > 0
    kinds = [row["kind"] for row in answer["causes"]]
    assert kinds.count("weight") == 3
    assert kinds.count("tensor") >= 4
    assert kinds.count("bias") == (3 if STYLES[tool].bias else 0)
    assert answer["advice"]
