"""What tests of forms need of this machine."""

from __future__ import annotations

import os

import pytest

from quantpipe.intake.tflite import litert


@pytest.fixture(scope="session")
def litert_here() -> None:
    """Skip, with the reason, where LiteRT is not installed; with CI=true that is a failure."""
    why = litert.missing()
    if why is not None:
        assert os.environ.get("CI") != "true", why
        pytest.skip(why)
