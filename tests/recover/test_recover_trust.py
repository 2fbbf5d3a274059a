"""Few samples: moments of two parts are those of the whole, and held-out samples choose the regularization."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quantpipe.recover.layer import LayerOptions, solve
from quantpipe.recover.moments import Moments, merged
from quantpipe.recover.trust import DOUBTS, held_error, solve_held
from tests.recover.test_recover_layer import problem, real, weights

Floats = np.ndarray[Any, np.dtype[np.float64]]
WIDTH, OUTS = 60, 40


def moments_of(x: Floats, y: Floats) -> Moments:
    """Of rows x and x̂ = y, `[n, K]`, one group."""
    a, b = x - x.mean(axis=0), y - y.mean(axis=0)
    return Moments((b.T @ b / len(x))[None], (a.T @ b / len(x))[None], x.mean(0)[None], y.mean(0)[None], len(x))


def rows(count: int, seed: int, noise: float = 0.3) -> tuple[Floats, Floats]:
    """Correlated inputs with another mean than 0, and the same with errors that have nothing to do with them."""
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(5).standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)
    x = rng.standard_normal((count, WIDTH)) @ mix + np.linspace(-1, 1, WIDTH)
    return x, x + noise * rng.standard_normal(x.shape)


def output_error(weight: Floats, made: Floats, x: Floats, y: Floats) -> float:
    """Mean of |x·Wᵀ - y·Vᵀ|² about its mean, from the rows themselves."""
    difference = x @ weight[0].T - y @ made[0].T
    return float(((difference - difference.mean(axis=0)) ** 2).sum(axis=1).mean())


@pytest.mark.parametrize("count", [1, 7, 100])
def test_moments_of_two_parts_are_those_of_all_rows(count: int) -> None:
    x, y = rows(120, 0)
    found, whole = merged(moments_of(x[:count], y[:count]), moments_of(x[count:], y[count:])), moments_of(x, y)
    assert found.rows == 120
    for name in ("hessian", "cross", "mean_float", "mean_quantized"):
        np.testing.assert_allclose(getattr(found, name), getattr(whole, name), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("propagate", [True, False])
def test_the_held_error_is_that_of_the_rows_but_for_a_constant(propagate: bool) -> None:
    weight = weights(1, OUTS, WIDTH, 1)
    x, y = rows(300, 1)
    options = LayerOptions(propagate=propagate)
    solutions = [solve(problem(weight, bits), moments_of(x, y), options) for bits in (3, 4, 8)]
    off = [
        held_error(weight, s, moments_of(x, y), options) - output_error(weight, real(s), x if propagate else y, y)
        for s in solutions
    ]
    np.testing.assert_allclose(off, off[0], rtol=1e-9)


def test_without_a_bias_the_held_error_counts_the_mean() -> None:
    weight = weights(1, OUTS, WIDTH, 1)
    x, y = rows(300, 1)
    options = LayerOptions(correct_bias=False)
    off = []
    for bits in (3, 8):
        found = solve(problem(weight, bits), moments_of(x, y), options)
        error = np.sum((x @ weight[0].T - y @ real(found)[0].T) ** 2, axis=1).mean()
        off.append(held_error(weight, found, moments_of(x, y), options) - error)
    assert off[0] == pytest.approx(off[1])


def test_few_rows_are_trusted_less_and_serve_other_rows_better() -> None:
    """As many rows as inputs: the regularization that is right for many leaves much more error on others."""
    weight = weights(1, OUTS, WIDTH, 2)
    asked, options = problem(weight), LayerOptions()
    fresh = rows(5000, 99, noise=0.1)
    found, plain = [], []
    for seed in range(5):
        x, y = rows(60, seed, noise=0.1)
        held = solve_held(asked, moments_of(x[:40], y[:40]), moments_of(x[40:], y[40:]), options)
        trusting = solve(asked, moments_of(x, y), replace(options, rows_per_input=0.0))
        found.append(output_error(weight, real(held), *fresh))
        plain.append(output_error(weight, real(trusting), *fresh))
    assert np.mean(found) < 0.9 * np.mean(plain)


def test_many_rows_are_trusted_as_ever() -> None:
    weight = weights(1, OUTS, WIDTH, 3)
    (x, y), (a, b) = rows(20000, 0, noise=0.1), rows(6000, 1, noise=0.1)
    fitted, held = moments_of(x, y), moments_of(a, b)
    found = solve_held(problem(weight), fitted, held, LayerOptions())
    np.testing.assert_array_equal(found.integers, solve(problem(weight), merged(fitted, held), LayerOptions()).integers)
    assert DOUBTS[0] == 1.0


def test_more_outputs_than_are_looked_at_give_the_same_choice_for_each_group() -> None:
    """Two groups of more outputs than the choice is made by, with bounds per output."""
    rng = np.random.default_rng(0)
    weight = np.concatenate([weights(1, 70, WIDTH, 4), weights(1, 70, WIDTH, 5)])
    x, y = rows(400, 6)
    one, two = moments_of(x[:300], y[:300]), moments_of(x[300:], y[300:])

    def twice(m: Moments) -> Moments:
        parts = (m.hessian, m.cross, m.mean_float, m.mean_quantized)
        return Moments(*(np.concatenate([p, p]) for p in parts), m.rows)

    zero = rng.integers(-2, 3, (2, 70)).astype(np.float64)
    asked = replace(problem(weight), bounds=(-7 - zero, 7 - zero))
    found = solve_held(asked, twice(one), twice(two), LayerOptions())
    assert found.integers.shape == (2, 70, WIDTH)
    assert np.all(found.integers >= (-7 - zero)[..., None]) and np.all(found.integers <= (7 - zero)[..., None])
