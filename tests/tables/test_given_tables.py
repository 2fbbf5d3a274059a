"""Tables of models that are quantized already: their own integers and scales, or the real numbers behind them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.api.model import model_file
from quantpipe.intake.load import clean_graph, read_graph
from quantpipe.plan.table_numbers import real_rows
from quantpipe.types import Keep
from tests.ops.line import ArraySamples, Line, line

Array = np.ndarray[Any, Any]
ROWS, COLUMNS = 400, 16


def quantized(dtype: Any, zero: int, per_row: bool, behind: bool) -> onnx.ModelProto:
    """A table of integers, dequantized in front of the look-up or behind it, and a dense layer."""
    rng, node = np.random.default_rng(0), helper.make_node
    limits = np.iinfo(dtype)
    scale = (rng.random(ROWS) + 0.1 if per_row else np.asarray(0.02)).astype(np.float32)
    constants = {
        "q": rng.integers(limits.min, limits.max + 1, (ROWS, COLUMNS)).astype(dtype),
        "s": scale,
        "z": np.full(scale.shape, zero, dtype),
        "w": (rng.standard_normal((COLUMNS, 4)) / 4).astype(np.float32),
        "b": rng.standard_normal(4).astype(np.float32),
    }
    numbers: dict[str, Any] = {"axis": 0} if per_row else {}
    if behind:
        lookup = [
            node("Gather", ["q", "i"], ["g"], name="lookup"),
            node("DequantizeLinear", ["g", "s", "z"], ["r"], name="dq"),
        ]
    else:
        lookup = [
            node("DequantizeLinear", ["q", "s", "z"], ["t"], name="dq", **numbers),
            node("Gather", ["t", "i"], ["r"], name="lookup"),
        ]
    graph = helper.make_graph(
        [*lookup, node("Gemm", ["r", "w", "b"], ["y"], name="fc")],
        "quantized",
        [helper.make_tensor_value_info("i", TensorProto.INT64, ["N"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def imported(model: onnx.ModelProto, keep: Keep = Keep.ALL) -> Line:
    places = np.arange(ROWS)
    with tempfile.TemporaryDirectory() as folder:
        raw = read_graph(model_file(model, Path(folder)), keep=keep)
        graph = clean_graph(raw, {"i": places[:8]}, isolate=False)
    return line(graph, samples=ArraySamples({"i": places}))


def rows_of(model: onnx.ModelProto) -> Array:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.output.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, None))
    session = ort.InferenceSession(copy.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["r"], {"i": np.arange(ROWS)})[0])


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize(
    ("dtype", "zero", "per_row"),
    [(np.int8, 0, False), (np.int8, 0, True), (np.uint8, 128, False), (np.uint8, 128, True), (np.uint8, 100, False)],
)
def test_rows_stay_what_the_file_says(dtype: Any, zero: int, per_row: bool, behind: bool) -> None:
    if behind and per_row:
        pytest.skip("scales of rows do not belong to what was looked up")
    model = quantized(dtype, zero, per_row, behind)
    made = imported(model)
    plan = made.plan(8)
    assert made.agree(plan, "qdq").differing == 0
    sites = made.topology.tables
    if sites:
        table = plan.tables[sites[0].tensor]
        assert np.array_equal(real_rows(table), rows_of(model))
        assert zero != 100
        return
    constants = [made.graph.constant(n) for n in made.graph.constant_names()]
    (held,) = (c for c in constants if c.shape == (ROWS, COLUMNS))
    # What int8 does not hold stays real, and what is looked up in integers stays as it is.
    wanted = rows_of(model) if held.dtype == np.float32 else numpy_helper.to_array(model.graph.initializer[0])
    assert (behind or zero == 100) and np.array_equal(held, wanted)


def test_a_table_that_is_free_again_has_scales_of_its_rows() -> None:
    made = imported(quantized(np.uint8, 128, False, False), Keep.NONE)
    (site,) = made.topology.tables
    assert len(np.unique(made.plan(8).tables[site.tensor].scale)) > 1
