"""A linear model of the logarithm of the loss: how much each option multiplies it by, with how much doubt.

It is Bayesian linear regression with one column per option beyond the first. Points are drawn from its doubt, not from
its mean alone, so they ask what is worth knowing. Sources: Thompson, "On the likelihood that one unknown probability
exceeds another", 1933; Baptista and Poloczek, "Bayesian optimization of combinatorial structures", 2018.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np

from quantpipe.search.objective import Objective
from quantpipe.types import ChoiceSpace, Point, Score

_EFFECT = 0.6
"""Standard deviation of what an option adds to the logarithm of the loss, before anything is known."""

_EXPECTED = 0.3
"""What an option is expected to add: most options are worse than the first."""

_RESIDUAL = 0.25
"""Standard deviation of what effects do not add up to."""

_DOUBT = 0.5
"""Share of the doubt that points are drawn with."""

_MOST = 4.0
"""By how much a point may raise the logarithm of the loss: broken points would hide what their other options do."""

_TRIES = 32
_TINY = 1e-12


def drawn(
    space: ChoiceSpace,
    choices: Collection[int],
    known: Mapping[Point, Score],
    objective: Objective,
    *,
    base: Point,
    rng: np.random.Generator,
) -> Point | None:
    """Return a point that may have the smallest loss, with the other choices as in `base`; None if all are known.

    `choices`: the places of the choices that differ. `known`: what is measured; points whose other choices differ
    from `base` are left out.
    """
    columns = [(i, o) for i in choices for o in range(len(space.choices[i].options)) if o != base[i]]
    place = {column: k for k, column in enumerate(columns)}
    ours = {p: s for p, s in known.items() if all(p[i] == base[i] for i in range(len(space)) if i not in choices)}
    rows, logs = np.zeros((len(ours), len(columns))), np.zeros(len(ours))
    for row, (point, score) in enumerate(ours.items()):
        rows[row, [place[i, o] for i, o in enumerate(point) if (i, o) in place]] = 1.0
        logs[row] = _logarithm(objective.reference_value - score.compared)
    origin = _logarithm(objective.reference_value - known[base].compared)
    logs = np.minimum(logs, origin + _MOST)
    precision = rows.T @ rows / _RESIDUAL**2 + np.eye(len(columns)) / _EFFECT**2
    mean = np.linalg.solve(precision, rows.T @ (logs - origin) / _RESIDUAL**2 + _EXPECTED / _EFFECT**2)
    root = np.linalg.cholesky(precision)
    for _ in range(_TRIES):
        effects = mean + _DOUBT * np.linalg.solve(root.T, rng.standard_normal(len(columns)))
        point = _smallest(base, columns, effects)
        if point not in known:
            return point
    return None


def _smallest(base: Point, columns: list[tuple[int, int]], effects: np.ndarray) -> Point:
    """The point with each choice at the option with the smallest effect; the effect of the base is 0."""
    best: dict[int, tuple[float, int]] = {}
    for (i, option), effect in zip(columns, effects.tolist(), strict=True):
        if effect < best.get(i, (0.0, 0))[0]:
            best[i] = (effect, option)
    return tuple(best[i][1] if i in best else option for i, option in enumerate(base))


def _logarithm(loss: float) -> float:
    """The logarithm of a loss, infinite of a broken model; a gain counts as no loss."""
    return math.log(max(loss, _TINY)) if math.isfinite(loss) else math.inf
