"""Tensors that the device has more bits for, raised where eight lose too much."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantpipe
from quantpipe.annotate.choices import bits_key, raised_choice
from quantpipe.errors import HardwareError
from quantpipe.hardware.load import load_hardware
from tests.ops.line import Net, hardware, hardware_data, line

PIXELS = np.random.default_rng(0).standard_normal((48, 4, 6, 6)).astype(np.float32)
PIXELS[:, 0] *= 80
"""One channel sets the step of the input, and the layer that reads it brings it back."""
SAMPLES = quantpipe.SampleSets(calibrate=PIXELS[:16], search=PIXELS[16:32], evaluate=PIXELS[32:])
QUIET: dict[str, Any] = {
    "recover": "none",
    "executor": "serial",
    "evaluate": {"latency_runs": 1, "baseline": "none", "explain": "none"},
}


def net() -> Net:
    made = Net(seed=1)
    first = made.floats(6, 4, 1, 1, scale=0.5, name="first")
    made.constant(np.asarray(made._constants[first] / np.float32([80, 1, 1, 1]).reshape(1, 4, 1, 1)), first)
    x = made.node("Conv", made.input(None, 4, 6, 6), first, kernel_shape=[1, 1], name="spread")
    made.output(made.conv(made.node("Relu", x), 6, 3, 3, 3))
    return made


def widths(mixed: bool) -> dict[str, Any]:
    """The shipped device, or one whose kernels store either width."""
    data = hardware_data("esp32p4")
    if mixed:
        both = ["int8", "int16"]
        data["ops"]["Conv"] = [{"in": [t, t], "out": both} for t in both]
    return data


def run(folder: Path, device: dict[str, Any] | str | None = None, **options: Any) -> quantpipe.Result:
    onnx.save(net().proto(), folder / "m.onnx")
    return quantpipe.quantize(
        folder / "m.onnx", SAMPLES, device or widths(True), folder=folder / "run", **QUIET | options
    )


def test_topologies_say_what_may_be_raised_and_begin_where_they_did() -> None:
    wide, plain = line(net(), hardware("esp32p4")), line(net(), hardware("esp32p4", **_without()))
    assert {(g.max_bits, g.widest) for g in wide.topology.groups} == {(8, 16)}
    assert {(w.max_bits, w.widest) for w in wide.topology.weights} == {(8, 16)}
    assert {(g.max_bits, g.widest) for g in plain.topology.groups} == {(8, 8)}
    assert raised_choice(wide.topology.groups[0]).options == (8, 16)
    for name, values in wide.outputs(wide.realize(wide.plan(8), "integer").model).items():
        np.testing.assert_array_equal(values, plain.outputs(plain.realize(plain.plan(8), "integer").model)[name])


def _without() -> dict[str, Any]:
    data = hardware_data("esp32p4")
    return {k: {**data[k], "raise_to": None} for k in ("activations", "weights")}


@pytest.mark.grid
@pytest.mark.parametrize("mixed", [False, True])
def test_what_loses_too_much_gets_sixteen_bits(tmp_path: Path, mixed: bool) -> None:
    found = run(tmp_path, widths(mixed)).report
    said = found["precision"]
    assert said["loss_before"] > 0.02 >= said["loss_after"] and found["agreement"]["differing"] == 0
    assert "x" in said["raised"] and not said["float"] and said["cost_after"] > said["cost_before"]
    assert any("16 bits after input" in role["role"] for role in said["roles"])
    if mixed:  # the wider kernel is that of the input alone
        assert "relu1_out" not in said["raised"]


@pytest.mark.grid
@pytest.mark.parametrize(
    "options",
    [{"precision": "none"}, {"choices": {"fix": {"bits:x": 8}}}, {"choices": {"freeze": ["bits:*"]}}],
    ids=["precision", "fix", "freeze"],
)
def test_whoever_says_eight_bits_gets_eight(tmp_path: Path, options: dict[str, Any]) -> None:
    found = run(tmp_path, **options)
    assert "x" not in found.report["precision"].get("raised", [])


@pytest.mark.grid
def test_a_choice_may_name_the_bits_itself(tmp_path: Path) -> None:
    found = run(tmp_path, precision="none", choices={"fix": {"bits:x": 16}})
    edges = json.loads((found.folder / "search" / "strategy.json").read_text())
    assert "16" in json.dumps(edges) and found.report["agreement"]["differing"] == 0


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("activations", 4, "activations.raise_to is 4; legal are activations.bits, which is 8, to 16"),
        ("weights", 17, "weights.raise_to is 17; legal are weights.bits, which is 8, to 16"),
        ("weights", "16", "weights.raise_to is '16'; legal are"),
        ("activations", True, "activations.raise_to is True; legal are"),
    ],
)
def test_bits_that_are_none_are_refused(field: str, value: Any, said: str) -> None:
    data = hardware_data("esp32p4")
    data[field]["raise_to"] = value
    with pytest.raises(HardwareError, match=re.escape(said)):
        load_hardware(data)


def test_bits_that_no_kernel_has_are_refused() -> None:
    data = hardware_data("vta")
    data["activations"]["raise_to"] = 16
    with pytest.raises(
        HardwareError, match=r"activations\.raise_to is 16, but no op stores activations of more than 8"
    ):
        load_hardware(data)


def test_keys_are_those_of_the_bits() -> None:
    made = line(net(), hardware("esp32p4"))
    assert {raised_choice(g).key for g in made.topology.groups} == {bits_key(g.key) for g in made.topology.groups}


@pytest.mark.grid
def test_a_statement_may_ask_for_the_bits_and_explain_offers_them(tmp_path: Path) -> None:
    stated = {"annotate": {"constraints": {"x": {"kind": "any", "bits": 16}}}}
    lost, found = (run(_made(tmp_path / name), precision="none", **o) for name, o in (("a", {}), ("b", stated)))
    assert found.report["outputs"][0]["sqnr_db"] > lost.report["outputs"][0]["sqnr_db"] + 6
    assert found.report["agreement"]["differing"] == 0
    advice = quantpipe.explain(lost.folder, SAMPLES)["advice"]
    best = next(row for row in advice if row["change"] == "16 bits")
    assert best["loss_after"] < 0.5 * best["loss_before"], advice


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
