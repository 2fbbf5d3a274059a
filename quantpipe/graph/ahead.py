"""Batches of a model that run beside one another, and are handed on in order."""

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
    """Yield each item with what `call` makes of it, in order, while the next ones are in the making.

    A caller that stops early (and closes the generator) waits for those that have begun.

    Args:
        pool: Makes them.
        call: What is done with an item.
        items: Taken one by one, none before it is begun.
        count: How many are under way when one is handed on, at most.

    Yields:
        The item, and its result to come.
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
