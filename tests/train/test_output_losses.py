"""The loss of training next to the metric in NumPy."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from quantpipe.metrics.soft_kl import softness_of  # noqa: E402
from quantpipe.train.output_losses import OutputLosses  # noqa: E402
from quantpipe.train.training_data import KL, OutputTarget  # noqa: E402

TARGETS = (OutputTarget("scores", KL, factor=2.0),)


def scores(rows: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Scores of a float model, `[rows, 7]`, and others near them."""
    rng = np.random.default_rng(3)
    found = rng.normal(scale=spread, size=(rows, 7)).astype(np.float32)
    return found, found + rng.normal(scale=0.3, size=found.shape).astype(np.float32)


def loss(reference: np.ndarray, outputs: np.ndarray, temperature: float) -> float:
    """The loss of all samples, whose references come in two batches."""
    batches = [{"scores": torch.from_numpy(part)} for part in np.array_split(reference, 2)]
    losses = OutputLosses(TARGETS, batches, partial(softness_of, temperature=temperature))
    return float(losses({"scores": torch.from_numpy(reference)}, {"scores": torch.from_numpy(outputs)}))


@pytest.mark.parametrize("temperature", [2.0, 4.0, 16.0])
def test_few_samples_are_compared_at_the_temperature(temperature: float) -> None:
    reference, outputs = scores(rows=40, spread=8.0)
    softness = softness_of(reference, temperature)
    assert softness is not None and softness.temperature == temperature
    expected = 2.0 * softness.divergences(reference, outputs).mean()
    assert loss(reference, outputs, temperature) == pytest.approx(expected, rel=1e-3)
    assert loss(reference, outputs, temperature) != pytest.approx(loss(reference, outputs, 1.0), rel=1e-2)


def test_many_samples_and_probabilities_are_compared_by_plain_kl() -> None:
    reference, outputs = scores(rows=2000, spread=0.5)
    assert loss(reference, outputs, 4.0) == loss(reference, outputs, 1.0)
    few = [np.exp(s[:40]) / np.exp(s[:40]).sum(-1, keepdims=True) for s in (reference, outputs)]
    assert loss(*few, 4.0) == loss(*few, 1.0)
