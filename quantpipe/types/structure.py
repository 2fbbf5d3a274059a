"""Decisions of a search that change what the graph is, rather than its numbers: each leads to a topology of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

FLOAT = "float"
INTEGER = "integer"

FLOAT_KEY, ADD_KEY, GRANULARITY_KEY = "float:", "add:", "granularity:"
KEYS = (FLOAT_KEY, ADD_KEY, GRANULARITY_KEY)


@dataclass(frozen=True)
class Structure:
    """What departs from the default topology, as sorted pairs (key of the choice, option). Empty: nothing does.

    `float:NODE` is `float`; `add:NODE` a treatment of additions; `granularity:WEIGHT` per_channel or per_tensor.
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
        """Whether a node is decided to stay in float."""
        return self.by_key.get(FLOAT_KEY + node) == FLOAT

    def addition(self, node: str) -> str | None:
        """How this addition takes its operands, where that is decided."""
        return self.by_key.get(ADD_KEY + node)

    def granularity(self, weight: str) -> str | None:
        """How many scales a weight has, where that is decided."""
        return self.by_key.get(GRANULARITY_KEY + weight)


DEFAULT = Structure()
