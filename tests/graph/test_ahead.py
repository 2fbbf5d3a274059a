"""Batches beside one another, handed on in order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from quantpipe.graph.ahead import in_order


def test_results_come_in_order_and_run_at_once() -> None:
    """Two that wait for each other end only if they run at the same time; the later one of a pair may end first."""
    both = threading.Barrier(2)

    def call(item: int) -> int:
        both.wait(timeout=30)
        return item * item

    with ThreadPoolExecutor(2) as pool:
        assert [(i, f.result()) for i, f in in_order(pool, call, range(6), 2)] == [(i, i * i) for i in range(6)]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_nothing_is_read_before_it_is_begun(count: int) -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for item in range(9):
            read.append(item)
            yield item

    with ThreadPoolExecutor(4) as pool, closing(in_order(pool, lambda i: i, items(), count)) as running:
        for item, _ in running:
            assert len(read) <= item + count


def test_who_stops_early_waits_for_what_has_begun() -> None:
    begun, ended = [], []

    def call(item: int) -> int:
        begun.append(item)
        ended.append(item)
        return item

    with ThreadPoolExecutor(2) as pool:
        with closing(in_order(pool, call, range(100), 2)) as running:
            next(running)
        assert sorted(begun) == sorted(ended) and len(begun) <= 3


def test_what_a_call_raises_comes_at_its_place() -> None:
    with ThreadPoolExecutor(2) as pool, closing(in_order(pool, lambda i: 1 // (2 - i), range(5), 2)) as running:
        assert next(running)[1].result() == 0
        assert next(running)[1].result() == 1
        with pytest.raises(ZeroDivisionError):
            next(running)[1].result()
