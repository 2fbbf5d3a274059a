"""Nothing of the solver's own on standard output."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from quantpipe.search.algorithms.additive import _solve
from quantpipe.search.algorithms.silence import silence_stdout

C = ctypes.CDLL(None)


def written(capfd: pytest.CaptureFixture[str]) -> str:
    C.fflush(None)
    return capfd.readouterr().out


def test_only_what_is_written_meanwhile_is_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    C.puts(b"before")
    with silence_stdout():
        C.puts(b"from C")
        os.write(1, b"to the descriptor\n")
    C.puts(b"after")
    assert written(capfd) == "before\nafter\n"


def test_the_output_is_back_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    open_files = sorted(Path("/dev/fd").iterdir())
    with pytest.raises(ZeroDivisionError), silence_stdout():
        C.puts(b"lost")
        raise ZeroDivisionError
    C.puts(b"after")
    assert written(capfd) == "after\n"
    assert sorted(Path("/dev/fd").iterdir()) == open_files


def test_a_closed_output_is_left_alone() -> None:
    code = "import os; from quantpipe.search.algorithms.silence import silence_stdout; os.close(1)\n"
    code += "with silence_stdout(): os.write(2, b'done')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert (found.stdout, found.stderr) == (b"", b"done")


def test_an_integer_program_whose_solution_the_solver_repairs(capfd: pytest.CaptureFixture[str]) -> None:
    """HiGHS 1.12 (SciPy 1.17) prints a line when it rounds and solves again what its presolve made infeasible."""
    rng = np.random.default_rng(31)
    choices = np.repeat(np.arange(25), 4)
    losses = np.exp(rng.normal(0, 3, 100)) * np.tile([0, 1, 1, 1], 25)
    saved = np.tile(np.arange(4), 25) * np.repeat(np.exp(rng.normal(0, 1, 25)), 4)
    uses = losses / losses.sum() * 20
    fits = uses <= 1
    taken = _solve(-saved[fits], uses[fits], choices[fits])
    assert taken is not None
    assert uses[fits][taken].sum() <= 1 + 1e-6
    assert written(capfd) == ""
