"""Run a convolution together with its BatchNormalization during training, in one of six ways.

f = γ / sqrt(σ² + ε) with the running statistics μ and σ², and μ_B, σ_B are the statistics of the batch. Q rounds a
weight to its grid. The strategies are numbered as in MQBench (arXiv 2111.03759, figure 3).

- -1: BN(conv(x, Q(w))).
- 1: conv(x, Q(w·f)) + β - f·μ. The statistics stay.
- 2: conv(x, Q(w·γ/σ_B)) + β - γ·μ_B/σ_B. The statistics of the batch come from conv(x, w).
- 3: conv(x, Q(w·γ/σ))·σ/σ_B + β - γ·μ_B/σ_B (arXiv 1806.08342).
- 4: BN(conv(x, Q(w·f)) / f), as PyTorch does.

Strategy 0 has no module here: the folded weight and bias are learned as they are. At the end every strategy folds
with the running statistics. A batch may be divided into parts with statistics of their own, as workers that do not
exchange statistics have them. The statistics of the first part enter the running ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantpipe import intmath
from quantpipe.intake.rewrites.batch_norms import BatchNorm
from quantpipe.train.weight_parameters import LearnedWeight

Convolution = Callable[[Tensor, Tensor], Tensor]
"""Computes the convolution of data with a weight, without a bias."""
WholeSteps = Callable[[Tensor, Tensor], Tensor]
"""Rounds a bias `[C]` to steps of the accumulator, from the scale of the folded weight."""

MOMENTUM = 0.1
"""Share of a batch in the running statistics."""


@dataclass(frozen=True, eq=False)
class _Part:
    """Samples of a batch whose statistics are their own; `enters`: these enter the running ones."""

    data: Tensor
    compute: Convolution
    whole: WholeSteps
    enters: bool

    def convolved(self, weight: Tensor) -> Tensor:
        return self.compute(self.data, weight)


class FoldedConvolution(nn.Module):  # type: ignore[misc]
    """Hold the parameters of a BatchNormalization, and how it runs with its convolution.

    `weight` is the convolution's own weight, before folding; `parts` is the number of parts of a batch in training.
    """

    def __init__(self, weight: LearnedWeight, norm: BatchNorm, strategy: int, *, channel_axis: int, parts: int) -> None:
        super().__init__()
        self.weight, self.strategy, self.parts = weight, strategy, parts
        self.epsilon, self._axis = float(norm.epsilon), channel_axis
        self.gamma, self.beta = (nn.Parameter(_tensor(values)) for values in (norm.gamma, norm.beta))
        for name, values in (("mean", norm.mean), ("variance", norm.variance), ("bias", norm.bias)):
            self.register_buffer(name, _tensor(values))

    def forward(self, data: Tensor, compute: Convolution, whole: WholeSteps = lambda bias, scale: bias) -> Tensor:
        """Return the result of convolution and normalization; statistics of the batch only in training."""
        forward, chunks = _FORWARD[self.strategy], torch.chunk(data, self.parts if self.training else 1)
        # The first part comes last: the others read the running statistics of before.
        parts = [_Part(chunk, compute, whole, number == 0) for number, chunk in enumerate(chunks)]
        found = [forward(self, part) for part in reversed(parts)]
        return torch.cat(found[::-1]) if len(found) > 1 else found[0]

    @property
    def factor(self) -> Tensor:
        """Return f of the running statistics, `[C]`."""
        found: Tensor = self.gamma / torch.sqrt(self.variance + self.epsilon)
        return found

    def folded(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the integers of the folded weight, their scale, and the folded bias `[C]`."""
        factor = self.factor.detach()
        bias = self.beta.detach() + factor * (self.bias - self.mean)
        if self.strategy != -1:
            return *self.weight.stored(self.along_weight(factor)), bias
        codes, scale = self.weight.stored()
        size = self.along_weight(factor)
        return codes * torch.sign(size), (scale * size.abs()).clamp(min=intmath.SMALLEST_SCALE), bias

    def along_weight(self, values: Tensor) -> Tensor:
        """Return values per output channel, shaped to broadcast to the weight."""
        shape = [1] * len(self.weight.start.real.shape)
        shape[self._axis] = -1
        return values.reshape(shape)

    def normalized(self, result: Tensor, part: _Part) -> Tensor:
        """Return the normalization of a result."""
        if self.training:
            mean, variance = self.statistics(result, enters=part.enters)
        else:
            mean, variance = self.mean - self.bias, self.variance
        factor = self.gamma / torch.sqrt(variance + self.epsilon)
        return result * self.along_result(factor) + self.shifted(part, self.beta - factor * mean, factor)

    def shifted(self, part: _Part, bias: Tensor, factor: Tensor) -> Tensor:
        """Return the folded bias in whole steps of the accumulator, shaped to broadcast to the result.

        `factor`: that of the folded weight `[C]`.
        """
        with torch.no_grad():
            size = self.along_weight(factor)
            shaped = self.weight.shaped(None if self.strategy == -1 else size)
            scale = self.weight.grid(shaped).scale
            scale = (scale * size.abs()).clamp(min=intmath.SMALLEST_SCALE) if self.strategy == -1 else scale
        return self.along_result(part.whole(bias, scale))

    def statistics(self, result: Tensor, *, enters: bool) -> tuple[Tensor, Tensor]:
        """Return mean and variance of a result by channel, `[C]` each, after they entered the running ones."""
        axes = [axis for axis in range(result.ndim) if axis != 1]
        variance, mean = torch.var_mean(result, axes, unbiased=False)
        if enters:
            count = result.numel() / result.shape[1]
            with torch.no_grad():
                unbiased = variance * (count / max(count - 1, 1))
                self.mean.lerp_((mean + self.bias).to(self.mean), MOMENTUM)
                self.variance.lerp_(unbiased.to(self.variance), MOMENTUM)
        return mean, variance

    def along_result(self, values: Tensor) -> Tensor:
        """Return values per channel, shaped to broadcast to the result `[N, C, …]`, which has the weight's rank."""
        return values.reshape((1, -1) + (1,) * (len(self.weight.start.real.shape) - 2))


