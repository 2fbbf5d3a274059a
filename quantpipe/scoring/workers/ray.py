"""Workers of a Ray cluster, on one machine or several; an extra (`pip install -e ".[ray]"`).

Points are tasks, which Ray repeats elsewhere when a worker dies. A worker process keeps its measure between tasks.
Paths in the recipe (image folders) must be the same on every machine.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from quantpipe.errors import ConfigError, WorkerError, brief
from quantpipe.graph.execute import available_cores
from quantpipe.option_checks import integer
from quantpipe.scoring.workers.executor import IN_FLIGHT, Measure, ScorerFactory, ShouldPrune, in_order, worker_count
from quantpipe.types import Point, Score

REACH_SECONDS = 10

RETRIES = 3
"""How often Ray repeats a point whose worker died."""


@dataclass(frozen=True)
class Ray:
    """Measure in tasks of a Ray cluster (conf/executor/ray.yaml).

    `address` None starts a cluster on this machine for the run; otherwise it names a running one (`auto`, `host:port`).
    `workers`: tasks at a time; None for one per core of the cluster. `threads` per task.
    """

    address: str | None = None
    workers: int | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        worker_count(self.workers, 1)
        integer("executor.threads", self.threads, least=1)

    def open(self, recipe: ScorerFactory) -> RayTasks:
        """Return tasks of the cluster that measure by the recipe."""
        return RayTasks(_ray(), recipe, self)


class RayTasks:
    """A connection to the cluster, closed with the search."""

    kind = "auto"

    def __init__(self, ray: Any, recipe: ScorerFactory, options: Ray) -> None:
        if not recipe.is_picklable:
            raise ConfigError(
                "a model beyond 2 GB or with weights in files, and data or functions that cannot be pickled, cannot be "
                "sent to other processes; legal is serial",
                where="executor",
            )
        self._ray, self._own = ray, not ray.is_initialized()
        cores = available_cores()
        if self._own:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            local = {"num_cpus": worker_count(options.workers, cores) * options.threads} if not options.address else {}
            try:
                _reach(options.address)
                ray.init(
                    address=options.address or "local",
                    include_dashboard=False if not options.address else None,
                    log_to_driver=False,
                    logging_level="ERROR",
                    **local,
                )
            except (OSError, RuntimeError, ValueError, TimeoutError) as error:
                raise ConfigError(
                    f"no Ray cluster can be used at {options.address or 'this machine'} ({brief(error)}); legal is the "
                    "address of a running one (ray start --head shows it), or null for one of this run alone",
                    where="executor.address",
                ) from error
        self.count = worker_count(options.workers, max(1, int(ray.cluster_resources()["CPU"]) // options.threads))
        self._recipe, self._key = [ray.put(recipe)], uuid.uuid4().hex
        self._task = ray.remote(num_cpus=options.threads, max_retries=RETRIES)(_score)
        self._more = (options.threads, self.count)

    def __call__(self, points: Sequence[Point], should_prune: ShouldPrune | None = None) -> Iterator[Score]:
        """Yield the scores of the points in order, measured in tasks of the cluster."""
        submit = partial(self._submit, should_prune=should_prune)
        return in_order(points, IN_FLIGHT * self.count, submit, self._result, cancel=self._ray.cancel)

    def close(self) -> None:
        """End the cluster, if this run started it."""
        if self._own:
            self._ray.shutdown()

    def _submit(self, point: Point, should_prune: ShouldPrune | None) -> Any:
        return self._task.remote(self._key, self._recipe, *self._more, point=point, should_prune=should_prune)

    def _result(self, task: Any) -> Score:
        try:
            found: Score = self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error  # as the worker raised it
        except self._ray.exceptions.RayError as error:
            raise WorkerError(
                f"a point could not be measured, nor when it was repeated ({' '.join(str(error).split())[:200]})",
                stage="search",
                where="executor",
            ) from error
        return found


def _reach(address: str | None) -> None:
    """Raise OSError for HOST:PORT where nothing listens; Ray itself would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), REACH_SECONDS).close()


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            'executor=ray needs the package ray (in the checkout: pip install -e ".[ray]"); legal without it are '
            "serial and process",
            where="executor",
        ) from error
    return ray


_measures: dict[str, Measure] = {}


def _score(
    key: str, recipe: Sequence[Any], threads: int, share: int, *, point: Point, should_prune: ShouldPrune | None
) -> Score:
    """Score in the worker; the recipe is a reference inside a list, so it is fetched once and not per task."""
    if key not in _measures:
        _measures.clear()
        _measures[key] = _ray().get(recipe[0]).make(threads, share)
    return next(_measures[key]([point], should_prune))
