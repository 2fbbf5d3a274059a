"""The worked example of docs/extending.md, and small nets for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from onnx import TensorProto, helper, numpy_helper

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "example_npu"
if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))

HARDWARE = FOLDER / "example_npu" / "conf" / "hardware" / "example_npu.yaml"
DOMAIN = "example.npu"


def hardware(**changes: Any) -> dict[str, Any]:
    return {**yaml.safe_load(HARDWARE.read_text(encoding="utf-8")), **changes}


def net(*, gate: bool = True, squash: bool = True, functions: tuple[onnx.FunctionProto, ...] = ()) -> onnx.ModelProto:
    """A convolution with HardSwish behind it, a Gate, a Squash, and two more convolutions, one with HardSwish."""
    rng = np.random.default_rng(3)
    constants: list[onnx.TensorProto] = []

    def constant(name: str, *shape: int) -> str:
        values = (rng.standard_normal(shape) * 1.2 / np.sqrt(max(np.prod(shape[1:]), 1))).astype(np.float32)
        constants.append(numpy_helper.from_array(values, name))
        return name

    nodes = [
        helper.make_node("Conv", ["x", constant("w1", 8, 3, 3, 3), constant("b1", 8)], ["c1"], name="first",
                         kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("HardSwish", ["c1"], ["h1"], name="swish"),
        helper.make_node("Conv", ["h1", constant("w2", 8, 4, 1, 1), constant("b2", 8)], ["c2"], name="second",
                         kernel_shape=[1, 1], group=2),
    ]  # fmt: skip
    if gate:
        nodes.append(helper.make_node("Gate", ["h1", "c2"], ["g"], name="gate", domain=DOMAIN))
    if squash:
        nodes.append(helper.make_node("Squash", ["g" if gate else "c2"], ["s"], name="squash", domain=DOMAIN))
    last = nodes[-1].output[0]
    nodes += [
        helper.make_node("Conv", [last, constant("w3", 6, 8, 3, 3),
                                  constant("b3", 6)], ["c3"], name="third", kernel_shape=[3, 3]),
        helper.make_node("HardSwish", ["c3"], ["h3"], name="swish3"),
        helper.make_node("GlobalAveragePool", ["h3"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", constant("w4", 5, 6), constant("b4", 5)], ["y"], name="dense", transB=1),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 5])],
        constants,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=list(functions))
