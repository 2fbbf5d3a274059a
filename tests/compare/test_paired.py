"""Tests of two models on the same samples, against sums over all outcomes."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantpipe.metrics.paired import holm, mcnemar, mean_interval, signed_rank


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_mcnemar_is_the_binomial_sum(pairs: list[tuple[bool, bool]]) -> None:
    first, second = (np.array(column) for column in zip(*pairs, strict=True))
    b, c, p = mcnemar(first, second)
    assert (b, c) == (sum(x and not y for x, y in pairs), sum(y and not x for x, y in pairs))
    n = b + c
    tail = sum(Fraction(comb(n, k), 2**n) for k in range(n + 1) if comb(n, k) <= comb(n, b))
    assert p == pytest.approx(float(tail))


def test_signed_rank_is_the_sum_over_all_signs() -> None:
    values = np.array([0.3, -0.1, 0.7, 1.1, -0.2, 0.55, 2.0, 0.9])
    ranks = np.argsort(np.argsort(np.abs(values))) + 1
    observed = abs(int(np.sum(np.sign(values) * ranks)))
    sums = [abs(int(np.dot(signs, ranks))) for signs in product((-1, 1), repeat=len(values))]
    assert signed_rank(values) == pytest.approx(sum(total >= observed for total in sums) / len(sums))
    assert signed_rank(np.zeros(5)) == 1.0
    assert signed_rank(np.array([np.nan, 0.0])) == 1.0


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_the_interval_of_a_mean() -> None:
    mean, low, high = mean_interval(np.array([1.0, 3.0, 2.0, 2.0]))
    assert (mean, high - mean) == pytest.approx((2.0, 1.96 * (2 / 3) ** 0.5 / 2))
    assert low + high == pytest.approx(4.0)
    assert mean_interval(np.array([5.0])) == (5.0, 5.0, 5.0)
