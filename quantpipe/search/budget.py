"""How far a search goes, and how its candidates are handed to the function that measures them."""

from __future__ import annotations

from dataclasses import dataclass

from quantpipe.option_checks import integer, number


@dataclass(frozen=True)
class Budget:
    """Where a search ends, whichever comes first; None is no limit. ConfigError, by key, for what has no meaning.

    `max_evaluations`: How many distinct points are answered, from the log or by measuring. `max_seconds`: Wall seconds
    of measuring after which no measurement begins. Trials from the log count with their logged seconds but are always
    answered: a resumed run gets as far as the first one before it measures, and then stops where one uninterrupted run
    would have. `target`: As `Objective.reaches` takes it; the first trial that is so good ends the search.
    """

    max_evaluations: int | None = None
    max_seconds: float | None = None
    target: float | None = None

    def __post_init__(self) -> None:
        if self.max_evaluations is not None:
            most = integer("search.max_evaluations", self.max_evaluations, least=1, also=", or null for no limit")
            object.__setattr__(self, "max_evaluations", most)
        if self.max_seconds is not None:
            seconds = number("search.max_seconds", self.max_seconds, above=0.0, also=", or null for no limit")
            object.__setattr__(self, "max_seconds", seconds)
        if self.target is not None:
            object.__setattr__(self, "target", number("search.target", self.target, also=", or null for none"))


@dataclass(frozen=True)
class Batching:
    """How `measure` is called.

    `size`: With at most so many points, all new (None: with all that were asked). A list of scores is logged when the
    call returns, those of an iterator one by one; so what a kill can lose is one batch, or what the iterator has in
    flight. `prunes`: It takes a second argument, a function that returns whether a partial score can no longer win.
    """

    size: int | None = 1
    prunes: bool = False

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise ValueError(f"the batch size is {self.size}; at least 1 point is measured at a time")
