"""Runs in odd surroundings: languages, no home folder, closed or full streams, file modes, odd paths, other runs."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.crashes import FEW, differences, essence
from tests.e2e.program import NO_TRACKING, QUICK, ROOT, RUN, Program, environment
from tests.tracking.fake_server import fake_server

NAMED = re.compile("/run/(tracking|model_path):")
SHORT = (NO_TRACKING, *QUICK, *FEW)


def started(folder: Path, *arguments: str, env: dict[str, str] | None = None, **options: Any) -> Any:
    """The command itself in a process of its own, to its end."""
    return subprocess.run(
        [sys.executable, str(RUN), *SHORT, *arguments],
        **{"cwd": folder, "env": environment({}) if env is None else env, "timeout": 300, "text": True,
           "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run leaves in usual surroundings."""
    folder = tmp_path_factory.mktemp("usual")
    done = started(folder, "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    return essence(folder / "run")


def equal(folder: Path, usual: dict[str, Any]) -> None:
    """But for the names of the tracker and of the model's file."""
    found = [line for line in differences(essence(folder), usual) if not NAMED.search(line)]
    assert found == []


LANGUAGES = {
    "Turkish": {"LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8"},
    "ASCII": {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "Latin 1": {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"},
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_languages_and_encodings(language: str, tmp_path: Path, usual: dict[str, Any]) -> None:
    env = environment(LANGUAGES[language])
    done = started(tmp_path, "hydra.run.dir=run", env=env, text=False)
    assert done.returncode == 0, done.stderr
    equal(tmp_path / "run", usual)


@pytest.mark.parametrize("home", [None, "/nowhere/at/all"])
def test_without_a_home_folder(home: str | None, tmp_path: Path, usual: dict[str, Any]) -> None:
    """MLflow and the cache of statistics, which both look for one, are on."""
    env = {k: v for k, v in environment({}).items() if k not in ("HOME", "QUANTPIPE_CACHE")}
    if home is not None:
        env["HOME"] = home
    done = started(tmp_path, "hydra.run.dir=run", "tracking=mlflow", env=env)
    assert done.returncode == 0, done.stderr
    assert "MLflow  run" in done.stdout
    equal(tmp_path / "run", usual)


def closed(*descriptors: int) -> Callable[[], None]:
    return lambda: [os.close(d) for d in descriptors] and None


@pytest.mark.parametrize("descriptors", [(1,), (2,), (0, 1, 2)])
def test_closed_streams(descriptors: tuple[int, ...], tmp_path: Path, usual: dict[str, Any]) -> None:
    done = started(tmp_path, "hydra.run.dir=run", preexec_fn=closed(*descriptors))
    assert done.returncode == 0 and done.stderr.count("Traceback") == 0, done.stderr
    equal(tmp_path / "run", usual)


def test_a_reader_that_has_had_enough(tmp_path: Path, usual: dict[str, Any]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = started(tmp_path, "hydra.run.dir=run", stdout=writing)
    assert done.returncode == 0 and "error" not in done.stderr, done.stderr
    equal(tmp_path / "run", usual)
    for arguments in (["--help"], ["command=check", "check.format=json"]):
        command = [sys.executable, str(RUN), *arguments]
        done = subprocess.run(command, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
    os.close(writing)


def test_output_that_cannot_be_written_is_an_error(tmp_path: Path, usual: dict[str, Any]) -> None:
    with Path("/dev/full").open("w") as full:
        done = started(tmp_path, "hydra.run.dir=run", stdout=full)
        assert done.returncode == 2 and "standard output cannot be written" in done.stderr.splitlines()[-1]
        equal(tmp_path / "run", usual)
        for arguments in (["--help"], ["command=verify", "hydra.run.dir=run"]):
            command = [sys.executable, str(RUN), *arguments]
            done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
            assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        done = started(tmp_path, "hydra.run.dir=quiet", stderr=full)
        assert done.returncode == 0 and "files" in done.stdout


def test_files_of_others_stay_closed(tmp_path: Path, usual: dict[str, Any]) -> None:
    done = started(tmp_path, "hydra.run.dir=run", umask=0o077)
    assert done.returncode == 0, done.stderr
    modes = {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "run").rglob("*") if p.is_file()}
    assert modes == {0o600}
    equal(tmp_path / "run", usual)


@pytest.mark.parametrize("name", ["two\nlines", "it's, =a {name}", " ", "ü"])
def test_paths_of_odd_characters(name: str, tmp_path: Path, usual: dict[str, Any]) -> None:
    place = tmp_path / name
    place.mkdir()
    shutil.copy(ROOT / "quantpipe" / "assets" / "digits.onnx", place / "digits.onnx")

    def quoted(path: Path) -> str:
        return "'" + str(path).replace("'", "\\'") + "'"

    folder = f"hydra.run.dir={quoted(place / 'run')}"
    done = started(tmp_path, folder, f"model.path={quoted(place / 'digits.onnx')}")
    assert done.returncode == 0, done.stderr
    equal(place / "run", usual)
    checked = subprocess.run(
        [sys.executable, str(RUN), "command=verify", folder], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    again = started(tmp_path, "command=replay", f"strategy={quoted(place / 'run' / 'search' / 'strategy.json')}",
                    f"model.path={quoted(place / 'digits.onnx')}", "hydra.run.dir=again")  # fmt: skip
    assert again.returncode == 0, again.stderr


def test_three_runs_beside_each_other(program: Program, usual: dict[str, Any]) -> None:
    """With one cache of statistics and one MLflow store; and in one folder, of which one gets it."""
    program.env["QUANTPIPE_CACHE"] = str(program.cwd / "cache")
    arguments = (*FEW, "tracking=mlflow")
    runs = [program.start(*arguments, folder=str(number)) for number in range(3)]
    for number, process in enumerate(runs):
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        equal(program.cwd / str(number), usual)
    runs = [program.start(*FEW, folder="shared") for _ in range(3)]
    ends = [(process.communicate(timeout=300)[1], process.returncode) for process in runs]
    assert 0 in [code for _, code in ends]
    assert all(code == 0 or (code == 2 and "error: " in err and "Traceback" not in err) for err, code in ends), ends
    equal(program.cwd / "shared", usual)


def test_a_server_that_hangs_after_the_start(program: Program, usual: dict[str, Any]) -> None:
    program.env |= {"MLFLOW_HTTP_REQUEST_TIMEOUT": "1", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    with fake_server(answers=12) as server:
        result = program.run(*FEW, "tracking=mlflow", f"tracking.uri={server.uri()}")
        assert result.code == 0 and len(server.sent) > 12, result.err
    assert "nothing more is sent there" in result.err and "command=sync" in result.out + result.err
    equal(result.folder, usual)
