"""Decisions of a search that change what the graph is, rather than its numbers: each leads to a topology of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from quantpipe.types.choice_key import ChoiceKind, choice_key

FLOAT = "float"
INTEGER = "integer"
SHARED, OWN = "shared", "own"
"""The scale of a join: the one of its operands, or one of its own, to which they are rescaled."""


@dataclass(frozen=True)
class Structure:
    """Hold what departs from the default topology, as sorted pairs (key of the choice, option); empty: nothing does.

    `float:NODE` is `float`; `add:NODE` a treatment of additions; `granularity:WEIGHT` per_channel or per_tensor;
    `rescale:NODE` is `own`.
    `block:WEIGHT` the input channels of a block.
    """

    decided: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "decided", tuple(sorted((str(k), str(v)) for k, v in self.decided)))

    def __bool__(self) -> bool:
        return bool(self.decided)

    @cached_property
    def by_key(self) -> Mapping[str, str]:
        """Return the decisions as a mapping: key of the choice -> option."""
        return dict(self.decided)

    def floats(self, node: str) -> bool:
        """Return whether a node is decided to stay in float."""
        return self.by_key.get(choice_key(ChoiceKind.FLOAT, node)) == FLOAT

    def addition(self, node: str) -> str | None:
        """Return how this addition takes its operands, where that is decided."""
        return self.by_key.get(choice_key(ChoiceKind.ADD, node))

    def granularity(self, weight: str) -> str | None:
        """Return how many scales a weight has, where that is decided."""
        return self.by_key.get(choice_key(ChoiceKind.GRANULARITY, weight))

    def rescales(self, node: str) -> bool:
        """Return whether the operands of a join are decided to be rescaled to a scale of its result."""
        return self.by_key.get(choice_key(ChoiceKind.RESCALE, node)) == OWN

    def block(self, weight: str) -> int | None:
        """Return how many input channels a block of a weight has, where that is decided."""
        size = self.by_key.get(choice_key(ChoiceKind.BLOCK, weight))
        return None if size is None else int(size)


DEFAULT = Structure()
