"""SKILL.md: its commands and overrides mean something, and what it says is in a report is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import onnx
import pytest

from quantpipe.app.compose import option_names
from quantpipe.app.settings import GROUPS
from quantpipe.errors import ConfigError
from quantpipe.pipeline.settings import Settings
from tests.api.nets import small_net
from tests.documents.composing import settings as settings_of

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "SKILL.md").read_text(encoding="utf-8")
COMMANDS = [line.split("run.py", 1)[1].split(" # ")[0] for line in re.findall(r"^ {4,}(python run\.py.*)$", TEXT, re.M)]
TABLE = TEXT.split("## Decision table")[1].split("## Rules")[0]
REMEDIES = [cell for row in TABLE.splitlines() if row.startswith("| ") for cell in [row.rsplit("|", 2)[1]]]
OVERRIDES = [text for cell in REMEDIES for text in re.findall(r"`([^`]+)`", cell) if "=" in text]


def settings(words: str, folder: Path) -> list[Settings]:
    """The settings of a command line, checked like those of a run."""
    arguments = shlex.split(words)
    about_data = any(word.startswith("dataset.") for word in arguments)
    if about_data and not any(word.startswith("dataset=") for word in arguments):
        arguments.append("dataset=npz")  # the table speaks of data sets of the user's
    return settings_of(arguments, folder)


@pytest.mark.program
def test_every_command_and_every_remedy_is_legal(tmp_path: Path) -> None:
    assert len(COMMANDS) >= 8 and len(OVERRIDES) >= 25
    options = {f"{group}={name}" for group in GROUPS for name in option_names(group)}
    for words in dict.fromkeys((*COMMANDS, *OVERRIDES)):
        assert words in options or settings(words, tmp_path), words
    assert [run.spec.name for run in settings(" -m hardware=ort_cpu,vta search=greedy,random", tmp_path)] == [
        "ort_cpu", "ort_cpu", "vta", "vta"
    ]  # fmt: skip
    for wrong in ("search=gredy", "search.max_evals=3", "annotate.skip_first=perhaps", "objective.form=best"):
        with pytest.raises(ConfigError):
            settings(wrong, tmp_path)


def test_what_it_says_of_groups_files_and_keys(tmp_path: Path) -> None:
    import quantpipe
    from tests.api.nets import QUICK, images

    listed = re.search(r"^- Groups: (.*?)\. The options", TEXT, re.M)
    assert listed is not None and tuple(re.findall(r"`(\w+)`", listed[1])) == GROUPS
    assert all(option_names(group) for group in GROUPS)
    filled: dict[str, Any] = {"recover": {"option": "default", "steps": ["equalize"]}, "annotate": {"skip_first": True}}
    result = quantpipe.quantize(small_net(), images(), folder=tmp_path, evaluate=QUICK, **filled)
    table = TEXT.split("## What to read")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| ")]
    where = ""
    for _, file, keys in rows[1:]:
        where = re.findall(r"`([^`]+)`", file)[0] if "`" in file else where
        assert (result.folder / where).is_file(), where
        content = (result.folder / where).read_text()
        for path in re.findall(r"`\.?([a-z_0-9.]+)`", keys):
            assert f'"{path.split(".")[-1]}"' in content, (where, path)


def test_it_is_short_and_names_nobody() -> None:
    assert len(TEXT.splitlines()) <= 150
    assert TEXT.startswith("---\nname: quantpipe\ndescription: ")
    for link in re.findall(r"\]\(([^)#]+)", TEXT):
        assert (ROOT / link).is_file(), link


def test_check_first_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quantpipe.app.commands import fit_of

    onnx.save(small_net(), tmp_path / "model.onnx")
    (run,) = settings(COMMANDS[0], tmp_path)
    fit = fit_of(run).as_dict()
    assert {"verdict", "refused", "accumulators", "exit_code"} <= set(fit)
    assert run.check.format == "json"
