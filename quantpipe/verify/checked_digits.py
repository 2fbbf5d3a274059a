"""Check sums that float32 cannot hold at once, which the simulated model adds up by digits or by parts.

Each piece must stay below 2^24.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.verify.files import expect
from quantpipe.verify.numbers import EXACT

Array = NDArray[Any]


def expect_digits(weight: Array, axis: int, peak: int, carried: Mapping[str, Any], *, where: str) -> None:
    """Check that every pair of digits of data (up to `peak`) and weights has sums that float32 holds."""
    count, bits = (int(v) for v in carried["data"])
    first = _round_half_even(peak, (count - 1) * bits)
    most_data = first if count == 1 else max(first, 1 << (bits - 1))
    others = tuple(a for a in range(weight.ndim) if a != axis)
    for digit in digits(weight, *(int(v) for v in carried["weight"])):
        most = int(np.max(np.abs(digit).sum(axis=others), initial=0)) * most_data
        expect(most < EXACT, where, f"a digit's sums reach {most}, which float32 does not hold exactly")


def digits(values: Array, count: int, bits: int) -> Iterator[Array]:
    """Yield the integers whose sum, times powers of 2^bits, is `values`; the largest first, ties to even."""
    rest = values.astype(np.int64)
    for place in range(count - 1, 0, -1):
        below = rest >> (place * bits)
        half, step = 1 << (place * bits - 1), 1 << (place * bits)
        remainder = rest - (below << (place * bits))
        digit = below + ((remainder > half) | ((remainder == half) & ((below & 1) == 1)))
        yield digit
        rest = rest - digit * step
    yield rest


def _round_half_even(value: int, count: int) -> int:
    return next(iter(digits(np.array([value]), 2, count)))[0].item() if count else value


def expect_parts(
    weight: Array, peaks: Array, peak: int, parts: Sequence[Sequence[int]], *, half: int, where: str
) -> None:
    """Check a transposed convolution whose input channels are cut into parts.

    The parts must be all of the channels, and each one's sums (with the bias, where there is one part) below 2^24.

    `weight`: integers less their zero points, `[Cin, ...]`.
    """
    edges = [0, *(int(p[1]) for p in parts)]
    whole = [[a, b] for a, b in itertools.pairwise(edges)]
    expect(bool(parts) and [list(p) for p in parts] == whole and edges[-1] == len(weight), where,
           "its parts are not all of its input channels")  # fmt: skip
    sums = np.abs(weight).sum(axis=tuple(range(2, weight.ndim))) * peak
    most = int(np.max(peaks)) + half if len(parts) == 1 else max(int(sums[a:b].sum(axis=0).max()) for a, b in whole)
    expect(most < EXACT, where, f"a part's sums reach {most}, which float32 does not hold exactly")
