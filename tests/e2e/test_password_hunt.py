"""A planted password is nowhere: not in a file, not on the terminal, not in what is sent, however a run ends."""

from __future__ import annotations

import base64
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from urllib.parse import quote

import pytest

from tests.e2e.program import QUICK, Program, Result
from tests.tracking.fake_server import FakeServer, fake_server

PASSWORD = "Zq7@x/Kp9:Wv3#"
IN_URI = PASSWORD.replace("#", "%23")  # as any address must write it
PIECES = [PASSWORD, IN_URI, quote(PASSWORD, safe=""), "Zq7", "Kp9", "Wv3"]
SHORT = ("search.max_evaluations=1", *QUICK)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as found:
        yield found


def hunt(place: Path, *texts: str | bytes) -> list[str]:
    """Where a piece of the password was found: files below `place` (their names, too), and texts."""
    found = []
    needles = [piece.encode() for piece in (*PIECES, base64.b64encode(PASSWORD.encode()).decode())]
    for number, text in enumerate(texts):
        data = text.encode() if isinstance(text, str) else text
        found += [
            f"text {number}: {data[max(0, data.find(n) - 80) : data.find(n) + 80]!r}" for n in needles if n in data
        ]
    for path in place.rglob("*"):
        data = str(path.relative_to(place)).encode() + (path.read_bytes() if path.is_file() else b"")
        found += [f"{path}: {data[max(0, data.find(n) - 80) : data.find(n) + 80]!r}" for n in needles if n in data]
    return found


def clean(program: Program, result: Result, *more: bytes) -> None:
    assert not hunt(program.cwd, result.out, result.err, *more)


def ways(uri: str, place: Path) -> dict[str, tuple[list[str], dict[str, str]]]:
    """How an address may come in: arguments and variables of the environment."""
    own = place / "own" / "tracking"
    return {
        "argument": ([f"tracking.uri={uri}"], {}),
        "quoted": ([f"tracking.uri='{uri}'"], {}),
        "variable": ([], {"MLFLOW_TRACKING_URI": uri}),
        "reference": (["tracking.uri=${oc.env:OWN_URI}"], {"OWN_URI": uri}),
        "file": (["--config-dir", str(own.parent), "tracking=own"], {}),
    }


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Flags, which come first, and overrides."""
    rest = [a for a in arguments if "=" in a and not a.startswith("-")]
    return [a for a in arguments if a not in rest], rest


def slow(name: str) -> object:
    return pytest.param(name, marks=pytest.mark.slow)


def own_file(folder: Path, uri: str) -> None:
    """A configuration file of the user's own, outside of where the hunt goes."""
    (folder / "own" / "tracking").mkdir(parents=True)
    (folder / "own" / "tracking" / "own.yaml").write_text(f'defaults: [mlflow]\nuri: "{uri}"\n')


@pytest.mark.parametrize("way", ["argument", slow("quoted"), slow("variable"), slow("reference"), "file"])
def test_a_run_that_succeeds(
    program: Program, server: FakeServer, tmp_path_factory: pytest.TempPathFactory, way: str
) -> None:
    uri, elsewhere = server.uri(f"user:{IN_URI}"), tmp_path_factory.mktemp("own")
    own_file(elsewhere, uri)
    arguments, variables = ways(uri, elsewhere)[way]
    program.env.update(variables)
    flags, rest = split(arguments)
    result = program.bare(*flags, *SHORT, *rest, f"hydra.run.dir={program.cwd / 'run'}")
    assert result.code == 0, result.err
    clean(program, result, *server.sent)
    assert f"Basic {base64.b64encode(f'user:{PASSWORD}'.encode()).decode()}" in server.authorizations
    assert any(b"runs/create" in request for request in server.sent)
    assert (program.cwd / "run" / ".hydra" / "overrides.yaml").is_file()


@pytest.mark.slow
def test_a_password_of_its_own_in_the_environment(program: Program, server: FakeServer) -> None:
    program.env |= {"MLFLOW_TRACKING_URI": server.uri(), "MLFLOW_TRACKING_USERNAME": "user"}
    program.env |= {"MLFLOW_TRACKING_PASSWORD": PASSWORD}
    result = program.bare(*SHORT, f"hydra.run.dir={program.cwd / 'run'}")
    assert result.code == 0, result.err
    clean(program, result, *server.sent)


@pytest.mark.parametrize("way", ["argument", slow("variable"), slow("file")])
def test_a_sweep(program: Program, server: FakeServer, tmp_path_factory: pytest.TempPathFactory, way: str) -> None:
    uri, elsewhere = server.uri(f"user:{IN_URI}"), tmp_path_factory.mktemp("own")
    own_file(elsewhere, uri)
    arguments, variables = ways(uri, elsewhere)[way]
    program.env.update(variables)
    flags, rest = split(arguments)
    result = program.bare("-m", *flags, *SHORT, *rest, "seed=1,2", f"hydra.sweep.dir={program.cwd / 'sweep'}")
    assert result.code == 0, result.err
    assert (program.cwd / "sweep" / ".mlflow_parent.json").is_file()
    assert (program.cwd / "sweep" / "multirun.yaml").is_file()
    clean(program, result, *server.sent)


