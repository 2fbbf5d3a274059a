"""Everything in this process, one point after the other, each with all cores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quantpipe.scoring.workers.executor import ScorerFactory, ShouldPrune, kind_of, release
from quantpipe.types import Point, Score


@dataclass(frozen=True)
class Serial:
    """Measure in this process (conf/executor/serial.yaml)."""

    def open(self, recipe: ScorerFactory) -> Local:
        """Return a worker that measures in this process."""
        return Local(recipe)


class Local:
    """Measure in this process, as the one worker."""

    count = 1

    def __init__(self, recipe: ScorerFactory) -> None:
        self.measure = recipe.make()

    def __call__(self, points: Sequence[Point], should_prune: ShouldPrune | None = None) -> Iterator[Score]:
        """Yield the scores of the points in order, measured in this process."""
        return self.measure(points, should_prune)

    @property
    def kind(self) -> str:
        """Return the evaluator that the measure decided for."""
        return kind_of(self.measure)

    def close(self) -> None:
        """Release what the measure keeps."""
        release(self.measure)
