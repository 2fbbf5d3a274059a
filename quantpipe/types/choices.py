"""The search space and what moves through a search: points, scores, trials. Nothing here knows of ONNX."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log10, prod

from quantpipe.types.choice_key import OF_RANGES, read_key

Point = tuple[int, ...]
"""An index into each choice's options, in the order of the space's choices."""

OptionValue = int | str
"""A number of bits, a threshold step, a percentage; or a word (`float`, `per_tensor`)."""


@dataclass(frozen=True)
class Choice:
    """Describe one decision; index 0 of `options` is where a search starts.

    `key` is unique and readable (`bits:conv1.weight`); `edges` are the graph edges that share the decision. `graded`:
    each option is coarser and no dearer than the one before it. This is so for bits, but not for threshold steps, nor
    for `float` after `integer`.
    """

    key: str
    kind: str
    options: tuple[OptionValue, ...]
    edges: tuple[str, ...] = ()
    graded: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", tuple(self.options))
        object.__setattr__(self, "edges", tuple(self.edges))

    @property
    def free(self) -> bool:
        """Return whether no option costs anything: a range changes what a model is worth, and nothing that is paid."""
        return self.kind in OF_RANGES

    @property
    def subject(self) -> str:
        """Return the subject of the choice: the name of a tensor, a weight or a node."""
        read = read_key(self.key)
        return self.key if read is None else read.subject

    def nearest(self, wanted: OptionValue | None) -> OptionValue:
        """Return an option that another space may lack here.

        It is the option itself; of bits that are not offered the next more precise one; else the first.
        """
        if wanted in self.options:
            return wanted
        finer = [o for o in self.options if isinstance(o, int) and isinstance(wanted, int) and o >= wanted]
        return finer[-1] if self.graded and finer else self.options[0]


@dataclass(frozen=True)
class ChoiceSpace:
    """Hold independent choices: every point is valid, because edges that must agree share one choice."""

    choices: tuple[Choice, ...]
    begin: tuple[Point, ...] = ()
    """Points of an earlier search that this one begins with, beside the most precise one; the space is the same."""

    @property
    def size(self) -> int:
        """Return how many points there are (an exact Python integer)."""
        return prod(len(c.options) for c in self.choices)

    @property
    def about(self) -> float | None:
        """Return the size as a float; None where it is beyond all floats (1.8e308)."""
        return float(self.size) if self.size <= int(sys.float_info.max) else None

    @property
    def log10(self) -> float:
        """Return the decimal logarithm of the size, whatever the size."""
        return log10(self.size)

    @property
    def start(self) -> Point:
        """Return the point of all first options: the most precise one of graded choices."""
        return tuple(0 for _ in self.choices)

    def extended(self, more: tuple[Choice, ...] | list[Choice]) -> ChoiceSpace:
        """Return the space with further choices after its own; its starting point has their first options."""
        ends = (0,) * len(more)
        return ChoiceSpace((*self.choices, *more), tuple((*point, *ends) for point in self.begin))

    def with_options(self, others: tuple[Choice, ...] | list[Choice]) -> ChoiceSpace:
        """Return the space with some of its choices, by their keys, having other options.

        Where what it begins with has an option that is no longer there, it has the first.
        """
        found = {choice.key: choice for choice in others}
        made = tuple(found.get(choice.key, choice) for choice in self.choices)
        pairs = list(zip(self.choices, made, strict=True))

        def moved(point: Point) -> Point:
            return tuple(
                new.options.index(old.options[i]) if old.options[i] in new.options else 0
                for (old, new), i in zip(pairs, point, strict=True)
            )

        return ChoiceSpace(made, tuple(moved(point) for point in self.begin))

    def decode(self, point: Point) -> dict[str, OptionValue]:
        """Return a mapping: choice key -> chosen option."""
        return {c.key: c.options[i] for c, i in zip(self.choices, point, strict=True)}

    def encode(self, assignment: Mapping[str, OptionValue]) -> Point:
        """Return the point of an assignment; KeyError or ValueError when it names what the space lacks."""
        return tuple(c.options.index(assignment[c.key]) for c in self.choices)

    def __iter__(self) -> Iterator[Choice]:
        return iter(self.choices)

    def __len__(self) -> int:
        return len(self.choices)


SOFT_KL = "soft_kl"
"""Among the metrics of a score, KL divergence at a temperature, in units of the plain one."""


@dataclass(frozen=True)
class Score:
    """State what one point is worth: `value` is the objective, higher is better; `cost` is lower-is-better.

    `metrics` holds further numbers for the log (top1, kl, bits, …). `pruned`: the measurement was given up, as it could
    not win any more; `value` is then an upper bound of what it would have been, and `cost` is exact.
    """

    value: float
    cost: float
    metrics: tuple[tuple[str, float], ...] = ()
    pruned: bool = False

    @property
    def soft(self) -> float | None:
        """Return minus `soft_kl`, None where it was not measured."""
        return next((-found for name, found in self.metrics if name == SOFT_KL), None)

    @property
    def compared(self) -> float:
        """Return what orders losses, higher is better: minus `soft_kl` where it was measured, else the value."""
        return self.value if self.soft is None else self.soft


@dataclass(frozen=True)
class Trial:
    """Record one evaluated point: a line of trials.jsonl."""

    number: int
    point: Point
    score: Score
    seconds: float
