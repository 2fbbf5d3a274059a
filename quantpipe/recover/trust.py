"""How far the moments of few samples can be trusted: as far as the output of other samples gets better by them.

Where a layer has few sampled rows per input, what regression and rounding gain on them is lost on others: on
efficientnet_lite0 with 4-bit weights the rounding error of the last convolutions was three to five times as great on
images that they were not fitted to, and 94 times in the dense layer. So such a layer is solved on most of its samples
with several strengths of regularization, and the rest decide which one all of them are solved with.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantpipe.recover.layer import LayerOptions, Problem, Solved, solve
from quantpipe.recover.moments import Moments, merged

Floats = NDArray[np.float64]
SCARCE = 8.0
"""Rows per input below which samples are held out. With more, less than a twentieth of the error is to be had."""

DOUBTS = (1.0, 10.0, 100.0, 1000.0)
"""Strengths: damping times this, ridge times its square root."""

OUTPUTS = 32
"""That the strength is chosen by, at most: each is a problem of its own."""


def solve_held(problem: Problem, fitted: Moments, held: Moments, options: LayerOptions) -> Solved:
    """Solved on the rows of both, with the regularization that is best on `held` when fitted to `fitted` alone."""
    part = _some(problem)
    tried = [_doubted(options, doubt) for doubt in DOUBTS]
    solutions = [solve(part, fitted, tried[0])]
    # The scale hardly depends on the regularization.
    known = replace(part, start=solutions[0].scale)
    solutions += [solve(known, fitted, replace(o, scale_search=False)) for o in tried[1:]]
    errors = [held_error(part.weight, solved, held, options) for solved in solutions]
    return solve(problem, merged(fitted, held), tried[int(np.argmin(errors))])


def held_error(weight: Floats, solved: Solved, held: Moments, options: LayerOptions) -> float:
    """E‖x·Wᵀ - x̂·Ŵᵀ‖² (without propagation x̂ for x) on the samples of `held`, up to what does not depend on the
    solution; about their means, unless a bias cannot take those up."""
    moments = held if options.correct_bias else held.about_zero
    cross = moments.cross if options.propagate else moments.hessian
    real = solved.integers * solved.scale[..., None].astype(np.float64)
    return float(np.sum((real @ moments.hessian - 2 * (weight @ cross)) * real))


def _doubted(options: LayerOptions, doubt: float) -> LayerOptions:
    ridge, damping = options.ridge * doubt**0.5, options.damping * doubt
    return replace(options, ridge=ridge, damping=damping, rows_per_input=0.0)


def _some(problem: Problem) -> Problem:
    """Evenly chosen outputs of each group."""
    outs = problem.weight.shape[1]
    picked = np.unique(np.linspace(0, outs - 1, min(outs, OUTPUTS)).round().astype(np.int64))

    def part(array: ArrayLike) -> ArrayLike:
        return array[:, picked] if isinstance(array, np.ndarray) and array.ndim > 1 else array

    return replace(
        problem,
        weight=problem.weight[:, picked],
        start=problem.start[:, picked],
        floor=problem.floor[:, picked],
        bounds=(part(problem.bounds[0]), part(problem.bounds[1])),
    )
