"""The protocol of executors, and their common parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Protocol, TypeVar

from quantpipe.option_checks import integer
from quantpipe.types import Point, Score

Handle = TypeVar("Handle")
ShouldPrune = Callable[[Score], bool]

IN_FLIGHT = 2
"""Points handed out per worker: one being measured and one behind it, so that no worker waits for another's turn."""


class Measure(Protocol):
    """Scores in the order of the points; each is measured when it is read."""

    def __call__(self, points: Sequence[Point], should_prune: ShouldPrune | None = None) -> Iterator[Score]:
        """Yield the scores of the points in order; `should_prune` decides which candidates can be given up."""


class ScorerFactory(Protocol):
    """Describe how to make a measure. It is pickled, and opened once in each process."""

    @property
    def is_picklable(self) -> bool:
        """Return whether the factory can be pickled.

        It cannot with a model beyond 2 GB or with weights in files, with samples that carry states, and with some
        functions of users.
        """

    def make(self, threads: int | None = None, share: int = 1) -> Measure:
        """Return a measure with `threads` for this process (None: every core).

        `share`: how many processes share the memory.
        """


class Workers(Protocol):
    """The workers of one search: a measure that has to be closed. Reading its scores may raise what a worker raised."""

    def __call__(self, points: Sequence[Point], should_prune: ShouldPrune | None = None) -> Iterator[Score]:
        """Yield the scores of the points in order; `should_prune` decides which candidates can be given up."""

    def close(self) -> None:
        """End every process; what is in flight is lost."""

    @property
    def count(self) -> int:
        """Return how many processes measured, at most."""

    @property
    def kind(self) -> str:
        """Return which evaluator measured.

        It is `auto` where that is not known: nothing was measured, or not in this process.
        """


class Executor(Protocol):
    """Say where candidates are measured."""

    def open(self, recipe: ScorerFactory) -> Workers:
        """Return workers that measure by the recipe."""


def kind_of(measure: Measure | None) -> str:
    """Return the evaluator that a measure decided for, where it has several."""
    return str(getattr(measure, "kind", "auto"))


def release(measure: Measure | None) -> None:
    """Let a measure give back what it keeps between points, where it keeps something."""
    getattr(measure, "release", lambda: None)()


def worker_count(workers: int | None, cores: int) -> int:
    """Return the number given, or one per core; ConfigError for any other value."""
    if workers is None:
        return cores
    return integer("executor.workers", workers, least=1, also=", or null for one per core")


def in_order(
    points: Sequence[Point],
    window: int,
    submit: Callable[[Point], Handle],
    result: Callable[[Handle], Score],
    *,
    cancel: Callable[[Handle], object],
) -> Iterator[Score]:
    """Yield scores in the order of the points, with at most `window` points submitted at a time.

    `submit` begins the measurement of a point, `result` waits for its score, and `cancel` gives up a measurement.
    """
    rest = iter(points)
    waiting: deque[Handle] = deque()
    try:
        waiting.extend(submit(point) for point in islice(rest, window))
        while waiting:
            score = result(waiting[0])
            waiting.popleft()
            waiting.extend(submit(point) for point in islice(rest, 1))
            yield score
    finally:
        for handle in waiting:
            cancel(handle)
