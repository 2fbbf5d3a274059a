"""moving_average against the recurrence it is defined by; searched thresholds in the table and their refusals."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from calibrate_samples import samples, stats_of
from hypothesis import given
from hypothesis import strategies as st

from quantpipe.calibrate.estimators import MSE, MaxRange, MovingAverage, Searched, clip_percents
from quantpipe.errors import ConfigError
from quantpipe.types import Range, Symmetry, TensorSchema

ASYMMETRIC = TensorSchema(symmetry=Symmetry.ASYMMETRIC)
pairs = st.tuples(st.floats(-1000, 1000, width=32), st.floats(-1000, 1000, width=32)).map(sorted)


def recurrence(values: list[float], momentum: float) -> float:
    """m_1 = x_1, m_i = m_{i-1} + c (x_i - m_{i-1}), in exact arithmetic."""
    average, c = Fraction(values[0]), Fraction(momentum)
    for value in values[1:]:
        average += c * (Fraction(value) - average)
    return float(average)


@given(st.lists(pairs, min_size=1, max_size=12), st.sampled_from([0.01, 0.1, 0.5, 0.9, 1.0]))
def test_it_is_the_recurrence(batches: list[list[float]], momentum: float) -> None:
    stats = stats_of(*(np.asarray(b, np.float32) for b in batches))
    low, high = (recurrence([b[i] for b in batches], momentum) for i in (0, 1))
    found = MovingAverage(momentum)(stats, 8, ASYMMETRIC)
    assert found.low == pytest.approx(min(low, 0.0), rel=1e-9, abs=1e-9)
    assert found.high == pytest.approx(max(high, 0.0), rel=1e-9, abs=1e-9)
    symmetric = MovingAverage(momentum)(stats, 8, TensorSchema())
    assert symmetric.threshold == pytest.approx(max(-min(low, 0.0), max(high, 0.0)), rel=1e-9, abs=1e-9)


def test_the_ends_of_the_momentum() -> None:
    stats = stats_of(*(np.asarray(p, np.float32) for p in ((-4.0, 8.0), (-2.0, 2.0), (-1.0, 3.0))))
    assert MovingAverage(1.0)(stats, 8, ASYMMETRIC) == Range(-1, 3)
    assert MovingAverage(1e-12)(stats, 8, ASYMMETRIC).high == pytest.approx(8.0)
    one = stats_of(samples("normal"))
    assert MovingAverage()(one, 8, ASYMMETRIC) == MaxRange()(one, 8, ASYMMETRIC)
    for momentum in (0.0, -0.1, 1.1):
        with pytest.raises(ConfigError, match="legal: 0 < momentum <= 1"):
            MovingAverage(momentum)


def test_long_passes_end_in_the_same_average() -> None:
    values = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    stats = stats_of(*values.reshape(-1, 1))
    assert len(stats.batch_extremes) == 4096
    expected = float(values[0])
    for value in values.tolist()[1:]:  # in floats: fractions of five thousand steps take minutes
        expected += 0.01 * (value - expected)
    assert MovingAverage()(stats, 8, ASYMMETRIC) == Range(min(expected, 0), max(expected, 0)) or np.isclose(
        MovingAverage()(stats, 8, ASYMMETRIC).high - MovingAverage()(stats, 8, ASYMMETRIC).low, abs(expected), 1e-9
    )


def test_a_searched_threshold_starts_at_its_base() -> None:
    stats = stats_of(samples("normal"))
    assert Searched()(stats, 8, ASYMMETRIC) == MaxRange()(stats, 8, ASYMMETRIC)
    assert Searched(MSE())(stats, 4, ASYMMETRIC) == MSE()(stats, 4, ASYMMETRIC)
    assert (Searched().needs_histogram, Searched(MSE()).needs_histogram) == (False, True)
    assert Searched(MovingAverage()).needs_batches and not Searched().needs_batches
    assert clip_percents(Searched(percents=[100, 50])) == (100, 50)
    assert clip_percents(MaxRange()) == ()


@pytest.mark.parametrize("percents", [[], [90, 50], [100, 50, 60], [100, 100], [100, 0], [100, 62.5], [100, 200]])
def test_a_grid_that_is_none_is_refused(percents: list[Any]) -> None:
    with pytest.raises(ConfigError, match="falling integers"):
        Searched(percents=percents)


def test_a_search_of_a_search_is_refused() -> None:
    with pytest.raises(ConfigError, match="base"):
        Searched(Searched())
