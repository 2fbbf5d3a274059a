"""A slice of the fuzzers: some cases of every kind. The long run is `python -m tests.fuzz.run`."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.e2e.models import DIGITS
from tests.e2e.program import ROOT, environment
from tests.fuzz import mutate
from tests.fuzz.case import _fault
from tests.fuzz.kinds import KINDS
from tests.fuzz.readers import READERS, fails


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which forks: the tests' own has threads."""
    command = [sys.executable, "-m", "tests.fuzz.run", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment({}), capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("reader", READERS)
def test_a_slice_of_cases_for_every_reader(reader: str, tmp_path: Path) -> None:
    failed = {seed: fault for seed in range(4 if reader == "model" else 40) if (fault := fails(reader, seed, tmp_path))}
    assert not failed


@pytest.mark.slow
def test_cases_of_every_kind() -> None:
    done = fuzz("--cases", "5", "--seed", "100")
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_counts_as_a_fault() -> None:
    good = "error: model: m.onnx: no\n"
    assert not _fault(2, "", good, 1, 100) and not _fault(0, "out", "", 1, 100) and not _fault(3, "", good, 1, 100)
    for case in (
        (1, "", good, 1.0, 100), (-11, "", "", 1.0, 100), (2, "", good * 2, 1.0, 100), (0, "", "", 61.0, 100),
        (2, "", "Traceback (most recent call last)\n" + good, 1.0, 100), (0, "", "", 1.0, 5000), (2, "", "", 1.0, 100),
    ):  # fmt: skip
        assert _fault(*case), case


def test_mutations_follow_from_the_seed_and_change_something() -> None:
    text = (ROOT / "conf" / "hardware" / "vta.yaml").read_text()
    data = {"a": [1, 2, {"b": 3.5}], "c": {"d": "x"}}
    changed = 0
    for seed in range(50):
        first, second = random.Random(seed), random.Random(seed)
        assert mutate.of_bytes(b"0123456789" * 9, first) == mutate.of_bytes(b"0123456789" * 9, second)
        assert mutate.of_text(text, first) == mutate.of_text(text, second)
        assert json.dumps(mutate.of_data(data, first)) == json.dumps(mutate.of_data(data, second))
        model = onnx.load(DIGITS)
        before = model.SerializePartialToString()
        mutate.of_message(model, first)
        changed += model.SerializePartialToString() != before
    assert changed > 30


def test_every_kind_makes_the_same_case_again(tmp_path: Path) -> None:
    for name, make in KINDS.items():
        if name in ("strategy", "trials", "profile"):
            continue  # made of a run's own files
        made = []
        for number in range(2):
            folder = tmp_path / f"{name}{number}" / "x"
            folder.mkdir(parents=True)
            arguments = make(folder, random.Random(3), tmp_path)
            made.append([a.replace(str(folder), "") for a in arguments])
        assert made[0] == made[1], name
