"""Recovery beside a recurrent layer whose sequence nobody reads: such a node leaves its first output out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import quantpipe
from tests.ops.line import Net


def detector(squeezed: bool) -> onnx.ModelProto:
    """x [1, 4, 8] -> the last hidden state [1, 1, 6] of an LSTM of one step or of six, behind two convolutions."""
    net = Net(seed=2)
    y = net.node("Relu", net.conv(net.input(1, 4, 8), 4, 5, 3))
    if squeezed:
        rows = net.node("Squeeze", net.conv(y, 5, 4, 6), net.constant(np.int64([2])))
        steps = net.node("Unsqueeze", rows, net.constant(np.int64([0])))
    else:
        steps = net.node("Transpose", net.conv(y, 5, 4, 1), perm=[2, 0, 1])
    weights = net.floats(1, 24, 4, scale=0.4), net.floats(1, 24, 6, scale=0.4)
    net._nodes.append(helper.make_node("LSTM", [steps, *weights], ["", "last"], name="lstm", hidden_size=6))
    net.output("last")
    return net.proto()


@pytest.mark.program
@pytest.mark.parametrize("squeezed", [True, False])
def test_a_recurrent_layer_without_a_sequence_ends_no_recovery(squeezed: bool, tmp_path: Path) -> None:
    onnx.save(detector(squeezed), tmp_path / "m.onnx")
    sound = np.random.default_rng(0).standard_normal((32, 4, 8)).astype(np.float32)
    samples = quantpipe.SampleSets(calibrate=sound[:12], search=sound[12:20], evaluate=sound[20:])
    found = quantpipe.quantize(
        tmp_path / "m.onnx", samples, "ort_cpu", folder=tmp_path / "run", recover="default", precision="none",
        executor="serial", evaluate={"latency_runs": 1, "baseline": "none", "explain": "none"},
    )  # fmt: skip
    assert found.report["agreement"]["differing"] == 0 and (found.folder / "recover" / "steps.json").is_file()
