"""The time that an optional part of an evaluation may take, and whether it is spent."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from copy import copy


def worked() -> tuple[float, float]:
    """Return the present in seconds by the clock, and the seconds of all cores (ended children too)."""
    return time.perf_counter(), time.process_time() + sum(os.times()[2:4])


class Spending:
    """Count seconds from now on against a limit.

    A second counts by the clock or by the work of all cores, whichever is less: other programs on a busy machine take
    nothing from the limit. `clock` is for tests.
    """

    def __init__(self, limit: float = math.inf, clock: Callable[[], tuple[float, float]] = worked) -> None:
        self.limit = limit
        self._clock, self._began = clock, clock()

    def first(self, share: float) -> Spending:
        """Return the first share of the same time."""
        found = copy(self)
        found.limit = share * self.limit
        return found

    @property
    def spent(self) -> float:
        """Return the seconds until now."""
        return min(now - began for now, began in zip(self._clock(), self._began, strict=True))

    def over(self, ahead: float = 0.0) -> bool:
        """Return whether the limit is reached, or would be after so many seconds more."""
        return self.spent + ahead >= self.limit


UNLIMITED = Spending()
"""A limit that is never reached."""
