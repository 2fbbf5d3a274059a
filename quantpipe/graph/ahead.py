"""Run batches of a model side by side, and yield their results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future, wait
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")


def in_order(
    pool: Executor, call: Callable[[Given], Made], items: Iterable[Given], count: int
) -> Generator[tuple[Given, Future[Made]], None, None]:
    """Yield each item with the future result of `call`, in order, while `pool` works on the next ones.

    At most `count` are under way when one is yielded; an item is taken only when it is begun. A caller that stops early
    (and closes the generator) waits for calls that have begun.
    """
    under_way: deque[tuple[Given, Future[Made]]] = deque()
    try:
        for item in items:
            under_way.append((item, pool.submit(call, item)))
            if len(under_way) >= count:
                yield under_way.popleft()
        while under_way:
            yield under_way.popleft()
    finally:
        for _, future in under_way:
            future.cancel()
        wait([future for _, future in under_way])
