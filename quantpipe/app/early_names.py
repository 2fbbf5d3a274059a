"""Answer a mistyped option, key, command or common value before anything heavy is imported.

Hydra composes the configuration alone. The words are the same as later (`hints.py`). Whatever is in doubt is left to
the program: flags, addresses, keys of hardware files (which may be like others), own configuration folders, and plug-in
packages. The objects that use a value check it, too. The keys here are a selection; a test compares which values are
rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, Final

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from quantpipe.app.arguments import arranged
from quantpipe.app.complete import VALUES
from quantpipe.app.files import folder_of
from quantpipe.app.hints import composed, in_our_words, no_option
from quantpipe.app.targets import PLUGINS
from quantpipe.errors import ConfigError, nearest
from quantpipe.option_checks import flag, integer, number, one_of

WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **{key: legal for key, legal in VALUES.items() if key != "command"},
        "search.weights": ("nearest", "recovered"),
        "search.candidate_form": ("auto", "simulated", "integer"),
        "precision.mode": ("auto", "none"),
        "evaluate.baseline": ("auto", "none"),
        "evaluate.explain": ("auto", "none"),
    }
)
"""Key -> its legal words."""
FLAGS: Final = ("strict", "search.refine")
_NO_LIMIT: Final = ", or null for no limit"
INTEGERS: Mapping[str, tuple[int, str]] = MappingProxyType(
    {
        "seed": (0, ""),
        "search.max_evaluations": (1, _NO_LIMIT),
        "search.finalists": (1, ""),
        "precision.max_evaluations": (1, ""),
        "evaluate.agreement_samples": (1, ""),
        "evaluate.layer_samples": (1, ""),
        "evaluate.latency_runs": (1, ""),
        "evaluate.realized_samples": (1, ", or null for all"),
    }
)
"""Key -> the least legal integer, and other legal values in words (null)."""
NUMBERS: Mapping[str, tuple[Mapping[str, float], str]] = MappingProxyType(
    {
        "search.max_seconds": ({"above": 0.0}, _NO_LIMIT),
        "search.target": ({}, ", or null for none"),
        "precision.loss_above": ({"least": 0.0}, ""),
        "objective.tolerance": ({"least": 0.0}, ""),
        "evaluate.warn_sqnr_db": ({}, ", or null for no warning"),
        "evaluate.latency_seconds": ({"above": 0.0}, ""),
    }
)
"""Key -> its bounds, and other legal values in words (null)."""
CHECKED: Final = (*WORDS, *FLAGS, *INTEGERS, *NUMBERS)


def wrong_value(given: Mapping[str, Any]) -> str | None:
    """Return a paragraph about the first value that is not legal for its key, or None; other keys are left alone."""
    try:
        for key, value in given.items():
            _check(key, value)
    except ConfigError as error:
        return str(error)
    return None


def _check(key: str, value: Any) -> None:
    """Raise ConfigError for a value that is not legal."""
    if key in WORDS and isinstance(value, str):
        one_of(key, value, WORDS[key])
    elif key in FLAGS:
        flag(key, value)
    elif key in INTEGERS:
        least, also = INTEGERS[key]
        if not (also and value is None):
            integer(key, value, least=least, also=also)
    elif key in NUMBERS:
        bounds, also = NUMBERS[key]
        if not (also and value is None):
            number(key, value, **bounds, also=also)


MULTIRUN = ("-m", "--multirun")
LEFT_TO_THE_PROGRAM = ("hardware.", "hydra.", "hydra/", "plugins")


def wrong_name(arguments: Sequence[str]) -> str | None:
    """Return a paragraph about the first name that does not exist, or None."""
    words = arranged([a for a in arguments if a not in MULTIRUN])
    doubtful = any(w.startswith(("-", "~")) or "://" in w or "${" in w or "=" not in w for w in words)
    if doubtful or list(entry_points(group=PLUGINS)):
        return None
    try:
        parsed = [_parsed(word) for word in words]
    except HydraException as error:
        return " ".join(str(error).split())
    folders = {group.name: group for group in folder_of("conf").iterdir() if group.is_dir()}
    if (wrong := no_option(words, {**folders, "experiments": folder_of("experiments")})) is not None:
        return wrong
    folder, place = str(folder_of("conf")), f"hydra.searchpath=[file://{folder_of('experiments').parent}]"
    checked = [o for o in parsed if not o.key_or_group.startswith(LEFT_TO_THE_PROGRAM)]
    groups = [o for o in checked if o.key_or_group in (*folders, "experiments")]
    chosen = [text for override in groups for text in _choices(override)]
    given = [place, *(_first(o) for o in checked)]
    try:
        for text in chosen:
            composed(folder, [place, text])
        config = composed(folder, given)
    except HydraException as error:
        return in_our_words(error, folder, [place, *(_first(o) for o in groups)])
    except (OmegaConfBaseException, ValueError, TypeError):
        return None
    command, legal = config.command, VALUES["command"]
    if isinstance(command, str) and command not in legal:
        return f"command: is {command!r}{nearest(command, legal)}; legal are {', '.join(legal)}"
    keys = [override.key_or_group for override in checked if not override.is_sweep_override()]
    return wrong_value({key: OmegaConf.select(config, key) for key in keys if key in CHECKED})


def _parsed(word: str) -> Override:
    return OverridesParser.create().parse_override(f"+{word}" if word.startswith("experiments=") else word)


def _choices(override: Override) -> list[str]:
    """Return an override of a group for each option of a sweep but the first; the whole line composes the first."""
    value = override.value()
    options = value.list[1:] if isinstance(value, ChoiceSweep) else []
    return [f"{_key(override)}={option}" for option in options]


def _first(override: Override) -> str:
    """Return an override with the first value of a sweep."""
    value = override.value()
    if isinstance(value, ChoiceSweep):
        return f"{_key(override)}={value.list[0]}"
    return str(override.input_line) if not override.is_sweep_override() else f"{_key(override)}=null"


def _key(override: Override) -> str:
    plus = "++" if override.is_force_add() else "+" if override.is_add() else ""
    return f"{plus}{override.key_or_group}"
