"""The profile of Hypothesis: the same examples each time in continuous integration, others each time elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHOW = "import tests.conftest; from hypothesis import settings as s; print(s.default.derandomize, s.default.deadline)"


@pytest.mark.parametrize(("ci", "shown"), [("true", "True None"), ("", "False None")])
def test_examples_are_the_same_each_time_in_ci_alone(ci: str, shown: str) -> None:
    environment = {**os.environ, "CI": ci}
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", SHOW], cwd=root, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == shown, done.stderr
