"""Processes on this machine: each measures points of a batch with its share of the cores.

Starting them takes seconds (each loads the program and the model again). So they start when a batch is long enough to
pay for that, and single points are measured in this process. A worker that dies is replaced, and its points are
measured again. Workers end with the search, with Ctrl-C, and with this process, even if that is killed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from loky import ProcessPoolExecutor
from loky.process_executor import BrokenProcessPool

from quantpipe.errors import WorkerError
from quantpipe.graph.execute import available_cores
from quantpipe.option_checks import number
from quantpipe.scoring.workers.executor import (
    IN_FLIGHT,
    Measure,
    ScorerFactory,
    ShouldPrune,
    in_order,
    kind_of,
    release,
    worker_count,
)
from quantpipe.types import Point, Score

DEATHS = 3
"""In a row, without a score in between: then it is no accident."""

WATCH_SECONDS = 0.5


@dataclass(frozen=True)
class Process:
    """Measure in processes on this machine (conf/executor/process.yaml).

    `workers`: None for one per core. `start_seconds`: a batch that is expected to take at least this much longer here
    than in the processes starts them (0: every batch of several points does).
    """

    workers: int | None = None
    start_seconds: float = 5.0

    def __post_init__(self) -> None:
        worker_count(self.workers, 1)
        number("executor.start_seconds", self.start_seconds, least=0.0)

    def open(self, recipe: ScorerFactory) -> Processes:
        """Return workers that measure by the recipe."""
        return Processes(recipe, worker_count(self.workers, available_cores()), self.start_seconds)


@dataclass(frozen=True, eq=False)
class _Task:
    """A point that was handed out, and to which pool."""

    point: Point
    future: Future[Score]
    pool: ProcessPoolExecutor


class Processes:
    """A pool that starts late, and this process for single points."""

    def __init__(self, recipe: ScorerFactory, workers: int, start_seconds: float) -> None:
        self._recipe, self._start_seconds = recipe, start_seconds
        self._workers = workers if workers == 1 or recipe.is_picklable else 1
        self._local: Measure | None = None
        self._seconds: deque[float] = deque(maxlen=3)
        self._pool: ProcessPoolExecutor | None = None
        self._deaths = 0
        self.count = 1

    def __call__(self, points: Sequence[Point], should_prune: ShouldPrune | None = None) -> Iterator[Score]:
        """Yield the scores of the points in order, measured here until starting the processes is worth it."""
        rest = deque(points)
        while rest:
            if self._worth_it(len(rest)):
                yield from in_order(
                    tuple(rest),
                    IN_FLIGHT * self._workers,
                    partial(self._submit, should_prune=should_prune),
                    partial(self._result, should_prune=should_prune),
                    cancel=lambda task: task.future.cancel(),
                )
                return
            yield self._here(rest.popleft(), should_prune)

    @property
    def kind(self) -> str:
        """Return the evaluator that the measure in this process decided for."""
        return kind_of(self._local)

    def close(self) -> None:
        """End the processes, and release what the measure in this one keeps."""
        release(self._local)
        if self._pool is not None:
            self._pool.shutdown(wait=True, kill_workers=True)
            self._pool = None

    def _worth_it(self, points: int) -> bool:
        """Return whether a batch goes to the pool; the saved time is estimated from the last points here."""
        if points < 2 or self._workers < 2:
            return False
        if self._pool is not None or self._start_seconds <= 0:
            return True
        # The first point prepares what later ones share.
        usual = min(self._seconds) if len(self._seconds) > 1 else 0.0
        return usual * points * (1 - 1 / self._workers) > self._start_seconds

    def _here(self, point: Point, should_prune: ShouldPrune | None) -> Score:
        if self._local is None:
            self._local = self._recipe.make(None, 1 if self._workers == 1 else 2)
        begin = time.perf_counter()
        score = next(self._local([point], should_prune))
        if not score.pruned:
            self._seconds.append(time.perf_counter() - begin)
        return score

    def _submit(self, point: Point, should_prune: ShouldPrune | None) -> _Task:
        while True:
            if self._pool is None:
                threads = max(1, available_cores() // self._workers)
                # Half of the memory is this process's, for single points.
                begin = (self._recipe, threads, 2 * self._workers, os.getpid())
                self._pool = ProcessPoolExecutor(self._workers, initializer=_begin, initargs=begin)
                self.count = self._workers
            try:
                return _Task(point, self._pool.submit(_score, point, should_prune), self._pool)
            except BrokenProcessPool as error:
                self._buried(self._pool, error)

    def _result(self, task: _Task, should_prune: ShouldPrune | None) -> Score:
        while True:
            try:
                score = task.future.result()
            except BrokenProcessPool as error:
                self._buried(task.pool, error)
                task = self._submit(task.point, should_prune)
            else:
                self._deaths = 0
                return score

    def _buried(self, pool: ProcessPoolExecutor, error: BrokenProcessPool) -> None:
        """Replace a pool with a dead worker, once for all its points."""
        if pool is not self._pool:
            return
        self._deaths += 1
        self.close()
        if self._deaths >= DEATHS:
            raise WorkerError(
                f"worker processes died {DEATHS} times in a row ({' '.join(str(error).split())[:200]}); if memory is "
                "short give fewer executor.workers or executor=serial",
                stage="search",
                where="executor",
            ) from error


_measure: Measure | None = None


def _begin(recipe: ScorerFactory, threads: int, share: int, parent: int) -> None:
    """Prepare a worker, once."""
    global _measure
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent ends its workers itself
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _measure = recipe.make(threads, share)


def _end_with(parent: int) -> None:
    """End a worker whose parent was killed: it cannot report to anyone."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)


def _score(point: Point, should_prune: ShouldPrune | None) -> Score:
    if _measure is None:
        raise RuntimeError("a worker measures before it began")
    return next(_measure([point], should_prune))
