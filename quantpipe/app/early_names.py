"""Answer a mistyped option, key, command or common value before anything heavy is imported.

Hydra composes the configuration alone. The words are the same as later (`hints.py`). Whatever is in doubt is left to
the program: flags, addresses, keys of hardware files (which may be like others), own configuration folders, and plug-in
packages.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from quantpipe.app.arguments import arranged
from quantpipe.app.complete import VALUES
from quantpipe.app.early_values import CHECKED, wrong_value
from quantpipe.app.files import folder_of
from quantpipe.app.hints import composed, in_our_words, no_option
from quantpipe.app.targets import PLUGINS
from quantpipe.errors import nearest

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
