"""Large weights of a file are held once, as arrays, and written again as they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.graph.execute import Session
from quantpipe.graph.io import model_bytes
from quantpipe.intake import read_model as reading
from quantpipe.intake.read_model import read_model


def written(path: Path, *, twice: bool = False) -> onnx.ModelProto:
    """A dense layer with a large weight in bytes, one in numbers, and a small bias."""
    rng = np.random.default_rng(0)
    large, bias = rng.standard_normal((64, 512), np.float32), np.ones(8, np.float32)
    listed = rng.standard_normal((512, 64), np.float32)
    weights = [numpy_helper.from_array(large, "w"), numpy_helper.from_array(bias, "b")]
    weights.append(helper.make_tensor("numbers", TensorProto.FLOAT, listed.shape, listed.ravel().tolist()))
    weights[0].doc_string = "of the first layer"
    weights += [numpy_helper.from_array(large, "w")] if twice else []
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("MatMul", ["y", "numbers"], ["z"]),
        helper.make_node("ReduceSum", ["b"], ["s"]),
        helper.make_node("Add", ["z", "s"], ["out"]),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 64]) for n in ("x", "out")]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return onnx.load(path)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LEAST_APART", 1 << 10)


def test_reading_a_weight_copies_nothing(tmp_path: Path) -> None:
    written(tmp_path / "m.onnx")
    model = read_model(tmp_path / "m.onnx")
    tensor = model.graph.initializers["w"].const_value
    assert tensor is not None and np.shares_memory(tensor.numpy(), tensor.numpy())


def test_the_model_is_the_one_of_the_file(tmp_path: Path) -> None:
    given = written(tmp_path / "m.onnx")
    model = read_model(tmp_path / "m.onnx")
    assert model_bytes(model) == model_bytes(ir.from_proto(given))
    x = np.random.default_rng(1).standard_normal((3, 64), np.float32)
    found, expected = (Session(one).run({"x": x})["out"] for one in (model, given.SerializeToString()))
    assert np.array_equal(found, expected)


def test_names_that_occur_twice_are_left_to_their_check(tmp_path: Path) -> None:
    given = written(tmp_path / "m.onnx", twice=True)
    assert [t.name for t in given.graph.initializer].count("w") == 2
    assert isinstance(reading._with_arrays(given), ir.Model)