def _unfolded(conv: FoldedConvolution, part: _Part) -> Tensor:
    return conv.normalized(part.convolved(conv.weight()), part)


def _fixed(conv: FoldedConvolution, part: _Part) -> Tensor:
    factor = conv.factor
    shift = conv.beta + factor * (conv.bias - conv.mean)
    return part.convolved(conv.weight(conv.along_weight(factor))) + conv.shifted(part, shift, factor)


def _batch_folded(conv: FoldedConvolution, part: _Part) -> Tensor:
    if not conv.training:
        return _fixed(conv, part)
    mean, variance = conv.statistics(part.convolved(conv.weight.latent), enters=part.enters)
    factor = conv.gamma / torch.sqrt(variance + conv.epsilon)
    return part.convolved(conv.weight(conv.along_weight(factor))) + conv.shifted(
        part, conv.beta - factor * mean, factor
    )


def _corrected(conv: FoldedConvolution, part: _Part) -> Tensor:
    if not conv.training:
        return _fixed(conv, part)
    running = torch.sqrt(conv.variance + conv.epsilon)
    with torch.no_grad():
        plain = part.convolved(conv.weight.latent)
    mean, variance = conv.statistics(plain, enters=part.enters)
    deviation = torch.sqrt(variance + conv.epsilon)
    factor = conv.gamma / running
    result = part.convolved(conv.weight(conv.along_weight(factor)))
    bias = conv.beta - conv.gamma * mean / deviation
    return result * conv.along_result(running / deviation) + conv.shifted(part, bias, factor)


def _divided(conv: FoldedConvolution, part: _Part) -> Tensor:
    if not conv.training:
        return _fixed(conv, part)
    factor = conv.factor
    safe = torch.where(factor.abs() < 1e-12, torch.full_like(factor, 1e-12), factor)
    result = part.convolved(conv.weight(conv.along_weight(factor))) / conv.along_result(safe)
    return conv.normalized(result, part)


_FORWARD: Mapping[int, Callable[[FoldedConvolution, _Part], Tensor]] = {
    -1: _unfolded,
    1: _fixed,
    2: _batch_folded,
    3: _corrected,
    4: _divided,
}


def _tensor(values: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(np.array(values, np.float32))
