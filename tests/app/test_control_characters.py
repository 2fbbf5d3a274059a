"""Whatever names hold, nothing that a terminal obeys is printed or logged."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from rich.table import Table
from rich.text import Text

from quantpipe.api.result import as_text
from quantpipe.app.console import PlainConsole
from quantpipe.app.mainlog import Lines
from quantpipe.app.outlets import ConcealingRecord, ConcealingStream
from quantpipe.errors import DataError
from quantpipe.passwords import printable
from tests.e2e.program import ROOT

NAME = "a\x1b]0;owned\x07b\x1b[2Jc\x9b31md\u202ee\rf\x08\x7f\x00"
CONTROLS = set(NAME) - set("abcdef]0;owned[2J31m")


def clean(text: str) -> bool:
    return not CONTROLS & set(text)


def test_control_characters_are_shown_as_escapes() -> None:
    assert printable("plain ä\t\n") == "plain ä\t\n"
    assert printable("\x1b[2J") == "\\x1b[2J" and printable("\u202e") == "\\u202e"
    assert clean(printable(NAME))
    for code in [*range(32), *range(127, 160)]:
        assert (printable(chr(code)) == chr(code)) == (chr(code) in "\n\t")


@pytest.mark.parametrize("terminal", [True, False])
def test_the_console_shows_them_and_keeps_its_own_colours(terminal: bool) -> None:
    stream = io.StringIO()
    console = PlainConsole(file=stream, markup=False, emoji=False, highlight=False, force_terminal=terminal, width=200)
    table = Table(NAME)
    table.add_row(NAME)
    table.add_row(Text(NAME))
    for shown in (NAME, table, Text(NAME)):
        console.print(shown)
        console.print(shown, style="yellow")
    text = stream.getvalue()
    assert "\\x1b]0;owned" in text and ("\x1b[33m" in text) == terminal
    assert clean(text.replace("\x1b[33m", "").replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[1;33m", ""))
    assert clean(as_text(table))


def test_streams_records_lines_and_errors() -> None:
    inner = io.StringIO()
    ConcealingStream(inner).write(f"x {NAME}\n")  # type: ignore[arg-type]
    record = ConcealingRecord("run", logging.WARNING, __file__, 1, "of %s", (NAME,), None)
    line = Lines().format(logging.LogRecord("run", logging.WARNING, __file__, 1, NAME, (), None))
    for text in (inner.getvalue(), record.getMessage(), line, str(DataError(NAME, where=NAME))):
        assert clean(text) and "\\x1b" in text


@pytest.mark.program
def test_check_and_a_run_show_no_escape_of_a_model(tmp_path: Path) -> None:
    """Names of nodes, tensors, inputs and outputs of a model hold sequences for terminals."""
    model = onnx.load(ROOT / "quantpipe" / "assets" / "digits.onnx")
    evil = "\x1b]0;owned\x07\x1b[2J"
    renamed = {name: f"{name}{evil}" for node in model.graph.node for name in (*node.input, *node.output)}
    for node in model.graph.node:
        node.name += evil
        node.input[:] = [renamed[i] for i in node.input]
        node.output[:] = [renamed[o] for o in node.output]
    for held in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        held.name = renamed.get(held.name, held.name)
    del model.graph.value_info[:]
    onnx.save(model, tmp_path / "evil.onnx")
    for command in ("check", "run"):
        arguments = [f"command={command}", "model.path=evil.onnx", "hardware=vta", f"hydra.run.dir={command}",
                     "tracking=none", "evaluate.latency_runs=1", "verbosity=verbose"]  # fmt: skip
        done = subprocess.run([sys.executable, str(ROOT / "run.py"), *arguments], cwd=tmp_path, capture_output=True,
                              timeout=300, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        shown = done.stdout + done.stderr + b"".join(p.read_bytes() for p in (tmp_path / command).glob("main.log"))
        assert b"\x1b" not in shown and b"\x07" not in shown
        assert b"\\x1b" in shown
