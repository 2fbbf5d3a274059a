"""moving_average: the exponential moving average of the batches' extremes, which follows the data and forgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from quantpipe.calibrate.estimators.legal import legal_range
from quantpipe.errors import ConfigError
from quantpipe.types import Range, TensorSchema, TensorStats


@dataclass(frozen=True)
class MovingAverage:
    """T = max(|m_n|, |M_n|) (symmetric), or [m_n, M_n] (asymmetric), after n batches with extremes (min_i, max_i).

    m_1 = min_1, m_i = m_{i-1} + c·(min_i - m_{i-1}), M likewise, c the momentum: the last batch has weight c, the first
    (1 - c)^(n-1). c = 1 is the last batch alone. This is PyTorch's `MovingAverageMinMaxObserver` (`averaging_constant`,
    0.01), in float64. Of a longer pass it sees the last 4096 batches. It depends on the batch size and on the order.
    """

    needs_histogram: ClassVar[bool] = False
    needs_batches: ClassVar[bool] = True

    momentum: float = 0.01

    def __post_init__(self) -> None:
        if not 0.0 < self.momentum <= 1.0:
            raise ConfigError(f"moving_average momentum={self.momentum} is no weight; legal: 0 < momentum <= 1")

    def __call__(self, stats: TensorStats, bits: int, schema: TensorSchema) -> Range:
        """Return the range between the moving averages of the batches' minima and maxima."""
        count = len(stats.batch_extremes)
        weights = self.momentum * (1.0 - self.momentum) ** np.arange(count - 1.0, -1.0, -1.0)
        weights[:1] = (1.0 - self.momentum) ** max(count - 1, 0)
        low, high = (weights @ stats.batch_extremes).tolist()
        least, greatest = min(stats.minimum, 0.0), max(stats.maximum, 0.0)
        # The weights add up to one but for rounding, so an average of equal values may lie a hair outside of them.
        return legal_range(min(max(low, least), 0.0), max(min(high, greatest), 0.0), stats, schema)
