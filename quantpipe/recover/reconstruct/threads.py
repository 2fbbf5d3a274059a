"""Threads for recovery's own algebra."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from quantpipe.graph.execute import available_cores


@contextmanager
def one_thread_each() -> Iterator[ThreadPoolExecutor]:
    """Yield threads for the algebra, each with a linear algebra library of one thread.

    Small products then do not wait for one another, and sums are made in the same order however many cores there are.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1, user_api="blas"), ThreadPoolExecutor(available_cores()) as pool:
        yield pool
