"""Compute each sample's results, so that two runs can be compared on the same ones: classes and losses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.metrics.losses import LossKind
from quantpipe.metrics.outputs import all_finite, fitted, is_distribution, row_divergences
from quantpipe.metrics.reference import Reference
from quantpipe.types import Outputs


def per_sample(reference: Reference, found: Outputs) -> dict[str, NDArray[Any]]:
    """Return per-sample losses and classes of a model, compared with the float model.

    `loss` `[N]` float64 is the KL divergence in nats, or the squared error for outputs that are judged by it.
    `float_class` and `found_class`, `[N]` int64, exist for outputs `[N, C]` with several classes. `label` `[N]` int64
    exists with labels.
    """
    found = fitted(reference.outputs, found)
    rows: dict[str, NDArray[Any]] = {"loss": _losses(reference, found)}
    own = reference.outputs
    if not isinstance(own, tuple) and not isinstance(found, tuple) and own.ndim == 2 and own.shape[1] > 1:
        rows["float_class"], rows["found_class"] = (part.argmax(axis=1).astype(np.int64) for part in (own, found))
    if reference.labels is not None:
        rows["label"] = reference.labels.astype(np.int64)
    return rows


def _losses(reference: Reference, found: Outputs) -> NDArray[np.float64]:
    squared = any(loss.output == reference.output and loss.kind is not LossKind.KL for loss in reference.losses)
    pairs = list(zip(reference.outputs, found, strict=True))
    if squared or not all_finite(found):
        with np.errstate(over="ignore", invalid="ignore"):
            return np.array([np.mean((y.astype(np.float64) - r) ** 2) for r, y in pairs], dtype=np.float64)
    distribution = is_distribution(reference.outputs)
    return np.array([np.mean(row_divergences(r, y, distribution)) for r, y in pairs], dtype=np.float64)
