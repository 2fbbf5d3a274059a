"""The checker as a command: exit codes, one line, nothing written, no runtime loaded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quantpipe.app.main import _verify
from quantpipe.verify.__main__ import main
from tests.verify.folders import changed, digits_line, write

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = digits_line("ort_cpu")
    return write(made, made.plan(), "qdq", tmp_path_factory.mktemp("run"))


def test_it_runs_without_any_of_what_it_checks(folder: Path, tmp_path: Path) -> None:
    """As a program of its own, on a copy elsewhere that cannot be written."""
    copy = tmp_path / "elsewhere"
    shutil.copytree(folder, copy)
    before = sorted(p.name for p in copy.rglob("*"))
    code = (
        "import runpy, sys; sys.argv = ['verify', sys.argv[1]]\n"
        "try:\n    runpy.run_module('quantpipe.verify', run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    names = {'onnxruntime', 'hydra', 'onnx_ir', 'mlflow'} | {'quantpipe.' + n for n in "
        "('plan', 'simulate', 'realize', 'lowering', 'intmath', 'graph', 'certify', 'types')}\n"
        "    print(sorted(names & set(sys.modules)))\n    sys.exit(end.code)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code, str(copy)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    said, loaded = done.stdout.strip().splitlines()
    assert said.startswith("every claim of the certificate holds: proved for all inputs: 13 of 14 kernels")
    assert loaded == "[]"
    assert sorted(p.name for p in copy.rglob("*")) == before


def test_a_wrong_claim_ends_with_3_and_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    changed(copy, "plan.json", lambda plan: plan["kernels"]["stem.conv"]["bias"].__setitem__(0, 1))
    assert main([str(copy)]) == 3
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and out.startswith("wrong: stem.conv: ")
    assert _verify([f"hydra.run.dir={copy}"]) == 3


@pytest.mark.parametrize("name", ["certificate.json", "plan.json", "model.onnx"])
@pytest.mark.parametrize("content", [None, b"", b"\x00\xff{", b"[]"])
def test_files_that_cannot_be_read_end_with_2_and_one_paragraph(
    name: str, content: bytes | None, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    path = copy / "realize" / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    code = main([str(copy)])
    said = capsys.readouterr()
    if (
        name == "model.onnx" and content == b""
    ):  # an empty file is an empty protobuf message: another file, not a broken one
        assert code == 3 and said.out.startswith("wrong: model.onnx: its digest")
        return
    assert code == 2 and said.err.startswith("error: verify: ") and said.err.count("\n") == 1 and not said.out


def test_other_arguments_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert _verify([]) == 2
    assert _verify([f"hydra.run.dir={tmp_path}", "hardware=vta"]) == 2
    assert _verify([f"hydra.run.dir={tmp_path}"]) == 2  # there is nothing in it
    assert "certificate.json" in capsys.readouterr().err