@pytest.mark.slow
def test_a_folder_named_after_the_overrides(program: Program, server: FakeServer) -> None:
    result = program.bare(
        "-m", *SHORT, f"tracking.uri={server.uri(f'user:{IN_URI}')}", f"hydra.sweep.dir={program.cwd / 'sweep'}",
        "hydra.sweep.subdir=${hydra.job.num}_${hydra.job.override_dirname}",
    )  # fmt: skip
    clean(program, result, *server.sent)


REFUSED = {
    "nobody": ["tracking.uri=http://user:{pw}@127.0.0.1:1"],
    "no host": ["tracking.uri=http://user:{pw}@[host"],
    "scheme": ["tracking.uri=nonsense://user:{pw}@host/x"],
    "folder": ["tracking.uri=file://user:{pw}@host/x"],
    "database": ["tracking.uri=postgresql://user:{pw}@127.0.0.1:1/db"],
    "wrong key": ["tracking.url=http://user:{pw}@host"],
    "wrong option": ["tracking=http://user:{pw}@host"],
    "wrong place": ["model.path=http://user:{pw}@host"],
    "wrong value": ["seed=http://user:{pw}@host"],
    "grammar": ["tracking.uri=http://user:{pw}@host)("],
    "option": ["tracking.uri=http://user:{pw}@127.0.0.1:1", "hardware=nope"],
    "printed": ["--cfg", "job", "--resolve", "tracking.uri=http://user:{pw}@host"],
    "printed, all": ["--cfg", "all", "tracking.uri=http://user:{pw}@host"],
    "explained": ["--info", "all", "tracking.uri=http://user:{pw}@host"],
    "twice": ["-m", "tracking.uri=http://user:{pw}@127.0.0.1:1,http://user:{pw}@127.0.0.1:2"],
}


QUICKLY = ("nobody", "wrong key", "grammar", "printed")


@pytest.mark.parametrize("case", [case if case in QUICKLY else slow(case) for case in REFUSED])
def test_a_run_that_is_refused(program: Program, case: str) -> None:
    arguments = [text.format(pw=IN_URI) for text in REFUSED[case]]
    flags, rest = split(arguments)
    folder = "hydra.sweep.dir" if "-m" in flags else "hydra.run.dir"
    result = program.bare(*flags, *SHORT, *rest, f"{folder}={program.cwd / 'run'}")
    assert (result.code == 0) == ("--cfg" in flags or "--info" in flags), result.err
    clean(program, result)


def test_a_server_that_goes_away_and_a_failure_in_the_middle(program: Program, server: FakeServer) -> None:
    """Warnings of the log, and a traceback: MLflow and urllib3 name the whole address in theirs."""
    (program.cwd / "broken.py").write_text(
        "import os, sys\ndef samples():\n"
        "    raise RuntimeError('cannot reach ' + os.environ['QUANTPIPE_SECRET_1'] + ' ' + 'Zq7@x/Kp9:Wv3#')\n"
    )
    uri = server.uri(f"user:{IN_URI}")
    result = program.bare(
        *SHORT, f"tracking.uri={uri}", "dataset=callable", "dataset.target=broken:samples", "plugins=[broken]",
        f"hydra.run.dir={program.cwd / 'run'}",
    )  # fmt: skip
    (program.cwd / "broken.py").unlink()
    rmtree(program.cwd / "__pycache__", ignore_errors=True)  # it holds the text of the module
    assert result.code == 2 and "cannot reach" in result.err, result.err
    clean(program, result, *server.sent)


def test_an_interruption_prints_a_command_without_the_password(program: Program, server: FakeServer) -> None:
    """And while it ran, no process that it had started carried the password in its command line."""
    command = [
        *(
            "search=annealing",
            "objective.cost=bits",
            "search.max_evaluations=100000",
            "executor.start_seconds=0",
            "executor.workers=2",
        ),
        f"tracking.uri={server.uri(f'user:{IN_URI}')}",
    ]
    process = program.start("tracking=mlflow", *command)
    log = program.cwd / "run" / "search" / "trials.jsonl"
    deadline = time.monotonic() + 120
    while not (log.is_file() and log.read_bytes().count(b"\n") > 3):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    lines = [line for pid, line in command_lines() if pid != process.pid and parent_of(pid) == process.pid]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Resume with" in err and "tracking.uri=" in err and "user:***@" in err
    assert not hunt(program.cwd, out, err, *server.sent, *lines)


def command_lines() -> Iterator[tuple[int, bytes]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                yield int(entry.name), (entry / "cmdline").read_bytes()
            except OSError:
                continue


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return os.getpid()
