"""Answer a mistyped value of a common key before anything heavy is imported.

The objects that use a value check it, too. This is a selection of keys; a test compares which values are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from quantpipe.app.complete import VALUES
from quantpipe.errors import ConfigError
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
