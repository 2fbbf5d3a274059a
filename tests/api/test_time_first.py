"""A model whose output has the time on its first axis, and one sample at a time: a sample has several rows there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantpipe
from quantpipe.metrics.reference import rows_of
from quantpipe.types import Outputs

TIMES, CLASSES = 6, 5


def reader() -> onnx.ModelProto:
    """A line of text `[1, 1, 8, 6]` to scores `[6, 1, 5]`, as recognizers of text give them."""
    rng = np.random.default_rng(4)
    weights = {
        "w": rng.standard_normal((8, 1, 8, 1)).astype(np.float32) / 3,
        "v": rng.standard_normal((8, CLASSES)).astype(np.float32) / 3,
        "axes": np.asarray([2], np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["map"], name="conv"),
        helper.make_node("Relu", ["map"], ["relu"], name="relu"),
        helper.make_node("Squeeze", ["relu", "axes"], ["columns"], name="squeeze"),
        helper.make_node("Transpose", ["columns"], ["times"], name="transpose", perm=[2, 0, 1]),
        helper.make_node("MatMul", ["times", "v"], ["scores"], name="dense"),
    ]
    graph = helper.make_graph(
        nodes,
        "reader",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 8, TIMES])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [TIMES, 1, CLASSES])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.sliced(2)
@pytest.mark.parametrize("realized_samples", [None, 4])
def test_every_row_of_the_samples_counts(realized_samples: int | None, tmp_path: Path) -> None:
    samples = np.random.default_rng(1).standard_normal((48, 1, 8, TIMES)).astype(np.float32)
    given = {"evaluate": {"realized_samples": realized_samples}}
    result = quantpipe.quantize(reader(), samples, "ort_cpu", folder=tmp_path / "run", **given)
    assert result.report["agreement"]["differing"] == 0
    (row,) = result.report["outputs"]
    assert row["sqnr_db"] > 20


def test_the_rows_of_samples_go_with_them() -> None:
    outputs: Outputs = np.arange(12).reshape(6, 2)
    kept = np.asarray([True, False, True])
    np.testing.assert_array_equal(rows_of(outputs, kept), outputs[[0, 1, 4, 5]])
    np.testing.assert_array_equal(rows_of(outputs[:3], kept), outputs[[0, 2]])
