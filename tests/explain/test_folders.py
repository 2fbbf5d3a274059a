"""What cannot be explained ends with one paragraph that says what is wrong with the folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import quantpipe
from quantpipe.data import DigitsDataset
from quantpipe.errors import QuantpipeError
from tests.explain.planted import run

ROOT = Path(__file__).parents[2]


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


@pytest.mark.program
def test_the_command(tmp_path: Path) -> None:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "run.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False)

    folder = tmp_path / "run"
    first = call(
        "hardware=vta", "recover=none", "tracking=none", "executor=serial", "search=greedy", "evaluate.latency_runs=1",
        f"hydra.run.dir={folder}",
    )  # fmt: skip
    assert first.returncode == 0, first.stderr
    assert f"command=explain explain.run={folder}" in first.stdout.replace("\n", "")
    answer = call("command=explain", f"explain.run={folder}")
    assert answer.returncode == 0, answer.stderr
    assert "recover=default" in answer.stdout
    assert max(map(len, answer.stdout.split("What would mend it")[0].splitlines())) <= 80
    told = json.loads(call("command=explain", f"explain.run={folder}", "check.format=json").stdout)
    stored = json.loads((folder / "explain.json").read_text())
    assert told["causes"] == stored["causes"]
    for arguments in ([], ["explain.run=away"], [f"explain.run={folder}", "hardware=vta"]):
        wrong = call("command=explain", *arguments)
        assert wrong.returncode == 2, wrong.stdout
        assert wrong.stderr.startswith("error: ")
        assert len(wrong.stderr.strip().splitlines()) == 1
