"""Runs that start from a model that is quantized already: its integers against ours, other forms and devices, keep."""

from __future__ import annotations

import warnings
from dataclasses import replace
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

import quantpipe
from quantpipe.annotate import topology as pins
from quantpipe.annotate.fixed_range import FixedRange
from quantpipe.annotate.given import fitted_range
from quantpipe.errors import ConfigError
from quantpipe.plan import Planner
from quantpipe.report.imported import imported_verdict
from quantpipe.types import ImportedGrid, Range
from tests.api.nets import CLASSES, QUICK, images, small_net

SAMPLES = (images(48), np.arange(48) % CLASSES)
FORMS = {
    "qdq": (QuantFormat.QDQ, QuantType.QUInt8, QuantType.QInt8, True),
    "qdq_int8": (QuantFormat.QDQ, QuantType.QInt8, QuantType.QInt8, False),
    "qdq_4_bits": (QuantFormat.QDQ, QuantType.QUInt8, QuantType.QInt4, True),
    "qoperator": (QuantFormat.QOperator, QuantType.QUInt8, QuantType.QInt8, False),
}


class Feeds(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self._feeds = iter([{"x": part} for part in np.split(images(16, 3), 4)])

    def get_next(self) -> Any:
        return next(self._feeds, None)


@cache
def file(name: str) -> Path:
    """A file that onnxruntime's quantizer has made."""
    folder = Path(mkdtemp())
    onnx.save(small_net(), folder / "float.onnx")
    if name == "dynamic":
        quantize_dynamic(folder / "float.onnx", folder / "m.onnx", weight_type=QuantType.QInt8)
    else:
        form, activations, weights, per_channel = FORMS[name]
        kinds = {"activation_type": activations, "weight_type": weights, "per_channel": per_channel}
        quantize_static(folder / "float.onnx", folder / "m.onnx", Feeds(), quant_format=form, **kinds)
    return folder / "m.onnx"


def run(name: str, hardware: str = "ort_cpu", **given: Any) -> quantpipe.Result:
    given = {"recover": "none", "precision": "none"} | given
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return quantpipe.quantize(file(name), SAMPLES, hardware, evaluate=QUICK, executor="serial", **given)


@pytest.mark.parametrize("form", ["qdq", "qoperator", "integer"])
@pytest.mark.parametrize("name", list(FORMS))
@pytest.mark.sliced(24)
def test_the_integers_are_those_of_the_imported_model(name: str, form: str) -> None:
    """Where nothing has to change: every weight, and every tensor as onnxruntime runs the file, in any form."""
    found = run(name, realize=form)
    part = found.report["imported"]
    assert (part["weights"], part["changed"], part["lost"]) == (3, [], [])
    assert part["tensors"] == (7 if name == "qoperator" else 8)
    assert part["weight_differing"] == 0 and part["weight_integers"] == 8 * 27 + 64 + 40
    compared = part["compared"]
    assert compared is not None and compared["tensors"] >= 6
    assert compared["differing"] == 0 and compared["outputs"][0]["differing"] == 0
    assert found.report["agreement"]["differing"] == 0


def test_another_device_changes_what_it_must_and_says_so() -> None:
    part = run("qdq_int8", "vta").report["imported"]
    reasons = {row["name"]: row["reason"] for row in part["changed"]}
    assert "scales are powers of two here" in reasons["x"] or "activations are symmetric" in reasons["x"]
    assert all(
        row["reason"] == "scales that are no powers of two" for row in part["changed"] if row["kind"] == "weight"
    )
    costs = [row["sqnr_db"] for row in part["changed"] if row["here"] != "not stored"]
    assert costs and all(cost is not None and 5 < cost < 80 for cost in costs)
    assert part["compared"] is not None and part["compared"]["outputs"][0]["sqnr_db"] > 5


def test_a_device_of_other_types_holds_the_same_integers_moved_by_128() -> None:
    """int8 storage and a fixed-point multiplier: scales and zero points are the file's, the rounding is its own."""
    found = run("qdq", "tflite_int8")
    part = found.report["imported"]
    shared = {row["name"] for row in part["changed"] if row["reason"].startswith("it shares its scale with")}
    assert shared == {"conv1_out", "relu1_out"}, "a Relu apart, between two given scales, which shifts do not bridge"
    assert {row["name"] for row in part["changed"] if row["here"] != "not stored"} == shared
    assert part["weight_differing"] == 0
    steps = {i.name: numpy_helper.to_array(i) for i in onnx.load(file("qdq")).graph.initializer}
    own = found.plan.quantizers["x"]
    assert own.dtype == "int8" and own.zero_point == int(steps["x_zero_point"]) - 128
    assert own.scale == steps["x_scale"]


@pytest.mark.grid
def test_what_is_kept() -> None:
    """`scales` frees the integers of weights, `weights` the scales of tensors, `none` all."""
    kept = {keep: run("qdq_int8", keep=keep).report["imported"] for keep in ("scales", "weights", "none")}
    assert kept["scales"]["changed"] == [] and kept["scales"]["weight_differing"] == 0
    freed = {row["kind"] for row in kept["weights"]["changed"] if row["reason"] == "it is not kept (import.keep)"}
    assert freed == {"tensor"} and kept["weights"]["weight_differing"] == 0
    assert {row["kind"] for row in kept["none"]["changed"]} == {"tensor", "weight"}
    assert kept["none"]["weight_integers"] == 0  # none has the file's scales, so none is said to be equal
    assert "0 of 0 integers of weights differ (3 more weights have other" in imported_verdict(kept["none"])
    with pytest.raises(ConfigError, match=r"import\.keep: is 'scale'.*did you mean 'scales'.*; legal are all, scales"):
        run("qdq", keep="scale")


@pytest.mark.grid
def test_recovery_moves_no_integer_that_is_kept() -> None:
    """With `scales` it may move the integers of weights, on their scales."""
    whole = run("qdq_4_bits", recover="default", keep="all").report["imported"]
    assert whole["weight_differing"] == 0 and whole["compared"] is not None and whole["compared"]["differing"] == 0
    free = run("qdq_4_bits", recover={"option": "default", "steps": ["gptq"]}, keep="scales")
    part = free.report["imported"]
    steps = free.report["recover"]
    assert steps and (part["weight_differing"] > 0 or not steps[0]["kept"])
    assert all(row["differing"] is not None for row in part["changed"] if row["kind"] == "weight")


@pytest.mark.grid
def test_ranges_of_each_sample_are_calibrated() -> None:
    found = run("dynamic")
    part = found.report["imported"]
    assert (part["forms"], part["tensors"], part["weights"], part["weight_differing"]) == (["dynamic"], 0, 3, 0)
    assert part["dynamic"] == 3 and found.report["calibrate"]["samples"]


@pytest.mark.program
def test_what_is_given_of_weights_only_leaves_the_choice_of_bits_for_tensors() -> None:
    found = run("qdq", keep="weights", annotate={"choices": ["bits"]})
    space = {row["key"]: row for row in found.report["choices"]}
    assert space
    assert found.strategy.bits[next(iter(found.plan.weights))] == 8


def test_an_integer_that_differs_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale that is read wrongly shows: the planted one is a hundredth too large."""
    tensors = fitted_range

    def wrong(grid: ImportedGrid, *given: Any) -> tuple[FixedRange, str]:
        found, change = tensors(grid, *given)
        return replace(found, range=Range(found.range.low, found.range.high * 1.01)), change

    monkeypatch.setattr(pins, "fitted_range", wrong)
    part = run("qdq").report["imported"]
    assert len([row for row in part["changed"] if row["kind"] == "tensor"]) >= 7


def test_a_weight_that_is_taken_over_wrongly_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Planner.weight

    def wrong(self: Planner, *given: Any) -> Any:
        found = real(self, *given)
        values = found.values.copy()
        values.flat[3] += 1 if values.flat[3] < 100 else -1
        return replace(found, values=values)

    monkeypatch.setattr(Planner, "weight", wrong)
    part = run("qdq").report["imported"]
    assert part["weight_differing"] == 3 and part["compared"] is not None and part["compared"]["differing"] > 0
