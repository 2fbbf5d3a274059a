"""What a run gives training besides its options."""

from __future__ import annotations

import numpy as np
import pytest

import quantpipe
from quantpipe.pipeline.train import training_data
from tests.ops.line import Net

pytest.importorskip("torch")


def test_a_run_gives_few_class_scores_a_temperature() -> None:
    net = Net(3)
    net.output(net.dense(net.input(None, 6), 6, 4, name="dense"))
    samples = 8 * np.random.default_rng(2).standard_normal((64, 6)).astype(np.float32)
    with quantpipe.Pipeline(net.proto(), samples, "vta", train="lsq") as pipeline:
        data = training_data(pipeline._steps.context)
    assert data is not None and data.soften is not None
    scores = 20 * np.eye(4, dtype=np.float32)[np.arange(40) % 4]
    softened = data.soften(scores, 4.0)
    assert softened is not None and softened.temperature == 4.0
