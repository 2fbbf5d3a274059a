"""Every command line and every override that a document shows means something: it composes, with all keys and options.

What is run, is run in test_running.py. What cannot be run here is listed in `exceptions.py`, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.errors import HydraException

from quantpipe.app.settings import GROUPS, KEYS
from quantpipe.errors import QuantpipeError
from tests.documents.collect import ROOT, Command, inline, items, pages
from tests.documents.composing import refuse_override, settings
from tests.documents.desk import MODULE
from tests.documents.exceptions import OTHER_PROGRAMS, SHOWN_AS_WRONG, filled


def lines() -> Iterator[Command]:
    for page in pages():
        yield from (item for item in items(page) if isinstance(item, Command))
        yield from inline(page)[0]


def refusal(command: Command, folder: Path) -> str | None:
    """Why a command line means nothing; None where it does."""
    arguments = filled(command).arguments
    assert arguments is not None
    try:
        settings(arguments, folder)
    except (QuantpipeError, HydraException) as error:
        return f"{command}: {error}"
    return None


def refusal_of_override(command: Command) -> str | None:
    """The same of overrides in the prose."""
    try:
        refuse_override(filled(command).words)
    except (QuantpipeError, HydraException) as error:
        return f"{command}: {error}"
    return None


def about_configuration(command: Command) -> bool:
    heads = {word.lstrip("+").split("=")[0].split(".")[0] for word in command.words}
    return heads <= {*GROUPS, *KEYS, "experiments"}


@pytest.mark.program
@pytest.mark.parametrize("part", range(4))
def test_every_command_line_composes(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in four of them by default: composing one takes a tenth of a second."""
    (tmp_path / "mydata.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    ours = {line.text: line for line in lines() if line.arguments is not None}
    assert len(ours) >= 80
    assert [why for line in list(ours.values())[part::4] if (why := refusal(line, tmp_path))] == []


@pytest.mark.program
def test_every_override_in_the_prose_composes() -> None:
    shown = {line.text: line for page in pages() for line in inline(page)[1] if about_configuration(line)}
    assert len(shown) >= 100
    refused = {text: why for text, line in shown.items() if (why := refusal_of_override(line))}
    assert set(refused) == SHOWN_AS_WRONG, refused


@pytest.mark.parametrize(
    "wrong",
    [
        "python run.py serch=greedy",
        "python run.py search.max_evals=3",
        "python run.py hardware=vtta",
        "python run.py annotate.skip_first=perhaps",
        "python run.py 'choices.fix={bits:stem*:8}'",
        "python run.py experiments=nothing",
        "python run.py hardware=ort_cpu +hardware.skip.frist=true",
    ],
)
def test_a_mistake_in_a_page_is_found(wrong: str, tmp_path: Path) -> None:
    assert refusal(Command("page.md", 1, wrong), tmp_path) is not None


def test_a_mistake_in_the_prose_is_found() -> None:
    for wrong in ("recover.steps2=[bias]", "search=gredy", "objective.cost_limmit=3", "dataset.preproces.scale=1"):
        assert refusal_of_override(Command("page.md", 1, wrong)) is not None, wrong


def test_other_programs_are_those_that_are_known_and_scripts_take_their_flags() -> None:
    for line in lines():
        if line.arguments is not None:
            continue
        words = [word for word in line.words if "=" not in word or word.startswith("-")]
        if words[0] != "python" or (words[1] == "-m" and not words[2].startswith(("tests.", "website."))):
            known = [start for start in OTHER_PROGRAMS if line.text.startswith(start)]
            assert known, f"{line}: neither run nor listed in tests/documents/exceptions.py"
            continue
        script = words[1] if words[1] != "-m" else words[2].replace(".", "/") + ".py"
        assert (ROOT / script).is_file(), line
        text = (ROOT / script).read_text(encoding="utf-8")
        flags = [word for word in words[2:] if word.startswith("--")]
        assert [flag for flag in flags if f'"{flag}"' not in text] == [], line
