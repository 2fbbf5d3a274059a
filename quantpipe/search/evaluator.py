"""The evaluator stands between an algorithm and the expensive function: memo, log, budget, best so far."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from quantpipe.search.algorithm import Measure
from quantpipe.search.budget import Batching, Budget
from quantpipe.search.log import TrialLog
from quantpipe.search.objective import Objective
from quantpipe.types import Point, Score, Trial


class BudgetExhausted(Exception):
    """Control flow between `Evaluator` and `run_search`; algorithms let it pass."""


class TargetReached(BudgetExhausted):
    """The best trial is as good as was asked for."""


@dataclass(frozen=True)
class ShouldPrune:
    """Tell whether even the best that a score can still become is not better than an incumbent.

    It travels to other processes.
    """

    objective: Objective
    incumbent: Score

    def __call__(self, still_possible: Score) -> bool:
        """Return whether a candidate that can reach `still_possible` at best cannot beat the incumbent."""
        return not self.objective.better(still_possible, self.incumbent)


class Evaluator:
    """Answers points, each measured at most once (twice, if it was given up and its exact score is asked for later).

    measure: scores points, as `batching` says.
    budget: where it rejects to go on; none by default.
    log: where trials are kept, and where trials of an earlier run come from.
    on_trial: called with each newly measured trial and the best one so far.
    clock: seconds, for tests.

    Whatever `measure` or `on_trial` raise, KeyboardInterrupt included, passes through; what was logged stays.
    """

    def __init__(
        self,
        measure: Measure,
        objective: Objective,
        *,
        budget: Budget = Budget(),  # noqa: B008  (frozen)
        batching: Batching = Batching(),  # noqa: B008  (frozen)
        log: TrialLog | None = None,
        on_trial: Callable[[Trial, Trial], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.objective = objective
        self.budget = budget
        self.best: Trial | None = None
        self.trace: list[Trial] = []
        """Each trial that was the best when it was answered."""
        self.evaluations_new = 0
        self.pruned = 0
        """Trials that were given up."""
        self.seconds = 0.0
        self._measure, self._batching = measure, batching
        self._log, self._on_trial, self._clock = log, on_trial, clock
        self._answered: dict[Point, Trial] = {}
        earlier = [] if log is None else log.read()
        self._logged: dict[Point, list[Trial]] = {}
        for trial in earlier:
            self._logged.setdefault(trial.point, []).append(trial)
        # A line that was dropped as damaged leaves its number to the trial that is measured in its place.
        taken = {trial.number for trial in earlier}
        self._numbers = (number for number in count() if number not in taken)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Return everything answered, in that order."""
        return tuple(self._answered.values())

    @property
    def evaluations(self) -> int:
        """Return distinct points answered."""
        return len(self._answered)

    def __call__(self, points: Sequence[Point], incumbent: Score | None = None) -> list[Score]:
        """Return the scores in the order of the points.

        Raises BudgetExhausted, after answering what the budget allows.
        """
        asked = [tuple(int(i) for i in point) for point in points]
        waiting: list[Point] = []
        left = math.inf if (most := self.budget.max_evaluations) is None else most - self.evaluations
        for point in dict.fromkeys(asked):
            if self._serves(self._answered.get(point), incumbent):
                continue
            if point not in self._answered:
                if left <= 0:
                    self._work(waiting, incumbent)
                    raise BudgetExhausted
                left -= 1
            logged = next((trial for trial in self._logged.get(point, ()) if self._serves(trial, incumbent)), None)
            if logged is not None:
                # Trials are answered in the order asked, so that ties and the trace come out as in the first run.
                self._work(waiting, incumbent)
                waiting = []
                self._answer(logged)
                self._refuse_to_go_on()
            else:
                waiting.append(point)
        self._work(waiting, incumbent)
        return [self._answered[point].score for point in asked]

    def _serves(self, trial: Trial | None, incumbent: Score | None) -> bool:
        """Whether a trial is an answer: an exact one always, one that was given up if it cannot beat this incumbent."""
        if trial is None or not trial.score.pruned:
            return trial is not None
        return incumbent is not None and not self.objective.better(trial.score, incumbent)

    def _work(self, points: Sequence[Point], incumbent: Score | None) -> None:
        """Measure new points, a batch at a time."""
        size = self._batching.size or max(len(points), 1)
        should_prune = (
            (ShouldPrune(self.objective, incumbent),) if incumbent is not None and self._batching.prunes else ()
        )
        for first in range(0, len(points), size):
            self._refuse_overtime()
            batch = points[first : first + size]
            begin = self._clock()
            scores = self._measure(batch, *should_prune)
            if isinstance(scores, Sequence):
                self._whole(batch, scores, (self._clock() - begin) / len(batch))
            else:
                self._stream(batch, iter(scores), begin)

    def _whole(self, batch: Sequence[Point], scores: Sequence[Score], seconds: float) -> None:
        if len(scores) != len(batch):
            raise ValueError(f"measure gave {len(scores)} scores for {len(batch)} points")
        for point, score in zip(batch, scores, strict=True):
            self._keep(Trial(next(self._numbers), point, _plain(score), seconds))

    def _stream(self, batch: Sequence[Point], scores: Iterator[Score], begin: float) -> None:
        """Each score is kept as it comes; its seconds are those since the one before (several may be in flight)."""
        try:
            for number, point in enumerate(batch):
                if number:
                    self._refuse_overtime()
                score = next(scores, None)
                if score is None:
                    raise ValueError(f"measure gave {number} scores for {len(batch)} points")
                now = self._clock()
                self._keep(Trial(next(self._numbers), point, _plain(score), now - begin))
                begin = now
        finally:
            close = getattr(scores, "close", None)
            if close is not None:
                close()

    def _refuse_overtime(self) -> None:
        most = self.budget.max_seconds
        if most is not None and self.seconds >= most:
            raise BudgetExhausted

    def _keep(self, trial: Trial) -> None:
        if self._log is not None:
            self._log.append(trial)
        self.evaluations_new += 1
        best = self._answer(trial)
        if self._on_trial is not None:
            self._on_trial(trial, best)
        self._refuse_to_go_on()

    def _refuse_to_go_on(self) -> None:
        """TargetReached as soon as it is, in the order of the answers, so that a resumed search ends alike."""
        target = self.budget.target
        if target is not None and self.best is not None and self.objective.reaches(self.best.score, target):
            raise TargetReached

    def _answer(self, trial: Trial) -> Trial:
        self._answered[trial.point] = trial
        self.seconds += trial.seconds
        self.pruned += trial.score.pruned
        # What was given up was not better than the incumbent: it is never the best, whatever its bound says.
        if self.best is None or (not trial.score.pruned and self.objective.better(trial.score, self.best.score)):
            self.best = trial
            self.trace.append(trial)
        return self.best


def _plain(score: Score) -> Score:
    """The score in Python floats: a NumPy float32 would compare otherwise than the number that the log gives back."""
    if math.isnan(score.cost):
        raise ValueError(f"measure gave a cost that is no number: {score}")
    metrics = tuple((name, float(value)) for name, value in score.metrics)
    return Score(float(score.value), float(score.cost), metrics, bool(score.pruned))
