"""Names of choices: what kind of decision, and about what (`float:conv1`). They are made and read here alone."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class ChoiceKind(StrEnum):
    """Name the kinds of decisions that a search may take."""

    BITS = "bits"
    STEP = "threshold_step"
    CLIP = "clip_percent"
    RANGE = "range"
    FLOAT = "float"
    ADD = "add"
    GRANULARITY = "granularity"
    RESCALE = "rescale"
    BLOCK = "block"


STRUCTURAL = frozenset({ChoiceKind.FLOAT, ChoiceKind.ADD, ChoiceKind.GRANULARITY, ChoiceKind.RESCALE, ChoiceKind.BLOCK})
"""Kinds that change what the graph is, rather than its numbers."""

OF_RANGES = frozenset({ChoiceKind.STEP, ChoiceKind.CLIP, ChoiceKind.RANGE})
"""Kinds that change the range of a scale group. A strategy holds the ranges that follow, not the decisions."""

_WORDS: Mapping[ChoiceKind, str] = {kind: kind.value for kind in ChoiceKind} | {
    ChoiceKind.STEP: "step",
    ChoiceKind.CLIP: "clip",
}
_KINDS: Mapping[str, ChoiceKind] = {word: kind for kind, word in _WORDS.items()}


class ChoiceKey(NamedTuple):
    """Hold what a key says: the kind of the choice, and the tensor, node or weight that it is about."""

    kind: ChoiceKind
    subject: str


def choice_key(kind: ChoiceKind, subject: str) -> str:
    """Return the key of a choice, as searches, logs, `choices.fix` and reports name it."""
    return f"{_WORDS[kind]}:{subject}"


def read_key(key: str) -> ChoiceKey | None:
    """Return the kind and subject of a key; None for a key of no kind of choice."""
    word, colon, subject = key.partition(":")
    kind = _KINDS.get(word)
    return ChoiceKey(kind, subject) if colon and kind is not None else None


def is_structural(key: str) -> bool:
    """Return whether the choice of a key changes the graph."""
    read = read_key(key)
    return read is not None and read.kind in STRUCTURAL
