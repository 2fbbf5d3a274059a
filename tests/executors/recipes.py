"""Recipes for other processes: a toy whose workers can be told to die, to fail, or to take their time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from quantpipe.errors import HardwareError
from quantpipe.types import Point, Score


@dataclass(frozen=True)
class ToyRecipe:
    """A point (x, y) is worth -(x - 3)² - y; `folder` takes one file per process and per measurement.

    A worker that measures `deadly` kills itself, at most `deaths` times; one that measures `illegal` raises.
    """

    folder: Path
    deadly: Point | None = None
    deaths: int = 1
    illegal: Point | None = None
    seconds: float = 0.0
    is_picklable: bool = True

    def make(self, threads: int | None = None, share: int = 1) -> Callable[..., Iterator[Score]]:
        (self.folder / f"process-{os.getpid()}-{threads}-{share}").touch()

        def measure(points: Sequence[Point], should_prune: Callable[[Score], bool] | None = None) -> Iterator[Score]:
            return (self._score(point, should_prune) for point in points)

        return measure

    def _score(self, point: Point, should_prune: Callable[[Score], bool] | None) -> Score:
        (self.folder / f"measured-{'-'.join(map(str, point))}-{os.getpid()}-{time.monotonic_ns()}").touch()
        time.sleep(self.seconds)
        if point == self.illegal:
            raise HardwareError("no such point", stage="plan", where="toy")
        if point == self.deadly and len(list(self.folder.glob("death-*"))) < self.deaths:
            (self.folder / f"death-{os.getpid()}").touch()
            os.kill(os.getpid(), 9)
        score = worth(point)
        if should_prune is not None and should_prune(score):
            return Score(score.value, score.cost, pruned=True)
        return score

    def processes(self) -> set[int]:
        return {int(p.name.split("-")[1]) for p in self.folder.glob("process-*")}

    def measured(self, point: Point) -> int:
        return len(list(self.folder.glob(f"measured-{'-'.join(map(str, point))}-*")))


def worth(point: Point) -> Score:
    x, y = point
    return Score(-float((x - 3) ** 2) - y, float(x), (("x", float(x)),))
