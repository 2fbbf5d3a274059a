from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.program import RUN, Program, Result, Zygote, environment


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    process = Zygote()
    yield process
    process.close()


@pytest.fixture
def program(tmp_path: Path, zygote: Zygote) -> Program:
    return Program(tmp_path, zygote)


@dataclass(frozen=True)
class DefaultRun:
    """`python run.py` and nothing else, in an empty folder."""

    result: Result
    launch: Path
    seconds: float


@pytest.fixture(scope="session")
def default_run(tmp_path_factory: pytest.TempPathFactory) -> DefaultRun:
    launch = tmp_path_factory.mktemp("default")
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(RUN)], cwd=launch, env=environment({}), capture_output=True, text=True, timeout=300
    )
    seconds = time.monotonic() - begin
    folders = sorted(launch.glob("outputs/*/*"))
    assert len(folders) == 1, done.stderr
    return DefaultRun(Result(done.returncode, done.stdout, done.stderr, folders[0]), launch, seconds)
