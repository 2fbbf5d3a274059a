"""Threads for recovery's own algebra."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from quantpipe.graph.execute import available_cores

Given = TypeVar("Given")
Made = TypeVar("Made")


MOST = 8
"""Threads whose items are in memory at the same time."""


@contextmanager
def one_thread_each(threads: int | None = None) -> Iterator[ThreadPoolExecutor]:
    """Yield threads for the algebra, each with a linear algebra library of one thread.

    Small products then do not wait for one another, and sums are made in the same order however many cores there are.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1, user_api="blas"), ThreadPoolExecutor(threads or available_cores()) as pool:
        yield pool


def in_threads(call: Callable[[Given], Made], items: Iterable[Given]) -> list[Made]:
    """Return what `call` gives for each item, made side by side where there are several."""
    listed = list(items)
    if len(listed) < 2:
        return [call(item) for item in listed]
    with one_thread_each(min(MOST, available_cores())) as pool:
        return list(pool.map(call, listed))
