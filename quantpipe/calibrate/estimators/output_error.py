"""output_error: ranges and weights that make the error of a layer's output least, instead of the tensor's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.calibrate.estimators.legal import Estimator
from quantpipe.calibrate.estimators.mse import MSE
from quantpipe.calibrate.estimators.over_base import OverBase
from quantpipe.errors import ConfigError
from quantpipe.types import Range
from quantpipe.types.layer_views import Layer, LayerDecision

FACTORS = (0.35, 0.5, 0.65, 0.8, 0.9, 1.1, 1.25, 1.5, 2.0)
"""Of the base range, cut at the extremes; tried for each open input."""
WEIGHT_FACTORS = (0.8, 0.9, 1.1)
"""Of the weight's thresholds; each channel takes its own."""
WORTH = 0.99
"""A decision has to lower the error on the samples that it is tried on to this share, or stays as it was."""


@dataclass(frozen=True)
class OutputError(OverBase):
    """Σ (y - ŷ)² over a layer's output, y in float, ŷ of quantized inputs and weights, is made least.

    One open input after the other takes the best of some factors of the base range, then each output channel of the
    weight the best of some factors of its threshold. The layers before are quantized as they were decided. A direction
    of the input that no weight looks at costs nothing here, whatever it costs the tensor. The same criterion chooses
    ranges in BRECQ and AdaRound's code, block by block.

    Attributes:
        base: The estimator that it begins with.
        passes: What the trials of a layer may cost, in passes over the samples.
        weights: Whether thresholds of weights are chosen, too.
    """

    base: Estimator = field(default_factory=MSE)
    passes: float = 1.5
    weights: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.base, OutputError):
            raise ConfigError("threshold.activations.base cannot be output_error itself")
        if isinstance(self.passes, bool) or not isinstance(self.passes, int | float) or not 0 < self.passes <= 16:
            raise ConfigError(f"threshold.activations.passes is {self.passes!r}; legal are numbers above 0, up to 16")

    def layer(self, layer: Layer) -> LayerDecision | None:
        """Return the best of the tried ranges and thresholds of one layer."""
        open_inputs, thresholds = layer.open, layer.thresholds if self.weights else None
        trials = len(open_inputs) * (len(FACTORS) + 1) + (0 if thresholds is None else len(WEIGHT_FACTORS) + 1)
        if not trials:
            return None
        share, ranges = min(1.0, self.passes / trials), dict[str, Range]()
        for tensor in open_inputs:
            before, ends = layer.ranges[tensor], layer.extremes[tensor]
            best = WORTH * self._error(layer, LayerDecision(ranges), share)
            for factor in FACTORS:
                tried = Range(max(before.low * factor, min(ends.low, before.low)),
                              min(before.high * factor, max(ends.high, before.high)))  # fmt: skip
                error = self._error(layer, LayerDecision({**ranges, tensor: tried}), share)
                if error < best:
                    best, ranges[tensor] = error, tried
        chosen = None if thresholds is None else self._weight(layer, ranges, thresholds, share)
        return LayerDecision(ranges, chosen) if ranges or chosen is not None else None

    def _weight(
        self, layer: Layer, ranges: dict[str, Range], thresholds: NDArray[np.float64], share: float
    ) -> NDArray[np.float64] | None:
        """Thresholds with the best factor of each channel; None where none is worth it."""
        per_channel = thresholds.ndim > 0 and len(thresholds) > 1
        best = WORTH * self._channels(layer, LayerDecision(ranges), share)
        best, factors = best if per_channel else best.sum(keepdims=True), np.ones(len(best) if per_channel else 1)
        if per_channel and len(best) != len(thresholds):
            return None  # channels of the weight are no channels of the result
        for factor in WEIGHT_FACTORS:
            found = self._channels(layer, LayerDecision(ranges, thresholds * factor), share)
            error = found if per_channel else found.sum(keepdims=True)
            better = error < best
            best, factors = np.where(better, error, best), np.where(better, factor, factors)
        if np.all(factors == 1):
            return None
        shaped = factors.reshape(-1, *([1] * (thresholds.ndim - 1))) if thresholds.ndim else factors[0]
        return np.asarray(thresholds * shaped, np.float64)

    def _error(self, layer: Layer, decision: LayerDecision, share: float) -> float:
        return float(self._channels(layer, decision, share).sum())

    def _channels(self, layer: Layer, decision: LayerDecision, share: float) -> NDArray[np.float64]:
        """Squared errors of each channel of the layer's first output."""
        total: Any = 0.0
        for views in layer.batches(decision, share):
            wanted, found = (v[layer.outputs[0]] for v in (views.float_outputs, views.quantized_outputs))
            squares = np.square((found - wanted).astype(np.float64))
            axis = layer.output_axis % max(squares.ndim, 1)
            total = total + squares.sum(axis=tuple(a for a in range(squares.ndim) if a != axis)).reshape(-1)
        return np.asarray(total)
