"""What accuracy recovery puts in the place of numbers that a plan would make by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from quantpipe.types import Range, Strategy, WeightTensor


@dataclass(frozen=True, eq=False)
class ChannelChange:
    """Channels of a tensor T in another unit: T' = (T - offset) / factor, `[C]` float64 each, factor > 0.

    `limits`: what the clamp on T's way is to do with T', for all channels alike, where a device has no limits per
    channel; None: the limits of T in the new unit.
    """

    factor: NDArray[np.float64]
    offset: NDArray[np.float64]
    limits: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False)
class Overrides:
    """Hold the numbers that accuracy recovery puts in the place of those that a plan would make.

    These are integer weights and real biases in the place of what rounding to the nearest would give, and ranges by
    scale group and weight thresholds (as in a `Strategy`) in the place of the strategy's.

    `channels`: tensors whose channels are changed; `rotations`: streams, by their first tensor, whose channels are
    mixed by an orthogonal matrix `[C, C]` float64 before that, T' = M T. They are no part of a plan: the graph and the
    topology that it is made for are (`quantpipe.recover.rescale.rescale_channels`).
    """

    weights: dict[str, WeightTensor]
    biases: dict[str, NDArray[np.float64]]
    ranges: Mapping[str, Range] = field(default_factory=dict)
    thresholds: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    channels: Mapping[str, ChannelChange] = field(default_factory=dict)
    rotations: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any((self.weights, self.biases, self.ranges, self.thresholds, self.channels, self.rotations))

    def applied(self, strategy: Strategy) -> Strategy:
        """Return the strategy with the ranges and thresholds that stand here."""
        if not self.ranges and not self.thresholds:
            return strategy
        return replace(
            strategy, ranges={**strategy.ranges, **self.ranges}, weights={**strategy.weights, **self.thresholds}
        )


NO_OVERRIDES = Overrides({}, {})
