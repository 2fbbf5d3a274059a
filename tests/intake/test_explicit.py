"""Attributes of convolutions are written out where the shape of the weight is known, and only there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quantpipe.api.model import model_file
from quantpipe.intake.load import load_graph


def convolution(steps: list[onnx.NodeProto], constants: dict[str, np.ndarray[object, np.dtype[np.float32]]]) -> bytes:
    """A convolution whose weight `w` is the result of some nodes."""
    graph = helper.make_graph(
        [*steps, helper.make_node("Conv", ["x", "w"], ["y"], name="conv")],
        "made",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8]),
         helper.make_tensor_value_info("style", TensorProto.FLOAT, [1, 1, 3, 1, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_a_computed_weight_does_not_take_the_shape_of_a_constant_before_it(tmp_path: Path) -> None:
    """Modulated convolutions: the constant `[1, 4, 3, 3, 3]` is multiplied, then reshaped to `[4, 3, 3, 3]`."""
    kernel = np.random.default_rng(0).standard_normal((1, 4, 3, 3, 3)).astype(np.float32)
    steps = [
        helper.make_node("Mul", ["k", "style"], ["m"], name="mul"),
        helper.make_node("Reshape", ["m", "shape"], ["w"], name="reshape"),
    ]
    model = convolution(steps, {"k": kernel, "shape": np.int64([4, 3, 3, 3])})
    ones = np.ones((1, 1, 3, 1, 1), np.float32)
    feeds = {"x": np.ones((1, 3, 8, 8), np.float32), "style": ones}
    graph = load_graph(model_file(model, tmp_path), lambda raw: feeds, isolate=False)
    (conv,) = [node for node in graph.nodes if node.op == "Conv"]
    assert conv.attr("kernel_shape") in (None, [3, 3]) and conv.attr("strides") in (None, [1, 1])


def test_sizes_of_one_sample_give_no_pads(tmp_path: Path) -> None:
    """Free sizes stay free when a sample has run: the second convolution keeps auto_pad, and another size is right."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], name="one", auto_pad="SAME_UPPER", strides=[2, 2]),
        helper.make_node("Conv", ["h", "v"], ["y"], name="two", auto_pad="SAME_UPPER", strides=[2, 2]),
    ]
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((3, 3, 3, 3)), "v": rng.standard_normal((3, 3, 3, 3))}
    graph = helper.make_graph(
        nodes,
        "made",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, "height", "width"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    feeds = {"x": np.ones((1, 3, 8, 8), np.float32)}
    loaded = load_graph(model_file(model, tmp_path), lambda raw: feeds, isolate=False)
    assert [node.attr("auto_pad") for node in loaded.nodes if node.op == "Conv"] == ["SAME_UPPER"] * 2
