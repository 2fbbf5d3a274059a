"""Estimate a share from a number of samples: its interval, and whether it is better than guessing."""

from __future__ import annotations

import math

Z = 1.959963984540054
"""The normal quantile of 95 % on both sides."""


def wilson(share: float | None, count: int) -> tuple[float, float] | None:
    """Return the 95 % interval of a share that was found on `count` samples; None without one.

    Wilson's score interval ("Probable Inference, the Law of Succession, and Statistical Inference", 1927), which holds
    for few samples and for shares near 0 and 1, too.
    """
    if share is None or count < 1:
        return None
    spread = Z * math.sqrt(share * (1 - share) / count + (Z / (2 * count)) ** 2)
    middle, scale = share + Z * Z / (2 * count), 1 + Z * Z / count
    low, high = (middle - spread) / scale, (middle + spread) / scale
    return (0.0 if share <= 0 else low), (1.0 if share >= 1 else high)  # exactly, whatever the roots round to


def chance_of(right: int, count: int, classes: int) -> float:
    """Return the probability that guessing among `classes` gets at least `right` of `count` right (binomial test)."""
    return 1.0 if classes < 2 else at_least(right, count, 1 / classes)


def at_least(right: int, count: int, p: float) -> float:
    """Return the probability of at least `right` of `count` draws of probability `p`, 0 < p <= 1."""
    if right <= 0 or p >= 1:
        return 1.0
    logs = (
        math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        + k * math.log(p) + (count - k) * math.log1p(-p)
        for k in range(right, count + 1)
    )  # fmt: skip
    return min(1.0, math.fsum(math.exp(value) for value in logs))
