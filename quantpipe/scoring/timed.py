"""Candidates by how long they take: each one is realized and run in turns with the float model.

The cost is the median of the pairs' ratios, so 1 is the float model's latency and drift of the machine hits both alike.
A measured cost is never the same twice: a resumed search takes what its log says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from quantpipe.arrays import Feeds
from quantpipe.graph.execute import Session
from quantpipe.lowering import Rendered
from quantpipe.metrics.latency import interleaved
from quantpipe.types import Point, Score


class TimedMeasure:
    """Adds the latency to what `measure` finds, and makes it the cost.

    realize: the integer model of a point. feeds: one sample. runs, max_seconds: pairs of runs per candidate, and how
    long they may take (but five pairs at least). One candidate is timed at a time, whatever `measure` does in parallel.
    """

    def __init__(
        self,
        measure: Callable[[Sequence[Point]], Iterable[Score]],
        realize: Callable[[Point], Rendered],
        float_session: Session,
        feeds: Feeds,
        *,
        runs: int,
        max_seconds: float,
    ) -> None:
        self._measure, self._realize, self._float, self._feeds = measure, realize, float_session, feeds
        self._runs, self._max_seconds = runs, max_seconds

    def __call__(self, points: Sequence[Point]) -> list[Score]:
        """Score the points, with a measured latency as the cost: the realized model's over the float model's."""
        scores = list(self._measure(points))  # to the end: no worker may compute beside what is timed
        return [self._timed(point, score) for point, score in zip(points, scores, strict=True)]

    def _timed(self, point: Point, score: Score) -> Score:
        if math.isnan(score.value):  # the device cannot express it, or it gives no numbers: it is never chosen
            return replace(score, cost=math.inf)
        realized = Session(self._realize(point).model, where="realized model")
        found = interleaved((self._float, realized), self._feeds, self._runs, self._max_seconds)
        return replace(
            score,
            cost=found["ratio"],
            metrics=(*score.metrics, ("float_ms", found["float_ms"]), ("realized_ms", found["realized_ms"])),
        )
