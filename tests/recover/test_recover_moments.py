"""Streamed second moments against all rows at once in float64."""

from __future__ import annotations

import numpy as np
import pytest

from quantpipe.recover.moments import MomentCollector, Moments


def collected(x: np.ndarray, quantized: np.ndarray, cuts: list[int]) -> Moments:
    collector = MomentCollector(x.shape[1], x.shape[2])
    for a, b in zip(np.split(x, cuts), np.split(quantized, cuts), strict=True):
        collector.add(np.moveaxis(b, 0, 2).copy(), np.moveaxis(a, 0, 2).copy())
    return collector.finish()


def rows(seed: int = 0, n: int = 200, groups: int = 2, width: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Correlated rows with a mean, and a noisy copy of them with another mean."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, groups, width)) @ rng.standard_normal((width, width)) + rng.standard_normal(width)
    noisy = x + 0.2 * rng.standard_normal(x.shape) + 0.1
    return x.astype(np.float32), noisy.astype(np.float32)


def assert_moments(found: Moments, x: np.ndarray, quantized: np.ndarray, tolerance: float) -> None:
    a, b = x.astype(np.float64), quantized.astype(np.float64)
    ca, cb = a - a.mean(axis=0), b - b.mean(axis=0)
    np.testing.assert_allclose(found.mean_float, a.mean(axis=0), atol=tolerance)
    np.testing.assert_allclose(found.mean_quantized, b.mean(axis=0), atol=tolerance)
    np.testing.assert_allclose(found.hessian, np.einsum("ngi,ngj->gij", cb, cb) / len(a), atol=tolerance)
    np.testing.assert_allclose(found.cross, np.einsum("ngi,ngj->gij", ca, cb) / len(a), atol=tolerance)
    assert found.rows == len(a)


@pytest.mark.parametrize("cuts", [[], [1], [50, 120], list(range(1, 200))], ids=["at once", "one", "three", "rows"])
def test_the_moments_are_those_of_all_rows(cuts: list[int]) -> None:
    x, quantized = rows()
    assert_moments(collected(x, quantized, cuts), x, quantized, 1e-4)


def test_a_large_mean_costs_no_precision() -> None:
    x, quantized = rows()
    assert_moments(collected(x + 3000, quantized + 3000, [50, 120]), x + 3000, quantized + 3000, 2e-3)


@pytest.mark.parametrize("cuts", [[], [37, 100]])
def test_constant_inputs_have_no_second_moment(cuts: list[int]) -> None:
    values = np.random.default_rng(0).uniform(-9, 9, (1, 1, 40)).astype(np.float32)
    constant = np.repeat(values, 160, axis=0)
    found = collected(constant, constant, cuts)
    assert not found.hessian.any() and not found.cross.any()
    np.testing.assert_allclose(found.mean_quantized[0], values[0, 0], rtol=1e-6)


def test_alone_the_quantized_input_is_the_float_one() -> None:
    _, quantized = rows()
    collector = MomentCollector(2, 5, cross=False)
    for part in np.split(quantized, [80]):
        collector.add(np.moveaxis(part, 0, 2).copy())
    found = collector.finish()
    np.testing.assert_array_equal(found.mean_float, found.mean_quantized)
    np.testing.assert_array_equal(found.hessian, collected(quantized, quantized, [80]).hessian)
    assert not found.cross.any()


def test_nothing_collected() -> None:
    found = MomentCollector(2, 3).finish()
    assert found.rows == 0 and not found.hessian.any()
