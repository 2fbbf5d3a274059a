"""The learning rate of each step: a cosine, and a rise before it, also in a training that was interrupted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from quantpipe.train.train_options import TrainOptions  # noqa: E402
from tests.train.nets import Memory, made, many, trained  # noqa: E402

LSQ = TrainOptions(weights="lsq", activations="lsq", epochs=4, batch=16, learning_rate=1e-3, scale_rate=1e-2)


def rates_of(monkeypatch: pytest.MonkeyPatch, options: TrainOptions, **given: Any) -> list[tuple[float, ...]]:
    """The rates of weights and of scales in each step of a training with 4 steps an epoch."""
    seen, step = list[tuple[float, ...]](), torch.optim.Adam.step

    def stepped(self: Any, *arguments: Any) -> Any:
        seen.append(tuple(group["lr"] for group in self.param_groups))
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.Adam, "step", stepped)
    problem = made("tensorrt", 4)
    trained(problem, problem.strategy(4), options, many(problem, 64, labels=5), **given)
    return seen


def rates_due(steps: int, warm: float) -> list[tuple[float, float]]:
    """A cosine, below a line that reaches 1 in step `warm`."""
    cosine = 0.5 * (1 + np.cos(np.pi * np.arange(steps) / steps))
    found = cosine * np.minimum(np.arange(1, steps + 1) / max(warm, 1e-9), 1)
    return [(LSQ.learning_rate * factor, LSQ.scale_rate * factor) for factor in found]


@pytest.mark.parametrize(
    ("changes", "warm"),
    [
        ({"loss": "outputs"}, 0.0),
        ({"loss": "labels"}, 1.6),
        ({"loss": "both"}, 1.6),
        ({"loss": "labels", "warmup": 0.0}, 0.0),
        ({"loss": "outputs", "warmup": 0.5}, 8.0),
    ],
)
def test_rates_rise_and_fall(monkeypatch: pytest.MonkeyPatch, changes: Any, warm: float) -> None:
    np.testing.assert_allclose(rates_of(monkeypatch, replace(LSQ, **changes)), rates_due(16, warm), rtol=1e-12)


def test_rates_rise_in_each_block(monkeypatch: pytest.MonkeyPatch) -> None:
    found = rates_of(monkeypatch, replace(LSQ, weights="adaround", scope="blocks", warmup=0.25))
    np.testing.assert_allclose(found, 3 * rates_due(16, 4.0), rtol=1e-12)


def test_an_interrupted_rise_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, options = Memory(1), replace(LSQ, warmup=0.5)
    with pytest.raises(KeyboardInterrupt):
        rates_of(monkeypatch, options, kept=kept)
    monkeypatch.undo()
    np.testing.assert_allclose(rates_of(monkeypatch, options, kept=kept), rates_due(16, 8.0)[4:], rtol=1e-12)
