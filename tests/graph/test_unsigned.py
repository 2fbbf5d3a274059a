"""int8 weights in files as uint8 ones: the same products, and nothing else is touched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.graph.execute import Kernels, Session
from quantpipe.graph.external_weights import place_of
from quantpipe.graph.unsigned import unsigned_weights
from quantpipe.intake.read_model import read_model

RNG = np.random.default_rng(8)
K, N, ZERO = 64, 24, 100
"""Inputs, outputs, the zero point of the data."""
DENSE = RNG.choice(np.array([-128, -127, -3, 0, 90, 127], np.int8), (K, N))
WINDOW = np.ascontiguousarray(DENSE.T).reshape(N, K, 1, 1)
X = RNG.choice(np.array([0, 1, 200, 255], np.uint8), (3, K))
"""Data and weights whose products two by two are often beyond int16."""
WEIGHT_ZEROS = np.arange(N).astype(np.int8) - 9

GIVEN = {"x_s": np.float32(0.5), "x_z": np.uint8(ZERO), "w_s": np.float32(0.25), "w_z": np.int8(0),
         "y_s": np.float32(400), "y_z": np.uint8(128), "zeros": WEIGHT_ZEROS,
         "scales": np.full(N, 0.25, np.float32)}  # fmt: skip


def model_of(folder: Path, nodes: list[onnx.NodeProto], weight: np.ndarray, shape: list[int], out: int) -> ir.Model:
    """Nodes from `x` to `y`, all that is constant in a file."""
    used = {name for node in nodes for name in node.input}
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in (GIVEN | {"w": weight}).items() if n in used]
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, shape)],
        [helper.make_tensor_value_info("y", out, None)],
        tensors,
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    path = folder / "model.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=domains, ir_version=8),
        path,
        save_as_external_data=True,
        location="model.data",
        size_threshold=0,
    )
    return read_model(path)


def dequantized(weight: list[str], op: str, **axis: int) -> list[onnx.NodeProto]:
    """A product of reals that the runtime makes one of integers."""
    return [
        helper.make_node("DequantizeLinear", ["x", "x_s", "x_z"], ["xr"]),
        helper.make_node("DequantizeLinear", weight, ["wr"], **axis),
        helper.make_node(op, ["xr", "wr"], ["yr"]),
        helper.make_node("QuantizeLinear", ["yr", "y_s", "y_z"], ["y"]),
    ]


def single(op: str, inputs: list[str], domain: str = "") -> list[onnx.NodeProto]:
    return [helper.make_node(op, inputs, ["y"], domain=domain)]


LINEAR = ["x", "x_s", "x_z", "w", "w_s", "w_z", "y_s", "y_z"]
PER_CHANNEL = ["w", "scales", "zeros"]
# op -> nodes, whether the weight is a window, whether the accumulator leaves, the weight's zero points
CASES = {
    "MatMulInteger": (single("MatMulInteger", ["x", "w", "x_z", "w_z"]), False, True, 0),
    "MatMulInteger without zero": (single("MatMulInteger", ["x", "w", "x_z"]), False, True, 0),
    "MatMulInteger per channel": (single("MatMulInteger", ["x", "w", "x_z", "zeros"]), False, True, WEIGHT_ZEROS),
    "ConvInteger": (single("ConvInteger", ["x", "w", "x_z"]), True, True, 0),
    "QLinearMatMul": (single("QLinearMatMul", LINEAR), False, False, 0),
    "QLinearConv": (single("QLinearConv", LINEAR), True, False, 0),
    "QGemm": (single("QGemm", [*LINEAR[:6], "", "y_s", "y_z"], "com.microsoft"), False, False, 0),
    "MatMul": (dequantized(["w", "w_s", "w_z"], "MatMul"), False, False, 0),
    "MatMul without zero": (dequantized(["w", "w_s"], "MatMul"), False, False, 0),
    "Gemm per channel": (dequantized(PER_CHANNEL, "Gemm", axis=1), False, False, WEIGHT_ZEROS),
    "Gemm without zeros": (dequantized(["w", "scales"], "Gemm", axis=1), False, False, 0),
    "Conv": (dequantized(["w", "scales"], "Conv", axis=0), True, False, 0),
}


@pytest.mark.parametrize("case", list(CASES))
def test_products_are_the_same(case: str, tmp_path: Path) -> None:
    nodes, window, accumulator, zeros = CASES[case]
    shape = [3, K, 1, 1] if window else [3, K]
    model = model_of(
        tmp_path, nodes, WINDOW if window else DENSE, shape, TensorProto.INT32 if accumulator else TensorProto.UINT8
    )
    made = unsigned_weights(model)
    assert made is not model
    weight = made.graph.initializers["w"].const_value
    assert weight.dtype == ir.DataType.UINT8 and place_of(weight)
    assert model.graph.initializers["w"].const_value.dtype == ir.DataType.INT8
    wanted = [
        [sum((int(a) - ZERO) * (int(b) - int(z)) for a, b in zip(row, column, strict=True))
         for column, z in zip(DENSE.T, np.broadcast_to(zeros, N), strict=True)]
        for row in X
    ]  # fmt: skip
    if not accumulator:  # 0.125 / 400 of the sum, ties to the nearest even
        wanted = [[min(max(round(v / 3200) + 128, 0), 255) for v in row] for row in wanted]
    # The kernels that the runtime takes of its own accord would saturate with int8 weights on CPUs without VNNI.
    (found,) = Session(made, kernels=Kernels.NATIVE).run({"x": X.reshape(shape)}).values()
    np.testing.assert_array_equal(found.reshape(3, N), wanted)
    (found,) = Session(model).run({"x": X.reshape(shape)}).values()
    np.testing.assert_array_equal(found.reshape(3, N), wanted)


def test_a_weight_of_several_layers_has_one_file_and_a_zero_point_for_each(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMulInteger", ["x", "w", "x_z", "w_z"], ["a"]),
        helper.make_node("MatMulInteger", ["x", "w", "x_z"], ["b"]),
        helper.make_node("MatMulInteger", ["x", "w", "x_z", "zeros"], ["c"]),
        helper.make_node("Add", ["a", "b"], ["ab"]),
        helper.make_node("Sub", ["ab", "c"], ["y"]),
    ]
    model = model_of(tmp_path, nodes, DENSE, [3, K], TensorProto.INT32)
    made = unsigned_weights(model)
    assert made.graph.initializers["w"].const_value.dtype == ir.DataType.UINT8
    (found,) = Session(made, kernels=Kernels.NATIVE).run({"x": X}).values()
    x = X.astype(object) - ZERO
    w = DENSE.astype(object)
    np.testing.assert_array_equal(found, (x @ w + x @ WEIGHT_ZEROS.astype(object)[None].repeat(K, 0)).astype(np.int64))


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param(
            [
                helper.make_node("MatMulInteger", ["x", "w", "x_z"], ["a"]),
                helper.make_node("Cast", ["w"], ["b"], to=TensorProto.INT32),
                helper.make_node("MatMul", ["a", "b"], ["y"]),
            ],
            id="also read as numbers",
        ),
        pytest.param(single("MatMulInteger", ["x", "w"]), id="data of unknown type"),
        pytest.param(
            [
                helper.make_node("DequantizeLinear", ["w", "w_s", "w_z"], ["wr"]),
                helper.make_node("Cast", ["x"], ["xi"], to=TensorProto.INT32),
                helper.make_node("Gather", ["wr", "xi"], ["y"]),
            ],
            id="a table",
        ),
        pytest.param(
            [
                helper.make_node("Cast", ["x"], ["xi"], to=TensorProto.INT8),
                helper.make_node("MatMulInteger", ["xi", "w", "w_z", "w_z"], ["y"]),
            ],
            id="int8 data",
        ),
    ],
)
def test_other_weights_stay(nodes: list[onnx.NodeProto], tmp_path: Path) -> None:
    model = model_of(tmp_path, nodes, DENSE, [3, K], TensorProto.INT32)
    assert unsigned_weights(model) is model


def test_weights_in_memory_stay(tmp_path: Path) -> None:
    model = model_of(tmp_path, single("MatMulInteger", ["x", "w", "x_z"]), DENSE, [3, K], TensorProto.INT32)
    model.graph.initializers["w"].const_value = ir.Tensor(DENSE, name="w")
    assert unsigned_weights(model) is model
