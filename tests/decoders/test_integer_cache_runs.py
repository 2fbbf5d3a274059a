"""A decoder through the whole program: integers at the ports of its file, in the report and in SHIP.md."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantpipe
from tests.decoders import nets
from tests.decoders.stepping import STATE, Plain, run, stated
from tests.verify.folders import refreshed

pytestmark = pytest.mark.program


@pytest.fixture(scope="module", params=["npu_w8a16", "ort_cpu"])
def result(request: Any, tmp_path_factory: pytest.TempPathFactory) -> quantpipe.Result:
    return run(nets.standard(), request.param, tmp_path_factory.mktemp("runs"))


def test_the_report_names_caches_and_compares_steps(result: quantpipe.Result) -> None:
    report = result.report
    assert report["agreement"]["differing"] == 0
    rows = {row["input"]: row for row in report["caches"]}
    assert set(rows) == set(STATE.values())
    stored = {row["input"]: row for row in stated(result.model)}
    for name, row in rows.items():
        assert {key: stored[name][key] for key in row} == row
    steps = report["steps"]
    caches = [row for row in steps["outputs"] if row["output"] in STATE]
    assert len(caches) == len(STATE) and not any(row["differing"] for row in caches)
    assert steps["kernels"]["equal"] > 10 and not steps["kernels"]["differing"] and not steps["kernels"]["by_samples"]


def test_plain_onnxruntime_steps_as_it_prefills(result: quantpipe.Result) -> None:
    plain = Plain(result.model)
    tokens = nets.text(1, 8, seed=5)
    (logits, cache), (stepped, last) = plain.run(tokens), plain.in_steps(tokens)
    assert sum(int((cache[port] != last[port]).sum()) for port in cache) == 0
    np.testing.assert_allclose(stepped, logits, rtol=1e-4, atol=1e-4)


def test_ship_shows_what_to_feed(result: quantpipe.Result) -> None:
    text = (result.folder / "realize" / "SHIP.md").read_text(encoding="utf-8")
    for row in stated(result.model):
        line = f"| {row['holds']} | `{row['input']}` | `{row['output']}` | {row['stored']} | {row['scale']:.9g} | "
        assert line in text
        assert f"np.{row['stored']})" in text


def test_ship_has_the_length_that_integer_sums_hold(result: quantpipe.Result) -> None:
    text = (result.folder / "realize" / "SHIP.md").read_text(encoding="utf-8")
    in_integers = result.report["run"]["hardware"] == "npu_w8a16"  # ort_cpu multiplies and normalizes in float
    assert ("hold 32,768 terms" in text) is in_integers and ("## Length" in text) is in_integers
    assert ("plus axis 1 of " in text) is in_integers
    assert [row["most"] for row in lengths(result.model)] == ([32768] if in_integers else [])


def lengths(model: onnx.ModelProto) -> list[dict[str, Any]]:
    return json.loads({p.key: p.value for p in model.metadata_props}.get("quantpipe.lengths", "[]"))


@pytest.mark.parametrize(
    "row",
    [
        {"most": 40000},
        {"most": 0},
        {"axes": [["input_ids", 2]]},
        {"axes": [["logits", 1]]},
        {"axes": [["past_key_values.0.key", 3]]},
    ],
)
def test_other_lengths_are_wrong(row: dict[str, Any], result: quantpipe.Result, tmp_path: Path) -> None:
    if not lengths(result.model):
        pytest.skip("no sum of this device has a free length")
    shutil.copytree(result.folder, tmp_path / "run")
    model = onnx.load(tmp_path / "run" / "realize" / "model.onnx")
    entry = next(p for p in model.metadata_props if p.key == "quantpipe.lengths")
    entry.value = json.dumps([{**lengths(model)[0], **row}])
    onnx.save(model, tmp_path / "run" / "realize" / "model.onnx")
    refreshed(tmp_path / "run")
    verdict = quantpipe.verify(tmp_path / "run")
    assert verdict.wrong is not None and "its metadata" in verdict.wrong


def test_the_certificate_holds(result: quantpipe.Result) -> None:
    verdict = quantpipe.verify(result.folder)
    assert verdict.wrong is None, str(verdict)
