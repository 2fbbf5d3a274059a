"""Outputs whose length depends on values, as a decoder's that goes on until it gives an end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import quantpipe
from tests.ops.line import Net


def reader() -> onnx.ModelProto:
    """x [1, 8] -> scores [1, L]: the first of sixteen, as many as the first result of another layer says."""
    net = Net(seed=5)
    hidden = net.node("Relu", net.dense(net.input(1, 8), 8, 16))
    scores, count = net.dense(hidden, 16, 16), net.dense(hidden, 16, 1)
    size = net.node("Mul", net.node("Sigmoid", count), net.constant(np.float32(15.0)))
    last = net.node("Add", net.node("Cast", size, to=TensorProto.INT64), net.constant(np.int64([[1]])))
    ends = net.node("Reshape", last, net.constant(np.int64([1])))
    net.output(net.node("Slice", scores, net.constant(np.int64([0])), ends, net.constant(np.int64([1]))))
    return net.proto()


@pytest.mark.sliced(3)
@pytest.mark.filterwarnings("ignore::quantpipe.QuantpipeWarning")
@pytest.mark.parametrize("metric", ["auto", "kl", "mse"])
def test_samples_of_another_length_are_lost_and_told(metric: str, tmp_path: Path) -> None:
    samples = np.random.default_rng(1).standard_normal((120, 8)).astype(np.float32)
    found = quantpipe.quantize(reader(), samples, "vta", folder=tmp_path, objective={"metric": metric}, recover="none")
    report = found.report
    assert report["agreement"]["differing"] == 0, "lengths are the same where integers are"
    other, total = report["outputs"][0]["other_shape"], len(np.load(tmp_path / "evaluate" / "samples.npz")["loss"])
    assert 0 < other < total
    said = [text for text in found.warnings if "another shape than the float model's in" in text]
    assert len(said) == 1 and f"in {other} of {total} samples" in said[0]
    real = report["metrics"]["realized"]
    assert np.isfinite(real["kl"]) and np.isfinite(real["sqnr_db"])
