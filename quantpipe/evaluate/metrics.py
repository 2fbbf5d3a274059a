"""Numbers that compare a model's outputs with the float model's, and with labels. Pure NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def is_distribution(outputs: Array) -> bool:
    """Whether the last axis holds probabilities already (the model ends in a softmax)."""
    sums = outputs.sum(axis=-1)
    return bool(outputs.min(initial=0.0) >= 0.0 and np.allclose(sums, 1.0, atol=1e-3))


def log_probabilities(outputs: Array, distribution: bool) -> NDArray[np.float64]:
    """Natural log of class probabilities along the last axis, float64."""
    values = outputs.astype(np.float64)
    if distribution:
        return np.asarray(np.log(np.maximum(values, 1e-12)))
    shifted = values - values.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def kl_divergence(reference: Array, outputs: Array) -> float:
    """Mean over samples of KL(p_float || p) in nats. 0 for equal outputs; infinite outputs count as infinitely far."""
    if not np.all(np.isfinite(outputs)):
        return float("inf")
    distribution = is_distribution(reference)
    p, q = log_probabilities(reference, distribution), log_probabilities(outputs, distribution)
    return max(float(np.mean(np.sum(np.exp(p) * (p - q), axis=-1))), 0.0)


def relative_mse(reference: Array, outputs: Array) -> float:
    """Mean squared difference over the variance of the float output (1 would be predicting its mean)."""
    difference = outputs.astype(np.float64) - reference.astype(np.float64)
    variance = float(np.var(reference.astype(np.float64))) or 1.0
    return float(np.mean(difference**2)) / variance


def sqnr_db(reference: Array, outputs: Array) -> float | None:
    """10·log10(Σ r² / Σ (r - y)²) in dB; None when they are equal (no noise at all)."""
    r = reference.astype(np.float64)
    noise = float(np.sum((r - outputs.astype(np.float64)) ** 2))
    signal = float(np.sum(r**2))
    if noise == 0.0 or signal == 0.0 or not np.isfinite(noise):
        return None if noise == 0.0 else float("-inf") if signal == 0.0 or not np.isfinite(noise) else None
    return 10.0 * float(np.log10(signal / noise))


def top1(outputs: Array, labels: NDArray[np.int64] | None) -> float | None:
    """Share of samples whose greatest output is the label; None without labels or for outputs that are not `[N, C]`."""
    if labels is None or outputs.ndim != 2:
        return None
    return float(np.mean(outputs.argmax(axis=1) == labels))


def summary(reference: Array, outputs: Array, labels: NDArray[np.int64] | None) -> dict[str, float | None]:
    """top1, kl and sqnr_db of one model (for the float model itself: kl 0 and no noise)."""
    return {
        "top1": top1(outputs, labels),
        "kl": kl_divergence(reference, outputs),
        "sqnr_db": sqnr_db(reference, outputs),
    }
