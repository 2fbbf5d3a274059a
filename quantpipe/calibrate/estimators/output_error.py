"""output_error: ranges and weights that minimize the error of a layer's output, instead of the tensor's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.calibrate.estimators.legal import Estimator
from quantpipe.calibrate.estimators.mse import MSE
from quantpipe.calibrate.estimators.over_base import OverBase
from quantpipe.errors import ConfigError
from quantpipe.option_checks import is_number
from quantpipe.types import Range
from quantpipe.types.layer_views import Layer, LayerDecision, Views

SMALLER, GREATER = (0.7, 0.5, 0.35, 0.2, 0.1), (1.4, 2.0)
"""Of the base range, cut at the extremes: tried for each open input, one after the other while errors fall."""
FINE_FACTORS = (0.85, 1.18)
"""Of the best of these, tried after them."""
USUAL = 5
"""Ranges that are tried for an input where the first ones to both sides are worse than the base range."""
LEAST_ELEMENTS = 4096
"""Elements of a layer's output, at least, that a trial sees, where the samples have so many: few are soon fitted by
chance, and cost little."""
WEIGHT_FACTORS = (0.8, 0.9, 1.1)
"""Of the weight's thresholds; each channel takes its own."""
MOST_TOGETHER = 1 << 23
"""Elements of a weight up to which its trials are held in memory side by side."""
AT_ONCE = 4
"""Decisions whose outputs are held in memory side by side."""
WORTH = 0.99
"""A range has to lower the error on the samples that it is tried on to this share, or stays as it was."""
WEIGHT_WORTH = 0.8
"""The threshold of a channel likewise. Most of a channel's error comes with its inputs, and thresholds that lower it
little do so by making the weight smaller, which adds up over the layers behind."""


@dataclass(frozen=True)
class OutputError(OverBase):
    """Minimize Σ (y - ŷ)² over a layer's output, y in float, ŷ of quantized inputs and weights.

    One open input after the other takes the best of some factors of the base range. Then each output channel of the
    weight takes the best of some factors of its threshold. The layers before are quantized as they were decided. A
    direction of the input that no weight uses costs nothing here, whatever it costs the tensor. The code of BRECQ and
    AdaRound chooses ranges by the same criterion, block by block.

    `base`: The estimator that it begins with. `passes`: The maximum cost of a layer's trials, in passes over the
    samples. `weights`: Whether thresholds of weights are chosen, too.
    """

    base: Estimator = field(default_factory=MSE)
    passes: float = 1.0
    weights: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.base, OutputError):
            raise ConfigError("threshold.activations.base cannot be output_error itself")
        if not is_number(self.passes) or not 0 < self.passes <= 16:
            raise ConfigError(f"threshold.activations.passes is {self.passes!r}; legal are numbers above 0, up to 16")

    def layer(self, layer: Layer) -> LayerDecision | None:
        """Return the best of the tried ranges and thresholds of one layer."""
        open_inputs, thresholds = layer.open, layer.thresholds if self.weights else None
        trials = len(open_inputs) * USUAL + (0 if thresholds is None else len(WEIGHT_FACTORS) + 1)
        if not trials:
            return None
        share, ranges = self._share(layer, trials), dict[str, Range]()
        for tensor in open_inputs:
            chosen_range = _range(layer, ranges, tensor, share)
            if chosen_range is not None:
                ranges[tensor] = chosen_range
        chosen = None if thresholds is None else _weight(layer, ranges, thresholds, share)
        return LayerDecision(ranges, chosen) if ranges or chosen is not None else None

    def _share(self, layer: Layer, trials: int) -> float:
        """Return the share of samples that the trials may cost, or that has enough elements, whichever is more."""
        first = next(iter(layer.batches(share=0))).float_outputs[layer.outputs[0]]
        elements = first.size // max(1, len(first)) * layer.samples
        return min(1.0, max(self.passes / trials, LEAST_ELEMENTS / max(1, elements)))


