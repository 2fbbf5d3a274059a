"""The loss of training: what outputs lose against the float model's, in the units of `metrics.losses`, or labels.

Class scores lose KL(p_float || p) in nats, other floats their squared error as a share of the float output's variance.
Losses of several outputs, and of the parts of one output, are added. With few samples, KL is taken at a temperature, so
that every sample trains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from quantpipe.train.training_data import KL, OutputTarget, Softening

SUM_TOLERANCE = 1e-3
"""Difference from 1 up to which rows of scores count as probabilities."""


class OutputLosses:
    """Compute the loss of a batch.

    `references`: the float model's outputs over all samples, batch by batch. `soften`: gives class scores of few
    samples a temperature.
    """

    def __init__(
        self,
        targets: Sequence[OutputTarget],
        references: Sequence[Mapping[str, Tensor]],
        soften: Callable[[NDArray[Any]], Softening | None] | None = None,
    ) -> None:
        self._targets = tuple(targets)
        self._softened: dict[str, tuple[float, float]] = {}
        self._variance: dict[tuple[str, int], float] = {}
        self._probable: dict[str, bool] = {}
        for target in self._targets:
            outputs = [found[target.output] for found in references]
            self._probable[target.output] = all(are_probabilities(output) for output in outputs)
            if target.kind == KL and soften is not None and not self._probable[target.output]:
                rows = np.concatenate([output.reshape(-1, output.shape[-1]).cpu().numpy() for output in outputs])
                if (found := soften(rows)) is not None:
                    self._softened[target.output] = found.temperature, found.factor
            for number in range(len(target.parts) or 1):
                values = torch.cat([_part(target, number, output).flatten().double() for output in outputs])
                finite = values[torch.isfinite(values)]
                self._variance[target.output, number] = float(finite.var(correction=0)) if len(finite) > 1 else 0.0

    def __call__(self, references: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Tensor:
        """Return the loss of a batch, `()`."""
        return torch.stack([self._of(t, references[t.output], outputs[t.output]) for t in self._targets]).sum()

    def _of(self, target: OutputTarget, reference: Tensor, output: Tensor) -> Tensor:
        if target.kind == KL:
            probable = self._probable[target.output]
            temperature, factor = self._softened.get(target.output, (1.0, 1.0))
            p, q = (log_probabilities(s / temperature, probable) for s in (reference, output))
            return target.factor * factor * (p.exp() * (p - q)).sum(-1).mean()
        losses = []
        for number in range(len(target.parts) or 1):
            own, found = (_part(target, number, values) for values in (reference, output))
            difference = torch.where(torch.isfinite(own), found - own, torch.zeros_like(own))
            losses.append(difference.square().mean() / (self._variance[target.output, number] or 1.0))
        return target.factor * torch.stack(losses).sum()


def label_loss(scores: Tensor, labels: Tensor, *, probable: bool) -> Tensor:
    """Return the mean cross entropy of class scores `[N, …, C]` in nats, from labels `[N]`.

    `probable`: the float network's scores are probabilities. Rounded ones need not add up to 1.
    """
    found = log_probabilities(scores, probable)
    return functional.nll_loss(found.reshape(len(labels), -1, found.shape[-1]).mean(1), labels)


def log_probabilities(scores: Tensor, probable: bool) -> Tensor:
    """Return the logarithms of the probabilities that scores are, or that their softmax gives."""
    return torch.log(scores.clamp(min=1e-12)) if probable else torch.log_softmax(scores, -1)


def are_probabilities(scores: Tensor) -> bool:
    """Return whether the rows of scores are probabilities."""
    sums = scores.sum(-1)
    return bool((scores >= 0).all()) and bool(((sums - 1).abs() <= SUM_TOLERANCE).all())


def _part(target: OutputTarget, number: int, values: Tensor) -> Tensor:
    if not target.parts:
        return values
    part = target.parts[number]
    if values.ndim <= part.axis or values.shape[part.axis] != part.size:
        return values
    return values.narrow(part.axis, part.first, part.last - part.first)
