"""Statistics of arrays, and arrays worth having statistics of."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.calibrate import StatsCollector
from quantpipe.types import TensorStats


def stats_of(*batches: Any, name: str = "t") -> TensorStats:
    collector, first = StatsCollector(name), 0
    for batch in batches:
        array = np.asarray(batch)
        collector.update(array, first)
        first += len(array) if array.ndim else 1
    return collector.finish()


def samples(kind: str, count: int = 20000, seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(count)
    values = {
        "normal": normal,
        "laplace": rng.laplace(0, 1, count),
        "relu": np.maximum(normal, 0),
        "relu6": np.clip(normal * 4, 0, 6),
        "swish": normal * 3 / (1 + np.exp(-normal * 3)),
        "uniform": rng.uniform(-1, 1, count),
        "outlier": np.append(normal[1:], 60.0),
        "negative": -np.abs(normal) - 0.5,
        "offset": normal + 10,
    }[kind]
    return values.astype(np.float32)


KINDS = ("normal", "laplace", "relu", "relu6", "swish", "uniform", "outlier", "negative", "offset")
