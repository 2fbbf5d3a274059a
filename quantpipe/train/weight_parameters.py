"""Learned weights: a float weight for each stored one, and how an algorithm makes its integers.

All numbers start at the plan's: where a float weight does not round to the plan's integer, it starts at the value of
that integer. So the first forward pass computes what the plan computes. `LearnedWeight.stored` gives the integers of
training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantpipe.arrays import along
from quantpipe.intmath import nearest_step
from quantpipe.plan.pair_safe import rounded_pairs
from quantpipe.plan.saturating_pairs import kernel_order
from quantpipe.train.fake_quantize import CLIP, SCALE, SOFT, TorchGrid, fake_quantize, scaled_gradient, straight_through
from quantpipe.train.range_parameters import storable, storage_middle
from quantpipe.types import PowerOfTwo

SOFTENED, SHIFT = 1.2, 0.1
"""Stretch of AdaRound's sigmoid, h = clip(1.2·σ(V) - 0.1, 0, 1), so that it reaches 0 and 1 (arXiv 2004.10568)."""


@dataclass(frozen=True, eq=False)
class WeightStart:
    """Hold where a weight starts: float values, the plan's integers q - z, their scale, and the bounds of q.

    `axis`: the axis of the scales, None for one scale. `channel_axis`: the axis of the output channels. `zero`: the
    zero points, `()` or `[C]`. `pair`: the largest magnitude of two neighbours along K, if the device has such a limit.
    """

    real: NDArray[np.float32]
    integers: NDArray[np.int64]
    scale: NDArray[np.float32]
    axis: int | None
    channel_axis: int
    zero: NDArray[np.int64]
    qmin: int
    qmax: int
    power_of_two: PowerOfTwo
    pair: int | None = None

    @property
    def high(self) -> NDArray[np.float64]:
        """Return the largest |q - z| by scale, shaped to broadcast to the weight; without the last negative step.

        Asymmetric integers of weights of one sign have z at their other end.
        """
        zero = self.broadcast(self.zero)
        return np.asarray(np.maximum(self.qmax - zero, zero - self.qmin - 1))

    def broadcast(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return values per channel, or one for all, shaped to broadcast to the weight."""
        real = values.astype(np.float64)
        return np.atleast_1d(real if real.ndim == 0 else np.asarray(along(real, self.axis or 0, self.real.ndim)))

    @property
    def nearest(self) -> NDArray[np.bool_]:
        """Return where the float weight rounds to the plan's integer."""
        scale, zero = self.broadcast(self.scale), self.broadcast(self.zero)
        return np.asarray(nearest_step(self.real / scale, self.qmin - zero, self.qmax - zero) == self.integers)

    @property
    def value(self) -> NDArray[np.float32]:
        """Return the float weight, with the integer's value where it does not round to the plan's integer."""
        return np.where(self.nearest, self.real, self.integers * self.broadcast(self.scale)).astype(np.float32)


class LearnedWeight(nn.Module):  # type: ignore[misc]
    """Hold a weight that is learned; `forward` gives its values on the grid, `stored` what the plan holds."""

    gradient = SCALE

    def __init__(self, start: WeightStart) -> None:
        super().__init__()
        self.start = start
        self.latent = nn.Parameter(torch.from_numpy(np.ascontiguousarray(self.latent_start())))
        self.register_buffer("base", torch.from_numpy(start.broadcast(start.scale)))
        self.register_buffer("zero", torch.from_numpy(start.broadcast(start.zero)))

    def latent_start(self) -> NDArray[np.float32]:
        """Return where the float weight starts."""
        return self.start.value

    def shaped(self, factor: Tensor | None) -> Tensor:
        """Return the values that are rounded; `factor` multiplies the weight (a folded normalization)."""
        return self.latent if factor is None else self.latent * factor

    def scale(self) -> Tensor:
        """Return the scale, float64, shaped to broadcast."""
        base: Tensor = self.base
        return base

    def grid(self, like: Tensor) -> TorchGrid:
        """Return the grid of the weight."""
        return self.grid_at(self.scale(), like)

    def grid_at(self, scale: Tensor, like: Tensor) -> TorchGrid:
        """Return the grid with a scale, float64, for the values `like`."""
        qmin, qmax = self.start.qmin, self.start.qmax
        ends = (scale * (qmin - self.zero), scale * (qmax - self.zero))
        low, high = (end.to(like) for end in ends)
        return TorchGrid(scale.to(like), self.zero.to(like), low, high, qmin, qmax)

    def stored(self, factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the integers q - z, as floats, and their scale, shaped to broadcast."""
        shaped = self.shaped(factor).detach()
        grid = self.grid(shaped).detached()
        return self._rounded(shaped, grid), grid.scale

    def forward(self, factor: Tensor | None = None) -> Tensor:
        """Return the weight on its grid."""
        shaped = self.shaped(factor)
        grid = self.grid(shaped)
        codes = None if self.start.pair is None else self._rounded(shaped.detach(), grid.detached()) + grid.zero
        return fake_quantize(shaped, self.seen(grid, shaped), self.gradient, codes)

    def seen(self, grid: TorchGrid, shaped: Tensor) -> TorchGrid:
        """Return the grid with the gradients that the algorithm gives it; by default none."""
        return grid.detached()

    def penalty(self, done: float) -> Tensor | None:
        """Return what the algorithm adds to the loss after a share of the training, 0 to 1; None for nothing."""
        return None

    def _rounded(self, shaped: Tensor, grid: TorchGrid) -> Tensor:
        steps = shaped / grid.scale
        if self.start.pair is None:
            return torch.clamp(torch.round(steps) + grid.zero, grid.qmin, grid.qmax) - grid.zero
        return _within_pairs(steps, self.start)


class LearnedScale(LearnedWeight):
    """LSQ: the scale is learned with the weight, its gradient multiplied by 1 / sqrt(N·Q_P) for N weights."""

    def __init__(self, start: WeightStart) -> None:
        super().__init__(start)
        self.factor = nn.Parameter(torch.zeros_like(self.base))

    def scale(self) -> Tensor:
        """Return the learned scale."""
        power = self.start.power_of_two
        return storable(self.base * storage_middle(power) * torch.exp(self.factor), power)

    def seen(self, grid: TorchGrid, shaped: Tensor) -> TorchGrid:
        """Return the grid, whose scale has LSQ's scaled gradient."""
        count = shaped.numel() / grid.scale.numel()
        scale = scaled_gradient(grid.scale, (count * grid.qmax) ** -0.5)
        return TorchGrid(scale, grid.zero, grid.low, grid.high, grid.qmin, grid.qmax)


class SoftStaircase(LearnedScale):
    """DSQ: the ends of the grid are learned, and rounding has the slope of a soft staircase."""

    gradient = SOFT

    def seen(self, grid: TorchGrid, shaped: Tensor) -> TorchGrid:
        """Return the grid, whose ends have gradients."""
        return TorchGrid(grid.scale.detach(), grid.zero, grid.low, grid.high, grid.qmin, grid.qmax)


class TanhWeight(LearnedWeight):
    """DoReFa: w' = c·tanh(w / c) / max|tanh(w / c)| on a grid that ends at the largest |w'| (arXiv 1606.06160).

    c is 1 (`unit`, as published), or the largest |w| at the start (`kept`). There w starts at c·atanh(tanh(1)·w₀ / c),
    so that w' starts at the pretrained w₀: tanh alone would multiply small weights by 1 / tanh(1) = 1.31.
    """

    gradient = CLIP

    def __init__(self, start: WeightStart, *, unit: bool) -> None:
        super().__init__(start)
        self.size = 1.0 if unit else float(np.abs(start.value).max(initial=0.0)) or 1.0
        if not unit:
            squashed = np.tanh(1.0) * start.value.astype(np.float64) / self.size
            self.latent = nn.Parameter(torch.from_numpy((self.size * np.arctanh(squashed)).astype(np.float32)))

    def shaped(self, factor: Tensor | None) -> Tensor:
        """Return w'."""
        squashed = torch.tanh(super().shaped(factor) / self.size)
        return self.size * squashed / squashed.abs().max().clamp(min=1e-12)

    def grid(self, like: Tensor) -> TorchGrid:
        """Return the grid on which the largest value of the tensor, or of its channel, is the largest integer."""
        start, magnitudes = self.start, like.detach().abs()
        if start.axis is None:
            largest = magnitudes.max().reshape(self.base.shape)
        else:
            largest = magnitudes.amax([axis for axis in range(like.ndim) if axis != start.axis], keepdim=True)
        scale = largest.double() / torch.from_numpy(start.high).to(like.device)
        return self.grid_at(storable(torch.where(largest > 0, scale, self.base), start.power_of_two), like)


class QuantizationInterval(LearnedWeight):
    """QIL with γ = 1: weights below c - d are pruned, above c + d clipped, and linear between (arXiv 1808.05779).

    The integers represent w' in [-1, 1] at the scale 1 / Q_P. `unit` leaves w' as it is; else it is multiplied by
    the threshold of the start, which leaves a pretrained layer its size.
    """

    gradient = CLIP

    def __init__(self, start: WeightStart, *, unit: bool) -> None:
        super().__init__(start)
        threshold = start.broadcast(start.scale) * start.high
        self.register_buffer("threshold", torch.from_numpy(threshold))
        self.register_buffer("size", torch.ones_like(self.threshold) if unit else self.threshold.clone())
        self.centre = nn.Parameter(torch.full_like(self.threshold, 0.5))
        self.distance = nn.Parameter(torch.full_like(self.threshold, 0.5))

    def shaped(self, factor: Tensor | None) -> Tensor:
        """Return w', multiplied by its size."""
        real = super().shaped(factor)
        centre, distance = ((self.threshold * part).to(real) for part in (self.centre, self.distance.clamp(min=1e-3)))
        slope = 0.5 / distance
        linear = slope * real.abs() + (0.5 - centre * slope)
        return self.size.to(real) * torch.sign(real) * torch.clamp(linear, 0.0, 1.0)

    def scale(self) -> Tensor:
        """Return the scale at which w' = 1 is the largest integer."""
        steps = torch.from_numpy(self.start.high).to(self.size)
        return storable(self.size / steps, self.start.power_of_two)


class LearnedRounding(LearnedWeight):
    """AdaRound: each weight is rounded down or up, w' = s·clip(floor(w / s) + h(V)) (arXiv 2004.10568).

    V starts where floor(w / s) + h(V) = w / s. Where recovery rounded a weight to its farther neighbour, h starts next
    to 1/2, on that neighbour's side. A penalty 1 - |2h - 1|^β with a falling β drives h to 0 or 1.
    """

    BETA = (20.0, 2.0)
    WARM = 0.2
    """Share of the training without the penalty."""
    MIDDLE = 0.01
    """Distance from 1/2 at which h starts for a weight that is not rounded to the nearest."""

    def __init__(self, start: WeightStart) -> None:
        super().__init__(start)
        steps = start.real / start.broadcast(start.scale)
        floor = np.floor(steps)
        moved, up = ~start.nearest, start.integers > floor
        # Of an integer that is no neighbour of the weight, the other choice is the one next to it on the weight's side.
        floor = np.where(moved, start.integers - up, floor)
        share = np.where(moved, np.where(up, 0.5 + self.MIDDLE, 0.5 - self.MIDDLE), steps - floor)
        rest = np.clip((share + SHIFT) / SOFTENED, 1e-4, 1 - 1e-4)
        self.register_buffer("floor", torch.from_numpy(floor.astype(np.float32)))
        self.latent = nn.Parameter(torch.from_numpy(np.log(rest / (1 - rest)).astype(np.float32)))

    def up(self) -> Tensor:
        """Return h, the share by which each weight is rounded up."""
        return torch.clamp(SOFTENED * torch.sigmoid(self.latent) - SHIFT, 0.0, 1.0)

    def stored(self, factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the integers, rounded up where h is at least one half, and their scale."""
        steps = self.floor + (self.up().detach() >= 0.5)
        return self._rounded(steps * self.base.to(steps), self.grid(steps)), self.scale().to(steps)

    def forward(self, factor: Tensor | None = None) -> Tensor:
        """Return the softly rounded weight in training, the rounded one otherwise."""
        grid = self.grid(self.latent)
        soft = (torch.clamp(self.floor + self.up() + grid.zero, grid.qmin, grid.qmax) - grid.zero) * grid.scale
        return soft if self.training else straight_through(self.stored()[0] * grid.scale, soft)

    def penalty(self, done: float) -> Tensor | None:
        """Return the mean of 1 - |2h - 1|^β."""
        if done < self.WARM:
            return None
        share = (done - self.WARM) / (1 - self.WARM)
        first, last = self.BETA
        beta = last + (first - last) * (1 - share)
        return (1 - (2 * self.up() - 1).abs().pow(beta)).mean()


ALGORITHMS: Mapping[str, Callable[[WeightStart, bool], LearnedWeight]] = {
    "ste": lambda start, unit: LearnedWeight(start),
    "lsq": lambda start, unit: LearnedScale(start),
    "dsq": lambda start, unit: SoftStaircase(start),
    "dorefa": lambda start, unit: TanhWeight(start, unit=unit),
    "qil": lambda start, unit: QuantizationInterval(start, unit=unit),
    "adaround": lambda start, unit: LearnedRounding(start),
}


def _within_pairs(steps: Tensor, start: WeightStart) -> Tensor:
    """Return integers of which no pair of neighbours along K is larger than the device allows."""
    most = start.pair or 0
    values = np.array(steps.detach().cpu().numpy(), np.float64)
    ordered = kernel_order(values, start.channel_axis)
    if ordered is None:
        found = nearest_step(values, -(most // 2), most // 2)
    else:
        rows = ordered.reshape(len(ordered), -1)
        ordered[...] = rounded_pairs(rows, start.qmin, start.qmax, most).reshape(ordered.shape)
        found = values
    return torch.from_numpy(found).to(steps)
