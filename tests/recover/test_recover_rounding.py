"""Roundings against every integer there is, on layers small enough to try them all."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from quantpipe.recover.reconstruct.gptq import BLOCK, ROUNDINGS, row_errors

Floats = np.ndarray[Any, np.dtype[np.float64]]
TOP = 3.0


def layer(groups: int, outs: int, width: int, seed: int, correlated: float = 1.0) -> tuple[Floats, Floats, Floats]:
    """Targets, two scales per row and a second moment whose inputs have a part in common."""
    rng = np.random.default_rng(seed)
    mix = rng.standard_normal((groups, width, width))
    hessian = correlated * mix @ mix.transpose(0, 2, 1) / width + 0.1 * np.eye(width)
    target = rng.standard_normal((groups, outs, width))
    scale = np.abs(target).max(axis=2) / TOP
    return target, np.stack([scale, 0.7 * scale]), hessian


def rounded(how: str, target: Floats, scales: Floats, hessian: Floats) -> tuple[Floats, Floats]:
    bounds = np.full(target.shape[:2], -TOP), np.full(target.shape[:2], TOP)
    return ROUNDINGS[how](hessian)(target, scales, bounds)


def error_of(integers: Floats, target: Floats, scale: float, hessian: Floats) -> float:
    difference = integers * scale - target
    return float(difference @ hessian @ difference)


def least_error(target: Floats, scale: float, hessian: Floats) -> float:
    """Over all integers."""
    every = np.array(list(itertools.product(np.arange(-TOP, TOP + 1), repeat=len(target)))) * scale - target
    return float(np.einsum("nk,kl,nl->n", every, hessian, every).min())


@pytest.mark.parametrize("how", ROUNDINGS)
@pytest.mark.parametrize("seed", range(5))
def test_errors_are_those_of_the_integers_and_none_is_below_the_least(how: str, seed: int) -> None:
    target, scales, hessian = layer(2, 3, 4, seed)
    integers, errors = rounded(how, target, scales, hessian)
    assert np.abs(integers).max() <= TOP and np.array_equal(integers, np.rint(integers))
    for s, g, o in np.ndindex(errors.shape):
        found = error_of(integers[s, g, o], target[g, o], scales[s, g, o], hessian[g])
        assert errors[s, g, o] == pytest.approx(found)
        assert found >= least_error(target[g, o], scales[s, g, o], hessian[g]) - 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_coordinate_descent_ends_where_no_single_weight_can_do_better(seed: int) -> None:
    target, scales, hessian = layer(2, 3, 5, seed, correlated=5.0)
    integers, errors = rounded("coordinate_descent", target, scales, hessian)
    for s, g, o in np.ndindex(errors.shape):
        for k, value in itertools.product(range(5), np.arange(-TOP, TOP + 1)):
            other = integers[s, g, o].copy()
            other[k] = value
            assert error_of(other, target[g, o], scales[s, g, o], hessian[g]) >= errors[s, g, o] - 1e-9
    assert np.all(errors <= rounded("nearest", target, scales, hessian)[1] + 1e-9)


def test_over_many_rows_both_are_near_the_best_and_nearest_is_not() -> None:
    target, scales, hessian = layer(1, 40, 5, 0, correlated=5.0)
    best = sum(least_error(target[0, o], scales[0, 0, o], hessian[0]) for o in range(40))
    total = {how: float(rounded(how, target, scales[:1], hessian)[1].sum()) for how in ROUNDINGS}
    assert max(total["gptq"], total["coordinate_descent"]) < 1.5 * best < total["nearest"] / 1.15


@pytest.mark.parametrize("how", ROUNDINGS)
@pytest.mark.parametrize("width", [3, BLOCK, 2 * BLOCK + 5])
def test_scales_and_rows_do_not_disturb_one_another(how: str, width: int) -> None:
    target, scales, hessian = layer(2, 3, width, width)
    integers, errors = rounded(how, target, scales, hessian)
    for s, g, o in np.ndindex(errors.shape):
        one, error = rounded(how, target[g : g + 1, o : o + 1], scales[s : s + 1, g : g + 1, o : o + 1], hessian[[g]])
        np.testing.assert_array_equal(one[0, 0, 0], integers[s, g, o])
        assert error[0, 0, 0] == pytest.approx(errors[s, g, o])


def test_row_errors() -> None:
    target, _, hessian = layer(2, 3, 4, 0)
    wanted = [[error_of(np.zeros(4), target[g, o], 1.0, hessian[g]) for o in range(3)] for g in range(2)]
    np.testing.assert_allclose(row_errors(target, hessian), wanted)
