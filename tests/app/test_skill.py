"""SKILL.md: its commands and overrides mean something, and what it says is in a report is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import onnx
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep

from quantpipe.app.compose import OPTION, composed, option_names, schemas
from quantpipe.app.settings import GROUPS, Launch, settings_of
from quantpipe.errors import ConfigError
from quantpipe.settings import Settings
from tests.api.nets import small_net

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "SKILL.md").read_text(encoding="utf-8")
COMMANDS = [line.split("run.py", 1)[1].split(" # ")[0] for line in re.findall(r"^ {4,}(python run\.py.*)$", TEXT, re.M)]
TABLE = TEXT.split("## Decision table")[1].split("## Rules")[0]
REMEDIES = [cell for row in TABLE.splitlines() if row.startswith("| ") for cell in [row.rsplit("|", 2)[1]]]
OVERRIDES = [text for cell in REMEDIES for text in re.findall(r"`([^`]+)`", cell) if "=" in text]


def given(overrides: list[str]) -> list[dict[str, Any]]:
    """What the words of a command line ask of each run of it, as mappings by group and key."""
    found: list[dict[str, Any]] = [{}]
    for override in OverridesParser.create().parse_overrides(overrides):
        key, value = override.key_or_group, override.value()
        if key.startswith("hydra."):
            continue
        values = value.list if isinstance(value, ChoiceSweep) else [value]
        found = [_with(one, key, v) for one in found for v in values]
    return found


def _with(one: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    top, *rest = key.split(".")
    if not rest:
        return {**one, top: {**one.get(top, {}), OPTION: str(value)} if top in GROUPS else value}
    inner = _with({}, ".".join(rest), value)
    return {**one, top: _merge(one.get(top, {}), inner)}


def _merge(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    return {
        **a,
        **{k: _merge(a[k], v) if isinstance(v, dict) and isinstance(a.get(k), dict) else v for k, v in b.items()},
    }


def settings(words: str, folder: Path) -> list[Settings]:
    """The settings of a command line, checked like those of a run."""
    found = []
    for one in given([w for w in shlex.split(words) if "=" in w and not w.startswith("-")]):
        if "dataset" in one and OPTION not in one["dataset"]:
            one["dataset"][OPTION] = "npz"  # the table speaks of data sets of the user's
        config, names = composed({}, one)
        found.append(settings_of(config, Launch(folder, folder / "run", names, ""), schemas()))
    return found


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
    filled: dict[str, Any] = {"recover": {"steps": ["equalize"]}, "annotate": {"skip_first": True}}
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
