"""The evaluator stands between an algorithm and the expensive function: memo, log, budget, best so far."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from quantpipe.search.algorithm import Measure
from quantpipe.search.log import TrialLog
from quantpipe.search.objective import Objective
from quantpipe.search.options import real, whole
from quantpipe.types import Point, Score, Trial


class BudgetExhausted(Exception):
    """Control flow between `Evaluator` and `run_search`; algorithms let it pass."""


class Evaluator:
    """Answers points, each measured at most once; the state of one run.

    measure: scores points; called with at most `batch_size` points, all new. After each call its trials are logged,
        so `batch_size` is also how many measurements a kill can lose.
    max_evaluations: how many distinct points are answered, from the log or by measuring (None: no limit).
    max_seconds: wall seconds of measuring after which no measurement begins (None: no limit). Trials from the log count
        with their logged seconds but are always answered: a resumed run gets as far as the first one before it
        measures, and then stops where one uninterrupted run would have.
    on_trial: called with each newly measured trial and the best one so far.
    clock: seconds, for tests.

    Whatever `measure` or `on_trial` raise, KeyboardInterrupt included, passes through; what was logged stays.
    """

    def __init__(
        self,
        measure: Measure,
        objective: Objective,
        *,
        max_evaluations: int | None = None,
        max_seconds: float | None = None,
        log: TrialLog | None = None,
        batch_size: int = 1,
        on_trial: Callable[[Trial, Trial], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.objective = objective
        self.max_evaluations = (
            None
            if max_evaluations is None
            else whole("search.max_evaluations", max_evaluations, least=1, also=", or null for no limit")
        )
        self.max_seconds = (
            None
            if max_seconds is None
            else real("search.max_seconds", max_seconds, above=0.0, also=", or null for no limit")
        )
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; at least 1 point is measured at a time")
        self.batch_size = batch_size
        self.best: Trial | None = None
        self.trace: list[Trial] = []
        """Each trial that was the best when it was answered."""
        self.evaluations_new = 0
        self.seconds = 0.0
        self._measure, self._log, self._on_trial, self._clock = measure, log, on_trial, clock
        self._answered: dict[Point, Trial] = {}
        earlier = [] if log is None else log.read()
        self._logged: dict[Point, Trial] = {}
        for trial in earlier:
            self._logged.setdefault(trial.point, trial)
        self._next_number = max((trial.number for trial in earlier), default=-1) + 1

    @property
    def evaluations(self) -> int:
        """Distinct points answered."""
        return len(self._answered)

    def __call__(self, points: Sequence[Point]) -> list[Score]:
        """The scores in the order of the points; BudgetExhausted, after answering what the budget allows."""
        asked = [tuple(int(i) for i in point) for point in points]
        waiting: list[Point] = []
        for point in dict.fromkeys(asked):
            if point in self._answered:
                continue
            if self.max_evaluations is not None and self.evaluations + len(waiting) >= self.max_evaluations:
                self._work(waiting)
                raise BudgetExhausted
            if point in self._logged:
                # Trials are answered in the order asked, so that ties and the trace come out as in the first run.
                self._work(waiting)
                waiting = []
                self._answer(self._logged[point])
            else:
                waiting.append(point)
        self._work(waiting)
        return [self._answered[point].score for point in asked]

    def _work(self, points: Sequence[Point]) -> None:
        """Measure new points, a batch at a time."""
        for first in range(0, len(points), self.batch_size):
            if self.max_seconds is not None and self.seconds >= self.max_seconds:
                raise BudgetExhausted
            batch = points[first : first + self.batch_size]
            begin = self._clock()
            scores = self._measure(batch)
            seconds = (self._clock() - begin) / len(batch)
            if len(scores) != len(batch):
                raise ValueError(f"measure gave {len(scores)} scores for {len(batch)} points")
            for point, score in zip(batch, scores, strict=True):
                self._keep(Trial(self._next_number, point, _plain(score), seconds))

    def _keep(self, trial: Trial) -> None:
        if self._log is not None:
            self._log.append(trial)
        self._next_number += 1
        self.evaluations_new += 1
        best = self._answer(trial)
        if self._on_trial is not None:
            self._on_trial(trial, best)

    def _answer(self, trial: Trial) -> Trial:
        self._answered[trial.point] = trial
        self.seconds += trial.seconds
        if self.best is None or self.objective.better(trial.score, self.best.score):
            self.best = trial
            self.trace.append(trial)
        return self.best


def _plain(score: Score) -> Score:
    """The score in Python floats: a NumPy float32 would compare otherwise than the number that the log gives back."""
    if math.isnan(score.cost):
        raise ValueError(f"measure gave a cost that is no number: {score}")
    return Score(float(score.value), float(score.cost), tuple((name, float(value)) for name, value in score.metrics))
