"""Numbers that compare a model's outputs with the float model's, and with labels. Pure NumPy.

Where outputs differ in shape from sample to sample (`Outputs` is a tuple), KL is the mean over samples of each sample's
own mean. So a long sample counts as much as a short one. Squared errors are taken over all elements.

How long an output is may depend on values, as where a decoder goes on until it gives an end. A sample of another shape
than the float model's is lost: it counts as one that gives the mean of the float output everywhere (`fitted`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import Array
from quantpipe.types import ModelMetrics, Outputs

IN_CACHE = 1 << 15
"""Elements of class scores whose divergence is taken at a time."""
AT_ONCE = 1 << 22
"""Elements that are held in float64 at a time, except one sample's."""


def all_finite(outputs: Outputs) -> bool:
    """Return whether all elements are finite."""
    return all(bool(np.all(np.isfinite(part))) for part in _parts(outputs))


def _is_real(outputs: Outputs) -> bool:
    """Return whether the outputs are floats; class numbers and indices have no divergence."""
    return all(part.dtype.kind == "f" for part in _parts(outputs))


def is_distribution(outputs: Outputs) -> bool:
    """Return whether the last axis holds probabilities already.

    It does where the model ends in a softmax, or in a sigmoid of one value.
    """
    return all(_is_distribution(part) for part in _parts(outputs))


