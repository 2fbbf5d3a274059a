"""Describe the losses of a model's outputs in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quantpipe.metrics.losses import LossKind, OutputLoss

_SAID = {
    LossKind.KL: "a KL divergence of {0:.4g}",
    LossKind.MSE: "a squared error of {0:.4g} of its variance",
    LossKind.DIFFERING: "{0:.4g} of its elements",
}


def losing_outputs(losses: Sequence[OutputLoss], metrics: Mapping[str, float], tolerance: float) -> str:
    """Return the outputs that lose more than is allowed, the worst first, each by its own measure.

    `metrics` belong to a candidate.
    """
    alone = {losses[0].output: metrics.get("loss", 0.0)} if len(losses) == 1 else {}
    found = [(alone.get(loss.output, metrics.get(f"loss.{loss.output}", 0.0)), loss) for loss in losses]
    above = sorted((pair for pair in found if pair[0] > tolerance), key=lambda pair: -pair[0])
    return "; ".join(f"{loss.output} loses {_said(value, loss)}" for value, loss in above)


def _said(value: float, loss: OutputLoss) -> str:
    weighed = f" (which counts {loss.weight:g} times)" if loss.weight != 1.0 else ""
    return _SAID[loss.kind].format(value / loss.factor) + weighed
