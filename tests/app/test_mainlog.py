"""What main.log says, and what it must not say."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from quantpipe import passwords
from quantpipe.app import console as console_module
from quantpipe.app import mainlog
from quantpipe.app.console import RichConsole
from quantpipe.errors import ArtifactError, Interrupted


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "main.log"
    handler = mainlog.LogFile(path)
    handler.setFormatter(mainlog.Lines())
    mainlog.LOG.addHandler(handler)
    mainlog.LOG.setLevel(logging.INFO)
    yield path
    mainlog.LOG.removeHandler(handler)
    handler.close()
    passwords._remembered.discard("hun ter2")


def fail() -> None:
    raise ArtifactError("is damaged", where="http://me:pa/ss@w@host/x")


def test_stages_warnings_and_the_traceback_of_what_ended_the_run(log: Path) -> None:
    console = RichConsole()
    console.stage("evaluate", "436 samples [bold]")
    console.warn("plan.json is damaged: 100 %s")
    try:
        fail()
    except ArtifactError as error:
        mainlog.ended(error)
    text = log.read_text()
    assert "INFO    evaluate   436 samples [bold]" in text and "WARNING plan.json is damaged: 100 %s" in text
    assert "ERROR   ended by ArtifactError" in text and "Traceback" in text and "in fail" in text


def test_no_secret_gets_in_by_any_way(log: Path) -> None:
    """In a message, an argument, an address (also with @ and / in the password), a traceback."""
    passwords.remember("hun ter2")
    mainlog.LOG.info("token %s", "hun ter2")
    mainlog.LOG.warning("see https://user:s3cr3t@host/path and postgresql://u:a@b/c@db:5432/x")
    try:
        fail()
    except ArtifactError as error:
        mainlog.ended(error)
    text = log.read_text()
    for secret in ("hun ter2", "s3cr3t", "a@b/c", "pa/ss@w", "pa/ss"):
        assert secret not in text, text
    assert "https://user:***@host/path" in text and "@db:5432/x" in text and "http://me:***@host/x" in text
    assert passwords.conceal("mail a@b.c, file:///x/y") == "mail a@b.c, file:///x/y"


def test_an_interrupt_is_no_failure(log: Path) -> None:
    mainlog.ended(Interrupted("interrupted; resume with: python run.py"))
    assert "WARNING interrupted; resume with" in log.read_text() and "Traceback" not in log.read_text()


def test_a_log_that_cannot_be_written_ends_nothing(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (handler,) = (h for h in mainlog.LOG.handlers if isinstance(h, mainlog.LogFile))
    handler.setStream(io.TextIOWrapper(io.FileIO("/dev/full", "w")))
    mainlog.LOG.error("lost")
    handler.close()
    assert capsys.readouterr().err == ""


def test_progress_is_told_in_lines_where_there_is_no_terminal(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("quantpipe.app.console.LINE_SECONDS", 0.0)
    update = RichConsole().progress("evaluate 3/8: realized model")
    for done in (100, 200, 300):
        update(done, 400, "")
    lines = log.read_text().splitlines()
    assert len(lines) == 3 and lines[2].endswith("s left") and "realized model 300/400, " in lines[2]
    assert "realized model 300/400" in capsys.readouterr().err


@pytest.mark.parametrize(("verbosity", "told"), [("quiet", False), ("normal", True), ("verbose", True)])
def test_what_the_terminal_shows(verbosity: str, told: bool, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Warnings whatever is asked for, each once; the log has all of it."""
    console = RichConsole(verbosity)
    console.stage("search", "greedy")
    console.warn("the objective is missed")
    mainlog.LOG.info("taken: point 3")
    console.finish()
    mainlog.LOG.info("behind the end")
    said = capsys.readouterr().err
    assert ("greedy" in said) == told and said.count("the objective is missed") == 1
    assert ("point 3" in said) == (verbosity == "verbose") and "behind" not in said
    assert all(text in log.read_text() for text in ("greedy", "missed", "point 3", "behind the end"))


def test_a_stage_without_a_bar_shows_that_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(console_module, "plain", lambda *, stderr: Console(file=screen, force_terminal=True, width=80))
    console = RichConsole()
    console.stage("realize", "qdq")
    assert console._bars is not None and not console._bars.finished
    console.warn("kept whole")
    console.progress("evaluate 1/8: float model")(1, 2, "")
    console.finish()
    said = screen.getvalue()
    assert said.count("realize    qdq") == 1 and "0:00:00" in said and "kept whole" in said and "1/2" in said
