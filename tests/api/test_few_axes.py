"""Models that give one number per sample: tensors of one axis, or of none where the batch is one sample by the file."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest

import quantpipe
from quantpipe.verify import verify_folder
from tests.ops.line import Net

DEVICES = ("vta", "vta_mul", "hago_sample", "fpga_shift", "npu_w4_blocks", "ort_cpu", "tflite_int8", "qnn_htp")


def rating(batch: int | None) -> onnx.ModelProto:
    """x [batch, 8] -> a gated sum of two results, as networks that rate a sample give it."""
    net = Net(seed=3)
    hidden = net.node("Relu", net.dense(net.input(batch, 8), 8, 16))
    axes = [net.constant(np.int64([1]))] if batch is None else []  # without axes the batch of one goes, too
    parts = [net.node("Squeeze", net.dense(hidden, 16, 1), *axes) for _ in range(2)]
    total = net.node("Add", *parts, name="total")
    net.output(net.node("Mul", net.node("Sigmoid", total), total))
    return net.proto()


@pytest.mark.sliced(32)
@pytest.mark.parametrize("batch", [None, 1])
@pytest.mark.parametrize("device", DEVICES)
def test_a_number_per_sample_goes_through_every_stage(device: str, batch: int | None, tmp_path: Path) -> None:
    samples = np.random.default_rng(0).standard_normal((200, 8)).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", quantpipe.QuantpipeWarning)
        found = quantpipe.quantize(rating(batch), samples, device, folder=tmp_path / "run", recover="none")
    assert found.report["agreement"]["differing"] == 0
    assert found.report["outputs"][0]["sqnr_db"] > 10
    assert verify_folder(tmp_path / "run").wrong is None
