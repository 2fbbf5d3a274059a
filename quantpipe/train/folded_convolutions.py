"""Run a convolution together with its BatchNormalization during training, in one of six ways.

f = γ / sqrt(σ² + ε) with the running statistics μ and σ², and μ_B, σ_B are the statistics of the batch. Q rounds a
weight to its grid. The strategies are numbered as in MQBench (arXiv 2111.03759, figure 3).

- -1: BN(conv(x, Q(w))).
- 1: conv(x, Q(w·f)) + β - f·μ. The statistics stay.
- 2: conv(x, Q(w·γ/σ_B)) + β - γ·μ_B/σ_B. The statistics of the batch come from conv(x, w).
- 3: conv(x, Q(w·γ/σ))·σ/σ_B + β - γ·μ_B/σ_B (arXiv 1806.08342).
- 4: BN(conv(x, Q(w·f)) / f), as PyTorch does.

All of them learn w, γ and β, and all but 1 gather running statistics. Strategy 0 has no module here: the folded weight
and bias are learned as they are. At the end every strategy folds with the running statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantpipe.graph.batch_norms import BatchNorm
from quantpipe.train.weight_parameters import LearnedWeight

Convolution = Callable[[Tensor], Tensor]
"""Computes the convolution of the input at hand with a weight, without a bias."""

MOMENTUM = 0.1
"""Share of a batch in the running statistics."""


class FoldedConvolution(nn.Module):  # type: ignore[misc]
    """Hold the parameters of a BatchNormalization, and how it runs with its convolution.

    `weight` is the convolution's own weight, before folding; `parts` divide a batch into parts with statistics of
    their own, of which the first one's enter the running statistics.
    """

    def __init__(self, weight: LearnedWeight, norm: BatchNorm, strategy: int, *, channel_axis: int, parts: int) -> None:
        super().__init__()
        self.weight, self.strategy, self.parts = weight, strategy, parts
        self.epsilon, self._axis = float(norm.epsilon), channel_axis
        self.gamma, self.beta = (nn.Parameter(_tensor(values)) for values in (norm.gamma, norm.beta))
        for name, values in (("mean", norm.mean), ("variance", norm.variance), ("bias", norm.bias)):
            self.register_buffer(name, _tensor(values))

    def forward(self, convolve: Convolution) -> Tensor:
        """Return the result of convolution and normalization; statistics of the batch only in training."""
        return _FORWARD[self.strategy](self, convolve)

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
        return codes * torch.sign(size), scale * size.abs(), bias

    def along_weight(self, values: Tensor) -> Tensor:
        """Return values per output channel, shaped to broadcast to the weight."""
        shape = [1] * len(self.weight.start.real.shape)
        shape[self._axis] = -1
        return values.reshape(shape)

    def normalized(self, result: Tensor) -> Tensor:
        """Return the normalization of a result."""
        if not self.training:
            mean, variance = self.mean - self.bias, self.variance
            return self._affine(result, mean, variance)
        found = []
        for number, part in enumerate(torch.chunk(result, self.parts)):
            mean, variance = self.statistics(part, update=number == 0)
            found.append(self._affine(part, mean, variance))
        return torch.cat(found) if len(found) > 1 else found[0]

    def statistics(self, result: Tensor, *, update: bool) -> tuple[Tensor, Tensor]:
        """Return mean and variance of a result by channel, `[C]` each, after they entered the running ones."""
        axes = [axis for axis in range(result.ndim) if axis != 1]
        variance, mean = torch.var_mean(result, axes, unbiased=False)
        if update:
            count = result.numel() / result.shape[1]
            with torch.no_grad():
                unbiased = variance * (count / max(count - 1, 1))
                self.mean.lerp_((mean + self.bias).to(self.mean), MOMENTUM)
                self.variance.lerp_(unbiased.to(self.variance), MOMENTUM)
        return mean, variance

    def along_result(self, values: Tensor) -> Tensor:
        """Return values per channel, shaped to broadcast to the result `[N, C, …]`, which has the weight's rank."""
        return values.reshape((1, -1) + (1,) * (len(self.weight.start.real.shape) - 2))

    def _affine(self, result: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        factor = self.gamma / torch.sqrt(variance + self.epsilon)
        return result * self.along_result(factor) + self.along_result(self.beta - factor * mean)


def _unfolded(conv: FoldedConvolution, convolve: Convolution) -> Tensor:
    return conv.normalized(convolve(conv.weight()))


def _fixed(conv: FoldedConvolution, convolve: Convolution) -> Tensor:
    factor = conv.factor
    shift = conv.beta + factor * (conv.bias - conv.mean)
    return convolve(conv.weight(conv.along_weight(factor))) + conv.along_result(shift)


def _batch_folded(conv: FoldedConvolution, convolve: Convolution) -> Tensor:
    if not conv.training:
        return _fixed(conv, convolve)
    mean, variance = conv.statistics(convolve(conv.weight.latent), update=True)
    factor = conv.gamma / torch.sqrt(variance + conv.epsilon)
    return convolve(conv.weight(conv.along_weight(factor))) + conv.along_result(conv.beta - factor * mean)


def _corrected(conv: FoldedConvolution, convolve: Convolution) -> Tensor:
    if not conv.training:
        return _fixed(conv, convolve)
    running = torch.sqrt(conv.variance + conv.epsilon).clone()
    with torch.no_grad():
        plain = convolve(conv.weight.latent)
    mean, variance = conv.statistics(plain, update=True)
    deviation = torch.sqrt(variance + conv.epsilon)
    result = convolve(conv.weight(conv.along_weight(conv.gamma / running)))
    return result * conv.along_result(running / deviation) + conv.along_result(
        conv.beta - conv.gamma * mean / deviation
    )


def _divided(conv: FoldedConvolution, convolve: Convolution) -> Tensor:
    factor = conv.factor
    safe = torch.where(factor.abs() < 1e-12, torch.full_like(factor, 1e-12), factor)
    return conv.normalized(convolve(conv.weight(conv.along_weight(factor))) / conv.along_result(safe))


_FORWARD: Mapping[int, Callable[[FoldedConvolution, Convolution], Tensor]] = {
    -1: _unfolded,
    1: _fixed,
    2: _batch_folded,
    3: _corrected,
    4: _divided,
}


def _tensor(values: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(np.array(values, np.float32))
