"""Small models, samples and settings for runs from Python that take a fraction of a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.ops.line import Net

QUICK: dict[str, Any] = {
    "agreement_samples": 8,
    "layer_samples": 4,
    "latency_runs": 1,
    "latency_seconds": 0.01,
    "baseline": "none",
    "explain": "none",
}
"""For `evaluate`."""
CLASSES = 5


def small_net() -> onnx.ModelProto:
    """Two convolutions with an addition, pooled into five classes."""
    net = Net()
    x = net.conv(net.input(None, 3, 8, 8), 3, 8, 3, 3, pads=[1, 1, 1, 1])
    y = net.conv(net.node("Relu", x), 8, 8, 1, 1)
    x = net.node("Flatten", net.node("GlobalAveragePool", net.node("Add", x, y)))
    net.output(net.dense(x, 8, CLASSES))
    return net.proto()


def two_inputs() -> onnx.ModelProto:
    """A dense layer for each of the inputs `a` [N, 6] and `b` [N, 4], added up."""
    net = Net()
    a, b = net.input(None, 6, name="a"), net.input(None, 4, name="b")
    net.output(net.node("Add", net.dense(a, 6, CLASSES), net.dense(b, 4, CLASSES)))
    return net.proto()


def images(count: int = 48, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Samples of `small_net`, `[count, 3, 8, 8]`."""
    return np.random.default_rng(seed).standard_normal((count, 3, 8, 8)).astype(np.float32)


def numbers_of(folder: Path) -> dict[str, Any]:
    """Every number of a run's integer model and strategy, without where they come from."""
    plan = json.loads((folder / "realize" / "plan.json").read_text())
    plan.pop("origin", None)
    plan.pop("digest", None)
    decided: dict[str, Any] = json.loads((folder / "search" / "strategy.json").read_text())["strategy"]
    decided.pop("model_hash")
    return {"plan": plan, "strategy": decided}
