"""Rebuild the command line of this process, and suggest next command lines to the user."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from omegaconf import OmegaConf

from quantpipe.app.conceal_passwords import shown
from quantpipe.passwords import without_passwords


def resume_command(hydra_config: HydraConf, folder: Path) -> str:
    """Return the command line that goes on with an interrupted run in a folder."""
    overrides = [shown(text) for text in overrides_of(hydra_config) if not text.startswith("hydra.run.dir=")]
    return shlex.join([*program(), *overrides, f"hydra.run.dir={_quoted(str(folder))}"])


def changed_keys(hydra_config: HydraConf) -> dict[str, str]:
    """Return the keys and options of groups that the command line changed, with their values as given."""
    pairs = (text.lstrip("+").partition("=") for text in overrides_of(hydra_config) if not text.startswith("~"))
    return {
        key: without_passwords(shown(value))
        for key, _, value in pairs
        if key != "model.path" and not key.startswith(("hydra.", "hydra/"))
    }


def explain_command(folder: Path) -> str:
    """Return the command line that explains the run in a folder."""
    return shlex.join([*program(), "command=explain", f"explain.run={_quoted(str(folder))}"])


def sync_command(folder: Path) -> str:
    """Return the command line that files the run in a folder once more."""
    return shlex.join([*program(), "command=sync", f"runs=[{_quoted(str(folder))}]"])


def _quoted(value: str) -> str:
    """Return a value for Hydra's grammar: in quotes where a character has a meaning to it."""
    if _PLAIN_VALUE.fullmatch(value):
        return value
    return "'" + value.replace("'", "\\'") + "'"


_PLAIN_VALUE = re.compile(r"[\w/.:+@%-]+")


def overrides_of(hydra_config: HydraConf) -> list[str]:
    """Return the overrides as they were given: resolved, they may hold a password."""
    given: Any = hydra_config.overrides.task
    if OmegaConf.is_config(given):
        given = OmegaConf.to_container(given, resolve=False)
    return [str(text) for text in given]


def program() -> list[str]:
    """Return how this program was started, by bare names where they lead to the same files."""
    script = sys.argv[0]
    return [_bare(sys.executable), script] if script.endswith(".py") else [_bare(script)]


def _bare(program: str) -> str:
    name = Path(program).name
    found = shutil.which(name)
    return name if found is not None and Path(found).absolute() == Path(program).absolute() else program
