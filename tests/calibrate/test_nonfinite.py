"""Tensors that hold infinities: no range is made of them, and only a run that stores them is ended by that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import quantpipe
from quantpipe.calibrate.estimators import MSE
from quantpipe.calibrate.measure import Detail, measure
from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.errors import DataError
from tests.ops.line import ArraySamples, Net, line

RNG = np.random.default_rng(2)
X = RNG.standard_normal((160, 8)).astype(np.float32)


def bordered() -> Net:
    """x [N, 8] -> weights beside a border of minus infinity, of which none is picked: as decoders of paths have it."""
    net = Net(seed=4)
    scores = net.node("Softmax", net.dense(net.node("Relu", net.dense(net.input(None, 8), 8, 16)), 16, 6), axis=-1)
    ends = net.constant(np.int64([0, 1, 0, 1]))
    padded = net.node("Pad", scores, ends, net.constant(np.float32(-np.inf)), name="border")
    net.output(net.node("Gather", padded, net.constant(np.int64([1, 3, 5])), axis=1, name="pick"))
    return net


@pytest.mark.sliced(3)
@pytest.mark.parametrize("device", ["ort_cpu", "fbgemm", "tflite_int8"])
def test_a_border_of_infinities_that_nothing_stores_ends_no_run(device: str, tmp_path: Path) -> None:
    model: onnx.ModelProto = bordered().proto()
    found = quantpipe.quantize(
        model, X, device, folder=tmp_path / "run", annotate={"float_ops": ["Softmax", "Pad", "Gather"]}
    )
    assert found.report["agreement"]["differing"] == 0
    assert found.report["outputs"][0]["sqnr_db"] > 20


def test_a_stored_tensor_names_what_keeps_it_in_float() -> None:
    made = line(bordered(), "qnn_htp")
    samples = ArraySamples({"x": X})
    with pytest.raises(DataError, match=r"border_out holds \d+ values.*annotate.float_nodes=\[border,pick\]"):
        measure(made.graph, made.topology.measured, samples, 64)
    profile = measure(made.graph, made.topology.measured, samples, 64, detail=Detail(finite=("x",)))
    assert profile.tensors["border_out"].nonfinite == 2 * len(X)
    table = ThresholdTable(made.graph, made.topology, made.schema, profile, estimator=MSE(), weight_method="mse")
    with pytest.raises(DataError, match=r"border_out: 320 of its values were not finite.*\[border,pick\]"):
        table.group_range(made.topology.group_of["border_out"], 8)
