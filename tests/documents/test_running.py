"""The documents are followed: on each page, every command is run and every block of Python executed, from top to
bottom, in one folder in which a reader's models and samples lie. Searches are short, nothing is filed in MLflow, and a
command that several pages show runs once, where it names no file of the reader's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.documents.collect import ROOT, Code, Command, items, pages
from tests.documents.desk import lay
from tests.documents.exceptions import NOT_RUN, SHORTENED, filled
from tests.e2e.program import NO_TRACKING, QUICK, Program, Zygote, environment

FEW = ("evaluate.agreement_samples=8", "evaluate.layer_samples=4")
"""Samples that are enough to see that a command runs."""
SHORT = 12
"""Evaluations of a search whose length a page leaves open, or asks for many."""
ELSEWHERE = ("README.md", "docs/python.md", "docs/extending.md")
"""Pages whose Python runs in tests/api/test_documents.py and tests/extend/test_extend.py."""
CODES = {"check": (0, 3), "lint": (0, 3)}
"""Exit codes of commands that may find something; 0 for all others."""


@pytest.fixture(scope="module")
def ran() -> set[str]:
    """The commands that an earlier page has shown."""
    return set()


def worth_running(page: str) -> bool:
    return any((isinstance(item, Code) and item.language == "python") or _ours(item) for item in items(page))


def _ours(item: Command | Code) -> bool:
    return isinstance(item, Command) and item.arguments is not None


@pytest.mark.program
@pytest.mark.parametrize("page", [page for page in pages() if worth_running(page)])
def test_a_page_can_be_followed(
    page: str, ran: set[str], tmp_path: Path, zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(tmp_path)
    monkeypatch.chdir(tmp_path)
    program = Program(tmp_path, zygote, {"PYTHONPATH": str(ROOT)})
    _write_what_the_page_writes(page, tmp_path)
    namespace: dict[str, Any] = {"__name__": "example"}
    for item in items(page):
        if isinstance(item, Command):
            if item.text not in ran or _names_a_file(item):
                _run(item, program, tmp_path)
                ran.add(item.text)
        elif item.language == "python" and page not in ELSEWHERE:
            if "sys.argv" in item.text:
                monkeypatch.setattr(sys, "argv", ["script", _run_folder(program)])
            exec(compile(item.text, f"{page}:{item.line}", "exec", dont_inherit=True), namespace)


def _names_a_file(command: Command) -> bool:
    return any(part in command.text for part in ("/", ".onnx", "hydra.", ">", "--config-dir", "folder="))


def _run(command: Command, program: Program, folder: Path) -> None:
    if any(part in command.text for part in NOT_RUN):
        return
    arguments = filled(command).arguments if command.page == "docs/search.md" else command.arguments
    if command.text.startswith(("mkdir ", "python -m quantpipe.verify ")):
        words = [sys.executable if word == "python" else word for word in command.words]
        subprocess.run(words, cwd=folder, env=environment(program.env), check=True, capture_output=True, timeout=120)
    elif arguments is not None:
        less = [word for part, words in SHORTENED.items() if part in command.text for word in words]
        result = program.bare(*_quick(arguments), *less)
        asked = re.search(r"\bcommand=(\w+)", command.text)
        assert result.code in CODES.get(asked[1] if asked else "", (0,)), f"{command}\n{result.out}\n{result.err}"
        assert "Traceback" not in result.err, command
        if ">" in command.words:
            (folder / command.words[-1]).write_text(result.out)


def _quick(arguments: list[str]) -> list[str]:
    """The command line with short searches and measurements, without tracking."""
    if not {"command=verify", "command=explain", "--cfg", "--info"}.isdisjoint(arguments):
        return arguments  # these take no configuration of a run, or make none
    asked = [int(word.split("=")[1]) for word in arguments if re.fullmatch(r"search\.max_evaluations=\d+", word)]
    if asked and asked[0] <= 40:
        return [*arguments, NO_TRACKING, *QUICK, *FEW]
    return [*arguments, NO_TRACKING, *QUICK, *FEW, f"search.max_evaluations={SHORT}"]


def _write_what_the_page_writes(page: str, folder: Path) -> None:
    """The hardware file of one's own that docs/hardware.md has the reader write; docs/configuration.md uses it, too."""
    (block,) = [
        item
        for item in items("docs/hardware.md")
        if isinstance(item, Code) and item.text.startswith("name: mine\ndescription:")
    ]
    if page in ("docs/hardware.md", "docs/configuration.md"):
        (folder / "myconf" / "hardware").mkdir(parents=True)
        (folder / "myconf" / "hardware" / "mine.yaml").write_text(block.text)


def _run_folder(program: Program) -> str:
    """The first run folder that the page has made; one of the default run where it made none."""
    found = sorted(path.parents[1] for path in program.cwd.rglob("realize/plan.json"))
    return str(found[0] if found else program.run(folder="default").folder)


def test_what_is_left_out_is_said_and_is_there() -> None:
    texts = [item.text for page in pages() for item in items(page) if isinstance(item, Command)]
    for part in NOT_RUN:
        assert any(part in text for text in texts), f"{part}: no document shows it any more"
