"""What calibration keeps of a tensor: statistics, never the tensor itself."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class TensorStats:
    """Streamed statistics of one tensor over all calibration samples.

    `histogram` holds int64 counts over `[-limit, +limit]`, an even number of equal bins; zero is a bin border.
    `minimum`, `maximum`, `mean`, `variance` are exact (float64) over the finite elements.
    `batch_minimum`, `batch_maximum` are the means over batches of the batch extremes.
    """

    name: str
    count: int
    minimum: float
    maximum: float
    mean: float
    variance: float
    batch_minimum: float
    batch_maximum: float
    limit: float
    histogram: NDArray[np.int64] = field(repr=False)
    nonfinite: int = 0

    @property
    def absolute_maximum(self) -> float:
        return max(abs(self.minimum), abs(self.maximum))


@dataclass(frozen=True, eq=False)
class Profile:
    """All tensors' statistics of one calibration run, keyed by tensor name."""

    model_hash: str
    samples: int
    tensors: dict[str, TensorStats]
    seconds: float = 0.0
    float_pass_seconds: float = 0.0
    peak_rss_mb: float = 0.0


@dataclass(frozen=True)
class Range:
    """A real interval to be represented, `low <= 0 <= high`, in real units."""

    low: float
    high: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", min(float(self.low), 0.0))
        object.__setattr__(self, "high", max(float(self.high), 0.0))

    @property
    def threshold(self) -> float:
        """T = max(|low|, |high|), real units."""
        return max(-self.low, self.high)
