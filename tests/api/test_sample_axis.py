"""Which axis of an output is the samples', and models whose file declares a batch that the samples cannot fill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantpipe
from quantpipe.errors import DataError

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
X = RNG.standard_normal((160, 3, 8, 6)).astype(np.float32)
DATASET = {"samples": {"calibrate": 32, "search": 32, "evaluate": 48}}


def net(
    tail: list[onnx.NodeProto], out: list[int | str], *, batch: int | str = "n", more: dict[str, Array] | None = None
) -> onnx.ModelProto:
    """Return Conv, Relu and a mean over rows, `[n, 12, 6]`, then `tail` from `m` to `y`."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("ReduceMean", ["r"], ["m"], axes=[2], keepdims=0),
        *tail,
    ]
    rng = np.random.default_rng(1)
    held = {"w": rng.standard_normal((12, 3, 3, 3)), "b": rng.standard_normal(12), "v": rng.standard_normal((12, 5))}
    constants = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in held.items()]
    constants += [numpy_helper.from_array(a, n) for n, a in (more or {}).items()]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [batch, 3, 8, 6]), ("y", out))]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


TIME_FIRST = [
    helper.make_node("Transpose", ["m"], ["t"], perm=[2, 0, 1]),
    helper.make_node("MatMul", ["t", "v"], ["y"]),
]
SAMPLES_FIRST = [
    helper.make_node("Transpose", ["m"], ["t"], perm=[2, 0, 1]),
    helper.make_node("MatMul", ["t", "v"], ["u"]),
    helper.make_node("Transpose", ["u"], ["y"], perm=[1, 0, 2]),
]


def run(proto: onnx.ModelProto, tmp_path: Path, hardware: str = "ort_cpu") -> quantpipe.Result:
    onnx.save(proto, tmp_path / "m.onnx")
    return quantpipe.quantize(tmp_path / "m.onnx", X, hardware, recover="none", dataset=DATASET)


@pytest.mark.sliced(8)
@pytest.mark.parametrize("hardware", ["ort_cpu", "esp32p4"])
@pytest.mark.parametrize("named", [True, False])
def test_time_first_is_judged_like_samples_first(named: bool, hardware: str, tmp_path: Path) -> None:
    first = run(net(TIME_FIRST, [6, "n" if named else "k", 5]), tmp_path, hardware)
    last = run(net(SAMPLES_FIRST, ["n", 6, 5]), tmp_path, hardware)
    assert first.report["agreement"]["differing"] == 0
    assert any("samples on another axis" in note for note in first.report["warnings"])
    assert not any("samples on another axis" in note for note in last.report["warnings"])
    here, there = (r.report["outputs"][0]["sqnr_db"] for r in (first, last))
    assert here == pytest.approx(there, abs=0.5)
    shape = first.model.graph.output[0].type.tensor_type.shape.dim
    assert (
        len(shape) == 3 and first.model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    )  # its file is as it was


def test_two_axes_that_follow_the_samples_are_refused(tmp_path: Path) -> None:
    tail = [
        helper.make_node("Flatten", ["m"], ["f"]),
        helper.make_node("Transpose", ["f"], ["g"], perm=[1, 0]),
        helper.make_node("MatMul", ["f", "g"], ["y"]),
    ]
    with pytest.raises(DataError, match=r"output y has the shape \[4, 4\] for 4 samples: its axes 0 and 1 both follow"):
        run(net(tail, ["n", "n"]), tmp_path)


def test_an_output_without_samples_is_refused_before_calibration(tmp_path: Path) -> None:
    tail = [helper.make_node("ReduceMean", ["m"], ["y"], axes=[0], keepdims=0)]
    with pytest.raises(DataError, match=r"output y has the shape \[12, 6\] for 4 samples, and no axis follows"):
        run(net(tail, [12, 6]), tmp_path)


def test_a_batch_that_the_samples_cannot_fill_is_made_free(tmp_path: Path) -> None:
    result = run(net(SAMPLES_FIRST, [7894, 6, 5], batch=7894), tmp_path)
    assert result.report["agreement"]["differing"] == 0
    assert any("declares a batch of 7894" in note for note in result.report["warnings"])
    assert result.report["outputs"][0]["sqnr_db"] > 20


def test_a_batch_that_the_model_computes_with_stays(tmp_path: Path) -> None:
    tail = [*SAMPLES_FIRST[:2], helper.make_node("Reshape", ["u", "shape"], ["y"])]
    proto = net(tail, [7894, 30], batch=7894, more={"shape": np.array([7894, 30])})
    with pytest.raises(DataError, match=r"takes batches of exactly 7894 samples and calibrate has \d+"):
        run(proto, tmp_path)


def test_bytes_of_pictures_stay_bytes(tmp_path: Path) -> None:
    """Inputs keep their type: uint8 pictures that the model itself makes real."""
    nodes = [
        helper.make_node("Cast", ["x"], ["c"], to=int(TensorProto.FLOAT)),
        helper.make_node("Mul", ["c", "k"], ["s"]),
        helper.make_node("Conv", ["s", "w"], ["y"], pads=[1] * 4),
    ]
    held = [numpy_helper.from_array(np.float32(1 / 255), "k")]
    held.append(numpy_helper.from_array(RNG.standard_normal((4, 3, 3, 3)).astype(np.float32), "w"))
    ports = [
        helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", 3, 8, 6]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, 8, 6]),
    ]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], held)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, tmp_path / "m.onnx")
    pictures = RNG.integers(0, 256, X.shape).astype(np.uint8)
    result = quantpipe.quantize(tmp_path / "m.onnx", pictures, recover="none", dataset=DATASET)
    assert result.model.graph.input[0].type.tensor_type.elem_type == TensorProto.UINT8
    assert result.report["agreement"]["differing"] == 0 and result.report["outputs"][0]["sqnr_db"] > 25
