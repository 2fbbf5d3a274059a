"""Hydra's refusals of a command line in our words: which key, what was meant perhaps, what would be legal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf

from quantpipe.errors import nearest

_NO_KEY = re.compile(r"Could not override '([^']+)'")
_NO_OPTION = re.compile(
    r"Could not find '([^'/]+)/([^']+)'.*?Available options in '[^']+':\s*(.*?)\s*Config search path", re.S
)


def in_our_words(error: HydraException, folder: str, overrides: Sequence[str]) -> str | None:
    """A paragraph about a key or an option that does not exist, or None for anything else. `overrides`: those without
    a mistake, such as the search path and the options of groups."""
    text = str(error)
    if (found := _NO_OPTION.search(text)) is not None:
        group, option, legal = found[1], found[2], found[3].split()
        return f"{group}: has no option {option!r}{nearest(option, legal)}; legal are {', '.join(legal)}"
    if (found := _NO_KEY.search(text)) is not None:
        return _no_key(found[1], list(_keys(_composed(folder, overrides))))
    return None


def _no_key(key: str, known: Sequence[str]) -> str:
    parent = key.rpartition(".")[0]
    inside = [k[len(parent) + 1 :] for k in known if k.startswith(f"{parent}.")] if parent else list(known)
    siblings = ", ".join(sorted({k.split(".")[0] for k in inside}))
    legal = f"; {f'below {parent}' if parent else 'at the top'} there are {siblings}" if siblings else ""
    return f"{key}: is no key{nearest(key, known)}{legal}"


def _composed(folder: str, overrides: Sequence[str]) -> Any:
    """The configuration without the rest of the command line."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(folder, version_base="1.3"):
        return OmegaConf.to_container(compose("config", overrides=list(overrides)), resolve=False)


def _keys(node: Any, prefix: str = "") -> Iterator[str]:
    """Every dotted key of a configuration, inner ones included."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield f"{prefix}{name}"
            yield from _keys(value, f"{prefix}{name}.")
