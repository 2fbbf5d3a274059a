"""Names that configurations of earlier versions use.

They go on working; a note says, once for each, what they are called today.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

_log = logging.getLogger(__name__)

MOVED = {
    "executors": ("scoring.workers", "Process|Ray|Serial|executor|process|ray|serial"),
    "search": (
        "search.algorithms",
        "annealing|evolutionary|greedy|greedy_backward|greedy_edge|grid|knapsack|random_search|surrogate|tpe|uniform",
    ),
    "data": (
        "data.sources",
        "digits|given|image_folder|iterable|npz|table|text|wav_folder",
    ),
}
"""Package -> the package that holds these modules now."""

KEYS = {
    "choices.pin": "choices.fix",
    "recover.enough": "recover.kl_target",
    "recover.growth": "recover.shrinkage_factor",
    "search.evaluator": "search.candidate_form",
}
"""Keys of the configuration, all of a section and a name in it."""

VALUES = {"recover.rounding": {"hessian": "gptq", "coordinate": "coordinate_descent"}}
"""Words that a key takes."""

STEPS = {"rounding": "gptq", "propagation": "gptq_compensated"}
"""Steps of recovery."""

PARAMETERS = {"growth": "shrinkage_factor"}
"""Of a step of recovery."""


def as_now_named(target: str) -> str:
    """Return the name that a target of an earlier version has today."""
    for package, (now, modules) in MOVED.items():
        found = re.match(rf"quantpipe\.{package}\.({modules})(?=[.:]|$)", target)
        if found:
            new = f"quantpipe.{now}{target[len(f'quantpipe.{package}') :]}"
            _note("target", target, new)
            return new
    return target


def argument_as_now_named(argument: str) -> str:
    """Return an argument of the command line with today's key: Hydra knows no other."""
    for old, new in KEYS.items():
        found = re.match(rf"([+~]*){re.escape(old)}(?=[.=]|$)", argument)
        if found:
            _note("key", old, new)
            return found[1] + new + argument[found.end() :]
    return argument


def config_as_now_named(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration, or what a caller gives of one, with today's keys and words; itself unchanged.

    An old key that a file gives wins over the default that stands under the new one.
    """
    renamed = dict(config)
    for old, new in KEYS.items():
        (section, before), (_, after) = old.split("."), new.split(".")
        content = renamed.get(section)
        if isinstance(content, Mapping) and before in content:
            _note("key", old, new)
            renamed[section] = {k: v for k, v in content.items() if k not in (before, after)} | {after: content[before]}
    for key, words in VALUES.items():
        section, name = key.split(".")
        content = renamed.get(section)
        if isinstance(content, Mapping) and isinstance(content.get(name), str):
            renamed[section] = {**content, name: _word(key, content[name], words)}
    recover = renamed.get("recover")
    if isinstance(recover, Mapping) and isinstance(recover.get("steps"), list | tuple):
        renamed["recover"] = {**recover, "steps": [_step(given) for given in recover["steps"]]}
    return renamed


def _step(given: Any) -> Any:
    """Return a step, which is a name, or a mapping of a name and parameters."""
    if isinstance(given, str):
        return _word("recover.steps", given, STEPS)
    if not isinstance(given, Mapping):
        return given
    found = {_word("recover.steps", key, PARAMETERS): value for key, value in given.items()}
    for key, words in (("name", STEPS), ("rounding", VALUES["recover.rounding"])):
        if isinstance(found.get(key), str):
            found[key] = _word("recover.steps", found[key], words)
    return found


def _word(key: str, given: Any, words: Mapping[str, str]) -> Any:
    now = words.get(given) if isinstance(given, str) else None
    if now is None:
        return given
    _note(f"word of {key}", given, now)
    return now


@cache
def _note(kind: str, old: str, new: str) -> None:
    _log.warning("the %s %r is deprecated: its name is now %r", kind, old, new)
