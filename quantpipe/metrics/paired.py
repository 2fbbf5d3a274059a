"""Tests of two models on the same samples: what differs by more than chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHANCE = 0.05
"""The p value from which on a difference may be chance."""


def mcnemar(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> tuple[int, int, float]:
    """Return how many samples only the first and only the second model has right, and McNemar's p value.

    The exact binomial test assumes that, of samples on which the two differ, each model is as likely to be right
    (McNemar 1947). Both arguments are `[N]`: whether the model has each sample right.
    """
    from scipy.stats import binomtest

    only_first, only_second = int(np.sum(first & ~second)), int(np.sum(second & ~first))
    differing = only_first + only_second
    p = float(binomtest(only_first, differing).pvalue) if differing else 1.0
    return only_first, only_second, p


def signed_rank(differences: NDArray[np.float64]) -> float:
    """Return the p value of Wilcoxon's signed-rank test on paired differences `[N]`; 1 where none differs."""
    from scipy.stats import wilcoxon

    kept = differences[np.isfinite(differences) & (differences != 0)]
    return float(wilcoxon(kept).pvalue) if len(kept) else 1.0


def mean_interval(differences: NDArray[Any]) -> tuple[float, float, float]:
    """Return the mean of paired differences `[N]`, and its 95 % interval by the normal approximation."""
    values = differences.astype(np.float64)
    mean = float(np.mean(values))
    half = 1.96 * float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return mean, mean - half, mean + half


def holm(ps: Sequence[float]) -> list[float]:
    """Return p values adjusted for being several (Holm 1979): the chance that any of them is false is bounded."""
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    found, highest = [0.0] * len(ps), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[index]))
        found[index] = highest
    return found