def _parts(outputs: Outputs) -> tuple[Array, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def fitted(reference: Outputs, outputs: Outputs) -> Outputs:
    """Return outputs in the shapes of the float model's outputs; unchanged where they match.

    A sample of another shape gets the mean of the float output in each element. So do all samples where rows cannot be
    assigned to samples.
    """
    if _alike(reference, outputs):
        return outputs
    rows = list(outputs) if len(outputs) == len(reference) else [np.empty(0)] * len(reference)
    known = _elements(reference)
    known = known[np.isfinite(known)]
    mean = float(known.mean()) if known.size else 0.0
    found = [
        np.asarray(row) if _same_shape(r, row) else np.full(np.shape(r), mean)
        for r, row in zip(reference, rows, strict=True)
    ]
    return tuple(found) if isinstance(reference, tuple) else np.stack(found)


def _alike(reference: Outputs, outputs: Outputs) -> bool:
    if isinstance(reference, np.ndarray) and isinstance(outputs, np.ndarray):
        return reference.shape == outputs.shape
    return len(reference) == len(outputs) and all(map(_same_shape, reference, outputs))


def _same_shape(row: Array, found: Array) -> bool:
    return np.shape(row) == np.shape(found)


def _elements(outputs: Outputs) -> Array:
    """Return all elements, float64; `[N, ...]` where the samples have one shape, else one axis."""
    if not isinstance(outputs, tuple):
        return outputs.astype(np.float64)
    return np.concatenate([part.reshape(-1).astype(np.float64) for part in outputs])


def _is_distribution(outputs: Array) -> bool:
    if outputs.ndim and outputs.shape[-1] == 1:
        return bool(outputs.min(initial=0.0) >= 0.0 and outputs.max(initial=0.0) <= 1.0)
    sums = outputs.sum(axis=-1)
    return bool(outputs.min(initial=0.0) >= 0.0 and np.allclose(sums, 1.0, atol=1e-3))


def log_probabilities(outputs: Array, distribution: bool) -> NDArray[np.float64]:
    """Return the natural log of class probabilities along the last axis, float64 `[..., classes]`.

    A single value is a binary class: a probability, or else a logit; the result has two classes. With `distribution`
    the outputs are probabilities, else logits.
    """
    values = outputs.astype(np.float64)
    if values.ndim and values.shape[-1] == 1:
        values = np.concatenate([values, 1.0 - values if distribution else np.zeros_like(values)], axis=-1)
    if distribution:
        return np.asarray(np.log(np.maximum(values, 1e-12)))
    shifted = values - values.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def cross_entropy(outputs: Array, labels: NDArray[np.int64], distribution: bool) -> float:
    """Return the mean cross entropy of labels `[N]` in nats, from class scores `[N, …, C]`."""
    logs = log_probabilities(outputs, distribution)
    means = logs.reshape(len(labels), -1, logs.shape[-1]).mean(axis=1)
    return -float(means[np.arange(len(labels)), labels].mean())


def kl_divergence(reference: Outputs, outputs: Outputs) -> float:
    """Return the mean over samples of KL(p_float || p) in nats.

    It is 0 for equal outputs; infinite outputs have an infinite divergence.
    """
    if not all_finite(outputs):
        return float("inf")
    outputs = fitted(reference, outputs)
    return max(float(np.mean([np.mean(part) for part in _divergences(reference, outputs)])), 0.0)


def kl_divergences(reference: Outputs, outputs: Outputs) -> NDArray[np.float64]:
    """Return KL(p_float || p) in nats of each sample, `[N]`, averaged over a sample's rows.

    It is infinite where outputs are. `kl_divergence` is the mean of these.
    """
    if not all_finite(outputs):
        return np.full(len(reference), np.inf)
    outputs = fitted(reference, outputs)
    if isinstance(reference, tuple):
        return np.array([np.mean(part) for part in _divergences(reference, outputs)])
    (rows,) = _divergences(reference, outputs)
    return np.asarray(rows.reshape(len(reference), -1).mean(axis=1))


def row_divergences(reference: Array, outputs: Array, distribution: bool) -> NDArray[np.float64]:
    """Return KL(p_float || p) in nats of each row of class scores, `[...]`, of arrays `[..., classes]`.

    With `distribution` they are probabilities, else logits. Some rows are taken at a time, whose arrays stay in the
    cache. The sums are equal to sums over all rows at once, to the last bit.
    """
    if reference.ndim < 2 or not reference.size:
        return _row_divergences(reference, outputs, distribution)
    classes = reference.shape[-1]
    rows, others = reference.reshape(-1, classes), outputs.reshape(-1, classes)
    found, step = np.empty(len(rows)), max(1, IN_CACHE // classes)
    for first in range(0, len(rows), step):
        part = slice(first, first + step)
        found[part] = _row_divergences(rows[part], others[part], distribution)
    return found.reshape(reference.shape[:-1])


def _row_divergences(reference: Array, outputs: Array, distribution: bool) -> NDArray[np.float64]:
    p, q = log_probabilities(reference, distribution), log_probabilities(outputs, distribution)
    return np.asarray(np.sum(np.exp(p) * (p - q), axis=-1))


def _divergences(reference: Outputs, outputs: Outputs) -> list[NDArray[np.float64]]:
    """Return the divergence of each row of class scores, for each part."""
    distribution, pairs = is_distribution(reference), zip(_parts(reference), _parts(outputs), strict=True)
    return [row_divergences(r, o, distribution) for r, o in pairs]


def relative_mse(reference: Outputs, outputs: Outputs) -> float:
    """Return the mean squared difference over the variance of the float output (1: predicting its mean)."""
    outputs, size = fitted(reference, outputs), sum(part.size for part in _parts(reference))
    mean = sum(float(np.sum(r)) for r, _ in _pieces(reference, outputs)) / max(size, 1)
    noise = spread = 0.0
    for r, difference in _pieces(reference, outputs):
        noise += _squared(np.subtract(difference, r, out=difference))
        spread += _squared(np.subtract(r, mean, out=r))
    variance = spread / max(size, 1) or 1.0
    return noise / max(size, 1) / variance


def _squared(values: NDArray[np.float64]) -> float:
    """Return the sum of squares, which take the place of the values."""
    return float(np.sum(np.square(values, out=values)))


def _pieces(reference: Outputs, outputs: Outputs) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Yield the elements of both in float64, some samples at a time: scores of a vocabulary are many."""
    if not (isinstance(reference, np.ndarray) and isinstance(outputs, np.ndarray)) or reference.size <= AT_ONCE:
        yield _elements(reference), _elements(outputs)
        return
    step = max(1, AT_ONCE * len(reference) // reference.size)
    for first in range(0, len(reference), step):
        yield _elements(reference[first : first + step]), _elements(outputs[first : first + step])


def sqnr_db(reference: Outputs, outputs: Outputs) -> float | None:
    """Return 10·log10(Σ r² / Σ (r - y)²) in dB; None when outputs y equal the float model's r (no noise at all)."""
    noise = signal = 0.0
    for r, difference in _pieces(reference, fitted(reference, outputs)):
        noise += _squared(np.subtract(difference, r, out=difference))
        signal += _squared(r)
    if noise == 0.0 or signal == 0.0 or not np.isfinite(noise):
        return None if noise == 0.0 else float("-inf") if signal == 0.0 or not np.isfinite(noise) else None
    return 10.0 * float(np.log10(signal / noise))


def cosine_similarity(reference: Outputs, outputs: Outputs) -> float | None:
    """Return the mean over samples of the cosine between two outputs, -1 to 1; None if outputs are not finite.

    Each sample's elements are one vector; this is the usual similarity of embeddings.
    """
    if not (all_finite(reference) and all_finite(outputs)):
        return None
    given = fitted(reference, outputs)
    pairs: Iterable[tuple[Array, Array]] = zip(_parts(reference), _parts(given), strict=True)
    if isinstance(reference, np.ndarray) and isinstance(given, np.ndarray) and reference.size > AT_ONCE:
        pairs = zip(reference[:, None], given[:, None], strict=True)
    elif isinstance(reference, tuple):
        pairs = ((r[None], o[None]) for r, o in pairs)
    found = [c for r, o in pairs for c in cosines(r, o)]
    return float(np.mean(found)) if found else None


def cosines(reference: Array, outputs: Array) -> list[float]:
    """Return the cosine between two outputs `[n, ...]` of each sample: 1 where both are zero, 0 where one is."""
    r, o = (x.reshape(len(x) if x.ndim else 1, -1).astype(np.float64, copy=False) for x in (reference, outputs))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        lengths = np.linalg.norm(r, axis=1), np.linalg.norm(o, axis=1)
        found = np.sum(r * o, axis=1) / (lengths[0] * lengths[1])
    either = (lengths[0] == 0) | (lengths[1] == 0)
    found = np.where(either, np.where(lengths[0] == lengths[1], 1.0, 0.0), found)
    return [float(c) for c in np.where(np.isfinite(found), np.clip(found, -1.0, 1.0), 0.0)]


def top1(outputs: Outputs, labels: NDArray[np.int64] | None) -> float | None:
    """Return the share of samples, 0 to 1, whose largest output is the label.

    None without labels, and for outputs other than `[N, C]`.
    """
    if labels is None or isinstance(outputs, tuple) or outputs.ndim != 2:
        return None
    return float(np.mean(outputs.argmax(axis=1) == labels))


def summary(reference: Outputs, outputs: Outputs, labels: NDArray[np.int64] | None) -> ModelMetrics:
    """Return top1, kl, sqnr_db and cosine of one model (for the float model itself: kl 0, no noise and cosine 1)."""
    return {
        "top1": top1(outputs, labels),
        "kl": kl_divergence(reference, outputs) if _is_real(reference) else None,
        "sqnr_db": sqnr_db(reference, outputs),
        "cosine": cosine_similarity(reference, outputs),
    }
