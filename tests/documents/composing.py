"""Whether a command line of a document means something: its overrides compose, and make settings."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep
from omegaconf import OmegaConf

from quantpipe.app.compose import OPTION, changed, composed, option, option_names, schemas
from quantpipe.app.group_options import plain_config
from quantpipe.app.main import asset, folder_of, search_path
from quantpipe.app.settings import GROUPS, Launch, settings_of
from quantpipe.errors import ConfigError
from quantpipe.pipeline.settings import Settings

VALUED = ("--cfg", "--package", "--info", "--config-dir")
"""Flags with a value behind them."""


def settings(arguments: list[str], folder: Path) -> list[Settings]:
    """The settings of a command line, checked like those of a run. Raises what the program would."""
    words = overrides_of(arguments)
    if any(word.startswith("+") for word in words):
        return [_by_hydra(words, folder)]
    found = []
    for one in given(words):
        config, names = composed({}, one)
        found.append(settings_of(config, Launch(folder, folder / "run", names, ""), schemas()))
    return found


def overrides_of(arguments: list[str]) -> list[str]:
    """The overrides among the words of a command line, without what is about Hydra alone."""
    rest = iter(arguments)
    found = []
    for word in rest:
        if word in VALUED:
            next(rest)
        elif not word.startswith("-"):
            found.append(word)
    return [word for word in found if not word.startswith(("hydra.", "hydra/"))]


def given(overrides: list[str]) -> list[dict[str, Any]]:
    """What the words of a command line ask of each run of it, as mappings by group and key."""
    found: list[dict[str, Any]] = [{}]
    for override in OverridesParser.create().parse_overrides(overrides):
        key, value = override.key_or_group, override.value()
        if key == "experiments":
            _known_experiment(str(value))
            continue
        values = value.list if isinstance(value, ChoiceSweep) else [value]
        found = [_with(one, key, v) for one in found for v in values]
    return found


def refuse_override(words: list[str]) -> None:
    """Raise where overrides that stand in prose name an option or a key that there is not.

    The context says which option of a group they are about, so it is enough that one of them has the key; values are
    not looked at.
    """
    if any(word.startswith("+") for word in words):
        _by_hydra(words, Path("unused"))
        return
    for one in given(words):
        for key, value in one.items():
            if key in GROUPS:
                _refuse_in_group(key, value if isinstance(value, dict) else {OPTION: value})
            else:
                changed(_top(), {key: value}, "")


def _refuse_in_group(group: str, value: dict[str, Any]) -> None:
    changes = {key: found for key, found in value.items() if key != OPTION}
    names = [value[OPTION]] if OPTION in value else option_names(group)
    if OPTION in value and value[OPTION].startswith("["):
        for name in value[OPTION].strip("[]").split(","):
            _refuse_in_group(group, {**value, OPTION: name})
        return
    refused = None
    for name in names:
        try:
            changed({**option(group, name), **_top().get(group, {})}, changes, group)
            return
        except ConfigError as error:
            refused = refused or error
    raise refused or ConfigError("has no options", where=group)


@cache
def _top() -> dict[str, Any]:
    found = yaml.safe_load((folder_of("conf") / "config.yaml").read_text(encoding="utf-8"))
    return {key: value for key, value in found.items() if key not in ("defaults", "hydra")}


def _known_experiment(name: str) -> None:
    names = {path.stem for path in folder_of("experiments").glob("*.yaml")}
    if name not in names:
        raise ConfigError(f"has no option {name!r}", where="experiments")


def _with(one: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    top, *rest = key.split(".")
    if not rest:
        return {**one, top: {**one.get(top, {}), OPTION: _option(value)} if top in GROUPS else value}
    inner = _with({}, ".".join(rest), value)
    inner = inner if rest[0] not in GROUPS or len(rest) > 1 else {rest[0]: value}
    return {**one, top: _merge(one.get(top, {}), inner)}


def _option(value: Any) -> str:
    """An option, or several in brackets, as the command line has them."""
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)


def _merge(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    return {
        **a,
        **{k: _merge(a[k], v) if isinstance(v, dict) and isinstance(a.get(k), dict) else v for k, v in b.items()},
    }


def _by_hydra(words: list[str], folder: Path) -> Settings:
    """For what only the command line can say: keys that a file does not mention."""
    config, names = _composed(tuple(words))
    return settings_of(config, Launch(folder, folder / "run", names, ""), schemas())


@cache
def _composed(words: tuple[str, ...]) -> tuple[Any, dict[str, str]]:
    OmegaConf.register_new_resolver("asset", asset, replace=True)
    with initialize_config_dir(str(folder_of("conf")), version_base="1.3"):
        config = compose("config", overrides=[*words, *search_path()], return_hydra_config=True)
    names = {group: str(config.hydra.runtime.choices[group]) for group in GROUPS}
    OmegaConf.set_struct(config, False)
    del config["hydra"]
    return plain_config(config), names
