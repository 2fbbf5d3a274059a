"""Streamed second moments against all rows at once in float64."""

from __future__ import annotations

import numpy as np
import pytest

from quantpipe.recover.reconstruct.moments import MomentCollector, Moments


def collected(x: np.ndarray, quantized: np.ndarray, cuts: list[int], weight: np.ndarray) -> Moments:
    collector = MomentCollector(x.shape[1], x.shape[2], weight)
    for a, b in zip(np.split(x, cuts), np.split(quantized, cuts), strict=True):
        collector.add(np.moveaxis(b, 0, 2).copy(), collector.seen(np.moveaxis(a, 0, 2).copy()))
    return collector.finish()


def weights(outs: int, groups: int = 2, width: int = 5) -> np.ndarray:
    return np.random.default_rng(outs).standard_normal((groups, outs, width))


def rows(seed: int = 0, n: int = 200, groups: int = 2, width: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Correlated rows with a mean, and a noisy copy of them with another mean."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, groups, width)) @ rng.standard_normal((width, width)) + rng.standard_normal(width)
    noisy = x + 0.2 * rng.standard_normal(x.shape) + 0.1
    return x.astype(np.float32), noisy.astype(np.float32)


def assert_moments(found: Moments, x: np.ndarray, quantized: np.ndarray, weight: np.ndarray, tolerance: float) -> None:
    a, b = np.einsum("gok,ngk->ngo", weight, x.astype(np.float64)), quantized.astype(np.float64)
    ca, cb = a - a.mean(axis=0), b - b.mean(axis=0)
    assert found.output is not None
    np.testing.assert_allclose(found.output.mean, a.mean(axis=0), atol=tolerance)
    np.testing.assert_allclose(found.mean, b.mean(axis=0), atol=tolerance)
    np.testing.assert_allclose(found.hessian, np.einsum("ngi,ngj->gij", cb, cb) / len(a), atol=tolerance)
    np.testing.assert_allclose(found.output.cross, np.einsum("ngo,ngk->gok", ca, cb) / len(a), atol=tolerance)
    assert found.rows == len(a)


OUTS = pytest.mark.parametrize("outs", [1, 2, 3, 7], ids="{}_outputs".format)
"""Of five inputs: narrow enough to be taken in themselves, or not."""


@OUTS
@pytest.mark.parametrize("cuts", [[], [1], [50, 120], list(range(1, 200))], ids=["at once", "one", "three", "rows"])
def test_the_moments_are_those_of_all_rows(cuts: list[int], outs: int) -> None:
    (x, quantized), weight = rows(), weights(outs)
    assert_moments(collected(x, quantized, cuts, weight), x, quantized, weight, 2e-4)


@OUTS
def test_a_large_mean_costs_no_precision(outs: int) -> None:
    (x, quantized), weight = rows(), weights(outs)
    found = collected(x + 3000, quantized + 3000, [50, 120], weight)
    assert_moments(found, x + 3000, quantized + 3000, weight, 1e-2)


@pytest.mark.parametrize("cuts", [[], [37, 100]])
def test_constant_inputs_have_no_second_moment(cuts: list[int]) -> None:
    values = np.random.default_rng(0).uniform(-9, 9, (1, 1, 40)).astype(np.float32)
    constant = np.repeat(values, 160, axis=0)
    found = collected(constant, constant, cuts, weights(30, 1, 40))
    assert found.output is not None
    assert not found.hessian.any() and not found.output.cross.any()
    np.testing.assert_allclose(found.mean[0], values[0, 0], rtol=1e-6)


def test_without_a_weight_there_are_the_moments_of_the_input() -> None:
    _, quantized = rows()
    collector = MomentCollector(2, 5)
    for part in np.split(quantized, [80]):
        collector.add(np.moveaxis(part, 0, 2).copy())
    found = collector.finish()
    np.testing.assert_array_equal(found.hessian, collected(quantized, quantized, [80], weights(1)).hessian)
    assert found.output is None and found.about_zero.output is None


@OUTS
def test_about_zero_the_means_count(outs: int) -> None:
    (x, quantized), weight = rows(), weights(outs)
    found = collected(x, quantized, [], weight).about_zero
    y = np.einsum("gok,ngk->ngo", weight, x)
    assert found.output is not None
    np.testing.assert_allclose(found.hessian, np.einsum("ngi,ngj->gij", quantized, quantized) / len(x), rtol=1e-4)
    np.testing.assert_allclose(found.output.cross, np.einsum("ngo,ngk->gok", y, quantized) / len(x), atol=1e-3)


def test_nothing_collected() -> None:
    found = MomentCollector(2, 3).finish()
    assert found.rows == 0 and found.uncertainty == 0 and not found.hessian.any()
