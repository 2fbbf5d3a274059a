"""Two sets of outputs held against each other, and inputs changed so little that the outputs should hardly differ."""

from __future__ import annotations

import numpy as np

from quantpipe.arrays import Feeds

SHAKE = 2.0**-20


def shaken(feeds: Feeds) -> Feeds:
    """Return the same samples with each real value changed in its last bits, by 2^-20 of it up or down."""
    rng = np.random.default_rng(0)
    return {
        name: array * (1 + rng.choice([-SHAKE, SHAKE], array.shape)).astype(array.dtype)
        if array.dtype.kind == "f"
        else array
        for name, array in feeds.items()
    }


def difference(reference: Feeds, found: Feeds) -> float:
    """Return the largest output difference over the largest finite output value."""
    worst = 0.0
    for name, expected in reference.items():
        if name not in found or found[name].shape != expected.shape:
            return float("inf")
        a, b = expected.astype(np.float64), found[name].astype(np.float64)
        peak = float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a))) or 1.0
        delta = np.abs(a - b)
        worst = max(worst, float(np.max(delta, initial=0.0, where=np.isfinite(delta))) / peak)
    return worst
