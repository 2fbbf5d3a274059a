"""What cannot be explained ends with one paragraph that says what is wrong with the folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import quantpipe
from quantpipe.data import DigitsDataset
from quantpipe.errors import QuantpipeError
from tests.explain.planted import run


def test_no_folder_and_no_run(tmp_path: Path) -> None:
    with pytest.raises(QuantpipeError, match="is no folder"):
        quantpipe.explain(tmp_path / "away")
    with pytest.raises(QuantpipeError, match="no run folder"):
        quantpipe.explain(tmp_path)


@pytest.mark.parametrize("text", ["- a list\n", "model: [\n", "dataset: {}\n"])
def test_what_is_no_configuration(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(QuantpipeError):
        quantpipe.explain(tmp_path)


def test_a_run_of_another_version(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: {path: a.onnx}\n")
    (tmp_path / "evaluate").mkdir()
    (tmp_path / "evaluate" / "report.json").write_text(json.dumps({"version": "0.0.1"}))
    with pytest.raises(QuantpipeError, match=r"of quantpipe 0\.0\.1"):
        quantpipe.explain(tmp_path)


@pytest.mark.program
def test_unfinished_damaged_and_other_samples(tmp_path: Path) -> None:
    samples = DigitsDataset()
    result = run(samples, tmp_path / "run")
    before = {p: p.read_bytes() for p in result.folder.rglob("*") if p.is_file()}
    assert quantpipe.explain(result.folder, samples, culprits=1)["causes"]
    changed = {p.name for p in result.folder.rglob("*") if p.is_file() and before.get(p) != p.read_bytes()}
    assert changed <= {"explain.json", ".lock"}  # nothing else in the folder

    def broken(name: str) -> Path:
        return Path(shutil.copytree(result.folder, tmp_path / name))

    with pytest.raises(QuantpipeError, match="given from Python"):
        quantpipe.explain(result.folder)
    with pytest.raises(QuantpipeError, match=r"samples of|work of another run"):
        quantpipe.explain(result.folder, DigitsDataset(search={"share": 0.5}))
    folder = broken("unfinished")
    (folder / "evaluate" / "report.json").unlink()
    with pytest.raises(QuantpipeError, match="not finished"):
        quantpipe.explain(folder, samples)
    folder = broken("unrealized")
    (folder / "realize" / "model.onnx").unlink()
    with pytest.raises(QuantpipeError, match="not finished"):
        quantpipe.explain(folder, samples)
    for name in ("search/strategy.json", "evaluate/report.json", "config.yaml", "data.json"):
        folder = broken(name.replace("/", "_"))
        path = folder / name
        path.write_bytes(path.read_bytes()[:-40])
        with pytest.raises(QuantpipeError):
            quantpipe.explain(folder, samples)
