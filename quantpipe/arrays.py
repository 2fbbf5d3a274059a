"""Arrays: names of their types, per-channel values shaped to broadcast, and which integers float32 holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Feeds = Mapping[str, NDArray[Any]]
"""Arrays by name, such as those of a model's inputs."""

EXACT_FLOAT32 = 1 << 24
"""float32 represents every integer up to this magnitude."""


def along(values: ArrayLike, axis: int | None, ndim: int) -> Array:
    """Return per-channel values `[C]` shaped to broadcast along `axis` of `ndim` axes; scalars as they are."""
    array = np.asarray(values)
    if axis is None or array.ndim == 0:
        return array
    shape = [1] * ndim
    shape[axis] = -1
    return array.reshape(shape)
