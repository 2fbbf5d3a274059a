"""Inputs that are fixed to a value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from quantpipe.errors import ConfigError
from quantpipe.graph.execute import Session
from quantpipe.intake.load import load_graph


def model() -> onnx.ModelProto:
    """y = x·w + (rate == 16000 ? 1 : -1), with an If over a scalar input."""

    def branch(value: float) -> onnx.GraphProto:
        constant = helper.make_tensor("v", TensorProto.FLOAT, [1], [value])
        node = helper.make_node("Constant", [], [f"branch{value}"], value=constant)
        out = helper.make_tensor_value_info(f"branch{value}", TensorProto.FLOAT, [1])
        return helper.make_graph([node], "branch", [], [out])

    nodes = [
        helper.make_node("Equal", ["rate", "known"], ["is_known"]),
        helper.make_node("If", ["is_known"], ["shift"], then_branch=branch(1.0), else_branch=branch(-1.0), name="if"),
        helper.make_node("Gemm", ["x", "w"], ["product"], name="dense"),
        helper.make_node("Add", ["product", "shift"], ["y"], name="add"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3]),
            helper.make_tensor_value_info("rate", TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])],
        [
            helper.make_tensor("w", TensorProto.FLOAT, [3, 2], np.arange(6, dtype=np.float32)),
            helper.make_tensor("known", TensorProto.INT64, [], [16000]),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


X = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


def load(folder: Path, **fixed: Any) -> Any:
    onnx.save(model(), folder / "net.onnx")
    return load_graph(folder / "net.onnx", lambda raw: {"x": X}, fixed=fixed)


@pytest.mark.parametrize("rate", [16000, 8000])
def test_a_fixed_input_is_gone_and_the_model_computes_the_same(tmp_path: Path, rate: int) -> None:
    graph = load(tmp_path, rate=rate)
    assert [i.name for i in graph.inputs] == ["x"]
    plain = ort.InferenceSession(model().SerializeToString())
    (expected,) = plain.run(None, {"x": X, "rate": np.array(rate, np.int64)})
    np.testing.assert_allclose(Session(graph.model).run({"x": X})["y"], expected, rtol=1e-6)
    assert "If" not in {n.op for n in graph.nodes}


def test_another_value_is_another_model(tmp_path: Path) -> None:
    hashes = {load(tmp_path, rate=rate).model_hash for rate in (16000, 8000)}
    assert len(hashes) == 2


@pytest.mark.parametrize(
    ("fixed", "said"),
    [
        ({"rat": 1}, "no input 'rat' (did you mean 'rate'?)"),
        ({"rate": 1.5}, "which int64 does not hold"),
        ({"rate": "fast"}, "legal are numbers|does not hold"),
        ({"rate": [1, 2]}, r"has shape [2]; the input takes []"),
        ({"x": [[1.0, 2.0]]}, r"has shape [1, 2]; the input takes [?, 3]"),
    ],
)
def test_values_that_do_not_fit(tmp_path: Path, fixed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, **fixed)
    assert any(part in str(caught.value) for part in said.split("|"))
