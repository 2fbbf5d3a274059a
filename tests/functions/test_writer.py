"""The writer of programs knows the bounds of each step: no value leaves them, and both ends are reached."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantpipe.errors import HardwareError
from quantpipe.plan.programs.softmax import long_exponentials, tflite_softmax
from quantpipe.plan.programs.writer import MOST, ProgramValue, ProgramWriter
from quantpipe.types import DType, Rounding
from tests.functions.test_softmax import grid

SMALL = st.tuples(st.integers(-9, 9), st.integers(-9, 9)).map(lambda ends: (min(ends), max(ends)))
POSITIVE = st.tuples(st.integers(1, 9), st.integers(1, 9)).map(lambda ends: (min(ends), max(ends)))


def span(ends: tuple[int, int]) -> range:
    return range(ends[0], ends[1] + 1)


def written(*operands: tuple[int, int]) -> tuple[ProgramWriter, list[ProgramValue]]:
    writer = ProgramWriter("node", operands)
    return writer, [writer.operand(n) for n in range(len(operands))]


def cut(a: int, b: int) -> int:
    """A / b towards zero."""
    return -(-a // b) if a < 0 else a // b


def expect(made: ProgramValue, values: Iterable[int], *, tight: bool = True) -> None:
    found = list(values)
    assert made.low <= min(found) and max(found) <= made.high
    if tight:
        assert (made.low, made.high) == (min(found), max(found))


BINARY: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
}


@pytest.mark.parametrize("op", BINARY)
@given(a=SMALL, b=SMALL)
def test_two_values(op: str, a: tuple[int, int], b: tuple[int, int]) -> None:
    writer, (x, y) = written(a, b)
    expect(getattr(writer, op)(x, y), itertools.starmap(BINARY[op], itertools.product(span(a), span(b))))
    number = b[0]
    expect(getattr(writer, op)(x, number), (BINARY[op](v, number) for v in span(a)))


@given(a=SMALL, b=POSITIVE)
def test_quotients(a: tuple[int, int], b: tuple[int, int]) -> None:
    writer, (x, y) = written(a, b)
    expect(writer.div(x, y), itertools.starmap(cut, itertools.product(span(a), span(b))), tight=a[0] <= 0 <= a[1])
    with pytest.raises(HardwareError, match="it would divide by 0"):
        writer.div(x, ProgramValue(1, 0, b[1]))


@given(a=SMALL, count=st.integers(0, 3), low=st.integers(-9, 9), size=st.integers(0, 5))
def test_one_value(a: tuple[int, int], count: int, low: int, size: int) -> None:
    writer, (x,) = written(a)
    expect(writer.square(x), (v * v for v in span(a)))
    half = (1 << count) >> 1
    expect(writer.shift(x, count), ((v + half) >> count for v in span(a)))
    expect(writer.shift(x, count, Rounding.FLOOR), (v >> count for v in span(a)))
    expect(writer.clip(x, low, low + size), (min(max(v, low), low + size) for v in span(a)))
    expect(writer.sum_over(x, (1,), 3), (u + v + w for u, v, w in itertools.product(span(a), repeat=3)))
    expect(writer.max_over(x, (1,)), span(a))


@given(a=POSITIVE, count=st.tuples(st.integers(0, 2), st.integers(0, 2)))
def test_positive_values(a: tuple[int, int], count: tuple[int, int]) -> None:
    shifts = (min(count), max(count))
    writer, (x, n) = written(a, shifts)
    expect(writer.bits(x), (v.bit_length() for v in span(a)))
    expect(writer.sqrt(x), (math.isqrt(v) for v in span(a)))
    right = ((v + ((1 << c) >> 1)) >> c for v, c in itertools.product(span(a), span(shifts)))
    expect(writer.shift_right(x, n), right, tight=False)


@given(a=SMALL, matrix=st.lists(st.lists(st.integers(-2, 2), min_size=2, max_size=2), min_size=1, max_size=3))
def test_products_with_a_matrix(a: tuple[int, int], matrix: list[list[int]]) -> None:
    writer, (x,) = written(a)
    pairs = np.asarray(list(itertools.product(span(a), repeat=2)))
    expect(writer.matmul(x, np.asarray(matrix), -2), (np.asarray(matrix) @ pairs.T).reshape(-1).tolist())
    expect(writer.matmul(x, np.asarray(matrix).T, -1), (pairs @ np.asarray(matrix).T).reshape(-1).tolist())


def test_a_table_is_read_within_its_entries_alone() -> None:
    entries = np.asarray([5, -2, 7])
    for low, high in ((0, 2), (1, 1)):
        writer, (x,) = written((low, high))
        expect(writer.table(x, entries), entries.tolist())
    for low, high in ((0, 3), (-1, 2)):
        writer, (x,) = written((low, high))
        with pytest.raises(HardwareError, match=f"a table of 3 entries is read at {low} to {high}"):
            writer.table(x, entries)


@pytest.mark.parametrize("sign", [1, -1])
def test_what_leaves_int64_is_refused(sign: int) -> None:
    writer, (x,) = written((0, 1))
    assert writer.mul(x, sign * (MOST - 1)).peak == MOST - 1
    with pytest.raises(HardwareError, match=f"a value of its integer form could reach {MOST}"):
        writer.mul(x, sign * MOST)


def test_a_row_of_sixteen_bits_whose_sum_leaves_int32_is_refused() -> None:
    data, out = grid(DType.INT16, 0.001), grid(DType.INT16, 2.0**-15)
    greatest = int(long_exponentials(0.001, 65535).max())
    most = ((1 << 31) - 1) // greatest
    assert tflite_softmax(ProgramWriter("node", [(-32768, 32767)]), data, out, (1,), count=most).high <= 32767
    with pytest.raises(HardwareError, match=f"a row of {most + 1} elements is too long for its sums"):
        tflite_softmax(ProgramWriter("node", [(-32768, 32767)]), data, out, (1,), count=most + 1)
