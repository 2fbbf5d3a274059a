"""How a written file is run: one text in SHIP.md, the report, the terminal and the Python result."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantpipe
from quantpipe.data import DigitsDataset

QUICK: dict[str, Any] = {"agreement_samples": 8, "layer_samples": 4, "latency_runs": 1, "baseline": "none"}


@pytest.mark.program
@pytest.mark.parametrize(
    ("hardware", "options", "processors"),
    [
        ("ort_cpu", {}, "every processor computes the searched integers"),
        (
            {"like": "ort_cpu", "name": "vnni_only", "source": "a test", "isa": "vnni"},
            {"session.x64quantprecision": "1"},
            "sums saturate on x86 processors",
        ),
        ("tensorrt", {}, "to compare with tensorrt, run model.onnx in onnxruntime with its default session options"),
    ],
)
def test_every_place_has_the_same_answer(
    hardware: Any, options: dict[str, str], processors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = quantpipe.quantize(
        quantpipe.example_model(), DigitsDataset(), hardware, folder=tmp_path / "run", evaluate=QUICK, verify="warn",
        schema="symmetric",
    )  # fmt: skip
    said = run.report["deployment"]
    assert run.session_options == said["options"] == options and processors in said["sentence"]
    metadata = {entry.key: entry.value for entry in run.model.metadata_props}
    assert metadata["quantpipe.session_options"] == str(options).replace("'", '"')
    folder = tmp_path / "run" / "realize"
    shipped, page = (folder / "SHIP.md").read_text(), (tmp_path / "run" / "evaluate" / "report.html").read_text()
    assert said["sentence"][1:] in shipped and said["code"] in shipped
    assert said["sentence"] in " ".join(str(run).split())
    assert processors[1:] in page and ("default_session" in run.report["metrics"]) is bool(options)
    if not options:
        assert "SessionOptions" not in said["code"]
    monkeypatch.chdir(folder)
    known: dict[str, Any] = {}
    exec(said["code"], known)
    assert np.isfinite(known["outputs"][0]).all()
    rows = re.findall(r"^\| (?:qdq|integer) \| `model.onnx` \| (.+?) \|", shipped, re.M)
    assert rows == [", ".join(f"`{k}={v}`" for k, v in options.items()) or "none"]