def _range(layer: Layer, ranges: dict[str, Range], tensor: str, share: float) -> Range | None:
    """Return the best range of an input, given the earlier decisions; None where no candidate improves it."""
    before, ends = layer.ranges[tensor], layer.extremes[tensor]

    def scaled(factor: float) -> Range:
        low, high = max(before.low * factor, min(ends.low, before.low)), before.high * factor
        return Range(low, min(high, max(ends.high, before.high)))

    def errors(factors: Sequence[float]) -> NDArray[np.float64]:
        decisions = [LayerDecision({**ranges, tensor: scaled(f)}) for f in factors]
        return np.asarray(_compared(layer, decisions, share, AT_ONCE).sum(axis=1))

    first = (1.0, SMALLER[0], GREATER[0])
    found = dict(zip(first, errors(first), strict=True))
    best = min(found, key=found.__getitem__)
    for factor in () if best == 1.0 else (SMALLER if best < 1.0 else GREATER)[1:]:
        found[factor] = errors([factor])[0]
        if found[factor] >= found[best]:
            break  # errors rise to both sides of the best range
        best = factor
    fine = [best * f for f in FINE_FACTORS]
    found |= dict(zip(fine, errors(fine), strict=True))
    best = min(found, key=found.__getitem__)
    return scaled(best) if found[best] < WORTH * found[1.0] else None


def _weight(
    layer: Layer, ranges: dict[str, Range], thresholds: NDArray[np.float64], share: float
) -> NDArray[np.float64] | None:
    """Return thresholds with the best factor of each channel; None where no factor improves it."""
    per_channel = thresholds.ndim > 0 and len(thresholds) > 1
    decisions = [LayerDecision(ranges), *(LayerDecision(ranges, thresholds * f) for f in WEIGHT_FACTORS)]
    errors = _compared(layer, decisions, share, AT_ONCE if prod(layer.weight_shape or ()) <= MOST_TOGETHER else 1)
    if not per_channel:
        errors = errors.sum(axis=1, keepdims=True)
    elif errors.shape[1] != len(thresholds):
        return None  # channels of the weight are no channels of the result
    errors[0] *= WEIGHT_WORTH
    factors = np.asarray([1.0, *WEIGHT_FACTORS])[np.argmin(errors, axis=0)]
    if np.all(factors == 1):
        return None
    shaped = factors.reshape(-1, *([1] * (thresholds.ndim - 1))) if thresholds.ndim else factors[0]
    return np.asarray(thresholds * shaped, np.float64)


def _compared(layer: Layer, decisions: Sequence[LayerDecision], share: float, at_once: int) -> NDArray[np.float64]:
    """Return errors of decisions, some of which are in memory at once."""
    groups = [decisions[first : first + at_once] for first in range(0, len(decisions), at_once)]
    return np.concatenate([_errors(layer, group, share) for group in groups])


def _errors(layer: Layer, decisions: Sequence[LayerDecision], share: float) -> NDArray[np.float64]:
    """Return squared errors of each channel of the layer's first output, `[decisions, C]`."""
    name = layer.outputs[0]

    def squares(tried: tuple[Views, ...]) -> NDArray[np.float64]:
        axis = layer.output_axis % max(tried[0].float_outputs[name].ndim, 1)
        return np.stack([_squares(v.float_outputs[name], v.quantized_outputs[name], axis) for v in tried])

    return np.asarray(sum(layer.measure(decisions, squares, share)), np.float64)


def _squares(wanted: NDArray[Any], found: NDArray[Any], axis: int) -> NDArray[np.float64]:
    """Return Σ (y - ŷ)² of each place along an axis: float32 along the last axes, float64 over their sums."""
    error = np.atleast_1d(found - wanted)
    channels = error.reshape(-1, error.shape[axis], int(np.prod(error.shape[axis + 1 :])))
    return np.asarray(np.einsum("abc,abc->ab", channels, channels).sum(axis=0, dtype=np.float64))
