"""What a refusal of onnxruntime proposes, done: the model is taken then. And what quantpipe mends by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.tools import update_model_dims

import quantpipe
from quantpipe.errors import ModelError

FLOAT, INTS = TensorProto.FLOAT, TensorProto.INT64


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, Any]],
    output: int = FLOAT,
    opset: int = 17,
    shape: Any = None,
    **held: Any,
) -> onnx.ModelProto:
    ports = [helper.make_tensor_value_info(name, kind, size) for name, (kind, size) in inputs.items()]
    result = helper.make_tensor_value_info("y", output, None)
    constants = [numpy_helper.from_array(np.asarray(v), n) for n, v in held.items()]
    graph = helper.make_graph(nodes, "graph", ports, [result], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def node(op: str, *inputs: str, output: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [output], name=f"{op} of {output}", **attributes)


def refusal(made: onnx.ModelProto, tmp_path: Path, **options: Any) -> str:
    with pytest.raises(ModelError) as caught:
        check(made, tmp_path, **options)
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2
    return str(caught.value)


def check(made: onnx.ModelProto, tmp_path: Path, **options: Any) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(made, path)
    quantpipe.check(path, "ort_cpu", **options)


NUMBERS: dict[str, tuple[onnx.ModelProto, dict[str, Any], str]] = {
    "sizes": (
        model([node("Resize", "x", "", "", "sizes")], {"x": (FLOAT, [1, 1, 4, 4]), "sizes": (INTS, [4])}),
        {"sizes": [1, 1, 8, 8]},
        "inputs for sizes [4] of the node",
    ),
    "several": (
        model(
            [node("Slice", "x", "starts", "ends", "axes", "steps")],
            {"x": (FLOAT, [8, 4]), **{n: (INTS, [2]) for n in ("starts", "ends", "axes", "steps")}},
        ),
        {"starts": [0, 1], "ends": [4, 3], "axes": [0, 1], "steps": [1, 1]},
        "'model.fixed={starts: [VALUE, VALUE]}'",
    ),
    "divisor": (
        model([node("Mod", "x", "by")], {"x": (INTS, [4]), "by": (INTS, [])}, INTS),
        {"by": 3},
        "'model.fixed={by: VALUE}'",
    ),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_inputs_that_a_node_reads_as_numbers_are_named(case: str, tmp_path: Path) -> None:
    made, fixed, named = NUMBERS[case]
    assert named in refusal(made, tmp_path)
    check(made, tmp_path, fixed=fixed)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT8E4M3FNUZ, TensorProto.INT4])
def test_a_file_without_types_of_which_there_are_no_arrays(kind: int, tmp_path: Path) -> None:
    made = model([node("Cast", "x", output="real", to=FLOAT), node("Abs", "real")], {"x": (kind, ["n", 4])}, opset=21)
    assert "a file that begins after the Cast" in refusal(made, tmp_path)
    made = model([node("Abs", "x", output="real"), node("Cast", "real", to=kind)], {"x": (FLOAT, ["n", 4])}, kind, 21)
    assert "a file that ends before the Cast" in refusal(made, tmp_path)
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", kind, ["n", 4]))
    onnx.save(made, tmp_path / "whole.onnx")
    onnx.utils.extract_model(str(tmp_path / "whole.onnx"), str(tmp_path / "cut.onnx"), ["x"], ["real"])
    quantpipe.check(tmp_path / "cut.onnx", "ort_cpu")


def test_an_axis_of_a_number_gets_a_name(tmp_path: Path) -> None:
    made = model([node("MatMul", "x", "w")], {"x": (FLOAT, [0, 8])}, w=np.ones((8, 4), np.float32))
    samples = np.random.default_rng(0).standard_normal((48, 8)).astype(np.float32)
    given: dict[str, Any] = {"dataset": {"samples": {"calibrate": 16, "search": 16, "evaluate": 16}}, "recover": "none"}
    with pytest.raises(ModelError, match=r"x has \d+ instead of 0 on axis 0\. .*onnx\.tools\.update_model_dims"):
        quantpipe.quantize(made, samples, "ort_cpu", **given)
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", FLOAT, [0, 4]))
    free = update_model_dims.update_inputs_outputs_dims(made, {"x": ["n", 8]}, {"y": ["n", 4]})
    assert quantpipe.quantize(free, samples, "ort_cpu", **given).report["agreement"]["differing"] == 0


def test_what_the_checker_of_onnx_names(tmp_path: Path) -> None:
    made = model([node("Transpose", "x", perm=[0, 1, 2])], {"x": (FLOAT, ["n", 4])})
    assert "onnx.checker.check_model(FILE, full_check=True)" in refusal(made, tmp_path)
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", FLOAT, ["n", 4]))
    with pytest.raises(onnx.shape_inference.InferenceError, match="Transpose"):
        onnx.checker.check_model(made, full_check=True)


def test_sequences_at_the_outputs_are_named(tmp_path: Path) -> None:
    made = model([node("SplitToSequence", "x", axis=0)], {"x": (FLOAT, [4, 4])})
    made.graph.output[0].CopyFrom(helper.make_tensor_sequence_value_info("y", FLOAT, None))
    said = refusal(made, tmp_path)
    assert "its output y is a sequence, a map or optional; legal are tensors, which SequenceAt" in said
    made.graph.node[0].output[0] = "parts"
    made.graph.node.append(node("SequenceAt", "parts", "first"))
    made.graph.initializer.append(numpy_helper.from_array(np.int64(0), "first"))
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", FLOAT, None))
    check(made, tmp_path)


def test_a_node_without_a_kernel_in_its_opset_runs_in_an_older_one(tmp_path: Path) -> None:
    """onnxruntime has RoiAlign of opset 16, and none of 22."""
    made = model(
        [
            node(
                "RoiAlign",
                "x",
                "rois",
                "of",
                output_height=2,
                output_width=2,
                coordinate_transformation_mode="half_pixel",
            )
        ],
        {"x": (FLOAT, [1, 1, 8, 8]), "rois": (FLOAT, [3, 4])},
        opset=22,
        of=np.zeros(3, np.int64),
    )
    check(made, tmp_path)


def test_integers_of_a_dynamic_scale_may_leave_the_file(tmp_path: Path) -> None:
    made = model(
        [helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"], name="q")],
        {"x": (FLOAT, [6])},
        TensorProto.UINT8,
        opset=11,
    )
    made.graph.output.extend(
        [
            helper.make_tensor_value_info("scale", FLOAT, []),
            helper.make_tensor_value_info("zero", TensorProto.UINT8, []),
        ]
    )
    check(made, tmp_path)


def test_axes_of_size_0_are_drawn_and_run(tmp_path: Path) -> None:
    """A declared 0 is a size; only samples without elements fit."""
    weight = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    nodes = [node("MatMul", "x", "w", output="a"), node("Concat", "a", "none", output="b", axis=1), node("Relu", "b")]
    made = model(nodes, {"x": (FLOAT, ["n", 8]), "none": (FLOAT, ["n", 0])}, w=weight)
    check(made, tmp_path)
    samples = {
        "x": np.random.default_rng(1).standard_normal((48, 8)).astype(np.float32),
        "none": np.zeros((48, 0), np.float32),
    }
    given: dict[str, Any] = {"dataset": {"samples": {"calibrate": 16, "search": 16, "evaluate": 16}}, "recover": "none"}
    assert quantpipe.quantize(made, samples, "ort_cpu", **given).report["agreement"]["differing"] == 0
