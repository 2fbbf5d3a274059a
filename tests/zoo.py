"""Where the tests find the zoo of real models and data: $QUANTPIPE_ZOO, or `shared/zoo` beside the checkout.

`requires_zoo` marks a test that needs it. Without the folder such a test is skipped, except where CI=true: there a
missing zoo is a failure, so that the real-model tests cannot vanish unnoticed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ZOO = Path(os.environ.get("QUANTPIPE_ZOO") or Path(__file__).resolve().parents[1].parent / "shared" / "zoo")

requires_zoo = pytest.mark.skipif(
    not ZOO.is_dir() and os.environ.get("CI") != "true",
    reason=f"no zoo at {ZOO}; set QUANTPIPE_ZOO to the folder that holds zoo.yaml",
)


def needs_zoo(experiment: str) -> bool:
    """Whether an experiment's model and data lie in the zoo."""
    path = Path(__file__).resolve().parents[1] / "experiments" / f"{experiment}.yaml"
    return "QUANTPIPE_ZOO" in path.read_text()


def zoo(relative: str) -> Path:
    """A file or folder of the zoo; fails the test, by name, if it is not there."""
    path = ZOO / relative
    if not path.exists():
        pytest.fail(f"{path} is missing; set QUANTPIPE_ZOO to the folder that holds zoo.yaml")
    return path
