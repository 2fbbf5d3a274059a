"""The shape of a configuration: which keys must be there, and which of them are sections.

A command line may remove a key (`~search`) or replace a section by a word (`evaluate=x`). A user's file may be in a
group's folder for the top level (`# @package _global_`). All code after this check may rely on the keys that it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantpipe.errors import ConfigError

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "model": ("path",),
    "dataset": ("_target_",),
    "hardware": (),
    "schema": (),
    "threshold": ("activations", "weights"),
    "threshold.activations": ("_target_",),
    "threshold.weights": ("method",),
    "search": ("algorithm", "max_evaluations", "max_seconds", "candidate_form", "weights", "refine", "finalists"),
    "search.algorithm": ("_target_",),
    "objective": ("metric", "form", "tolerance", "cost"),
    "precision": (),
    "recover": (),
    "realize": ("backend",),
    "effort": (),
    "executor": ("_target_",),
    "tracking": ("_target_",),
    "replay": (),
    "choices": (),
    "annotate": (),
    "calibrate": (),
    "profile": (),
    "evaluate": (),
    "detections": (),
    "check": (),
    "explain": (),
}
"""Every section that is read as one, with the keys that it cannot do without."""


def check_shape(plain: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    """Raise ConfigError where one of `keys` (top level) or of SECTIONS is missing, or a section is no mapping."""
    for key in keys:
        if key not in plain:
            raise _missing(key)
    for section, needed in SECTIONS.items():
        found: Any = plain
        for part in section.split("."):
            found = found[part]  # a section stands in the table behind those it lies in
        if not isinstance(found, Mapping):
            below = f" with {', '.join(needed)}" if needed else ""
            raise ConfigError(f"is {found!r}; legal is a mapping{below}", where=section)
        for key in needed:
            if key not in found:
                raise _missing(f"{section}.{key}")


def _missing(key: str) -> ConfigError:
    return ConfigError(
        f"is missing from the configuration; leave out the override that takes it away (~{key.split('.')[0]}…), and "
        "'# @package' in a file of your own that was to give it",
        where=key,
    )
