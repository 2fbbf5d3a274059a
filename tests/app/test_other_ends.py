"""Code of the user's that ends the program by SystemExit or a BaseException ends in one paragraph, with exit code 2."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantpipe.data.sources import iterable
from quantpipe.data.sources.wav_folder import Waveform
from quantpipe.errors import ConfigError, DataError
from tests.e2e.program import ROOT

ENDS = {"sys.exit(0)": "SystemExit", "sys.exit('bye')": "SystemExit", "raise End('x')": "End"}
BODY = """
import sys
import numpy as np
class End(BaseException):
    pass
def samples():
    {}
    for number in range(40):
        {}
        yield np.full((1, 8, 8), number / 40, np.float32), number % 10
def metric(reference, outputs, labels=None):
    {}
    return 0.0
{}
"""


@pytest.mark.program
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("place", ["call", "sample", "metric", "import"])
def test_no_code_of_the_user_s_ends_the_program(place: str, end: str, tmp_path: Path) -> None:
    lines = [end if place == name else "pass" for name in ("call", "sample", "metric", "import")]
    (tmp_path / "own_end.py").write_text(BODY.format(*lines))
    arguments = ["model=digits", "hardware=vta", "dataset=callable", "dataset.target=own_end:samples",
                 "plugins=[own_end]", "tracking=none", "hydra.run.dir=out", "executor=serial"]  # fmt: skip
    if place == "metric":
        arguments += ["objective=callable", "objective.target=own_end:metric"]
    done = subprocess.run([sys.executable, str(ROOT / "run.py"), *arguments], cwd=tmp_path, capture_output=True,
                          text=True, timeout=200, check=False)  # fmt: skip
    assert done.returncode == 2, done.stderr
    (paragraph,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert ENDS[end] in paragraph and "Traceback" not in done.stderr


def test_an_endless_generator_is_told_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(iterable, "TOLD_SECONDS", 0.0)

    def many() -> Any:
        for number in range(30):
            yield np.full(3, number, np.float32)

    with caplog.at_level(logging.WARNING):
        iterable.IterableSource(many(), "own:many", None)
        assert "own:many has given" in caplog.text and "dataset.limit=N" in caplog.text
        caplog.clear()
        iterable.IterableSource(many(), "own:many", 30)
    assert not caplog.text


def test_samples_and_items_that_raise_system_exit() -> None:
    class Items:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, number: int) -> Any:
            sys.exit(0)

    def gives() -> Any:
        yield np.zeros(3, np.float32)
        sys.exit(0)

    for items in (Items(), gives()):
        with pytest.raises(DataError, match="SystemExit"):
            iterable.IterableSource(items, "own", None)


@pytest.mark.parametrize("name", ["frame", "length", "sample_rate"])
def test_frames_beyond_any_memory_are_rejected(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"dataset\.{name}: 100000000000 is beyond the legal 67108864"):
        Waveform(**{name: 100_000_000_000})
