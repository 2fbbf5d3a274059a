"""Multiply-accumulates of ops without a rule, against what their own definitions say, and the shares made of them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.check import check
from quantpipe.check.decision_text import decisions
from quantpipe.graph.view import Graph, view
from quantpipe.hardware.cost import COSTS
from quantpipe.oprules.work import is_unknown_work, multiply_accumulates
from tests.ops.line import Line, Net, hardware, line

MS = "com.microsoft"


def one(op: str, shapes: list[tuple[int, ...]], *results: tuple[int, ...], domain: str = "", **attrs: object) -> Graph:
    """A graph of one node, with these shapes of its inputs (`()`: absent) and results."""
    inputs = [f"i{n}" if shape else "" for n, shape in enumerate(shapes)]
    outputs = [f"o{n}" for n in range(len(results))]
    node = helper.make_node(op, inputs, outputs, name="node", domain=domain, **attrs)
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip(inputs, shapes, strict=True) if n]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip(outputs, results, strict=True)]
    model = ir.from_proto(helper.make_model(helper.make_graph([node], "g", ports, ends)))
    graph = view(model, "", "g")
    found = {n: s for n, s in zip((*inputs, *outputs), (*shapes, *results), strict=True) if n}
    object.__setattr__(graph, "shapes", found)
    return graph


CASES: dict[str, tuple[Graph, int]] = {
    "LSTM": (one("LSTM", [(10, 1, 16), (1, 128, 16), (1, 128, 32)], (10, 1, 1, 32)), 10 * 4 * 32 * (16 + 32)),
    "GRU, both ways": (one("GRU", [(5, 1, 8), (2, 12, 8), (2, 12, 4)], (5, 2, 1, 4)), 5 * 2 * 3 * 4 * (8 + 4)),
    "RNN": (one("RNN", [(5, 1, 8), (1, 4, 8), (1, 4, 4)], (5, 1, 1, 4)), 5 * 4 * (8 + 4)),
    "Attention, heads apart": (
        one("Attention", [(1, 2, 7, 8), (1, 2, 9, 8), (1, 2, 9, 6)], (1, 2, 7, 6)),
        2 * 7 * 9 * 8 + 2 * 7 * 9 * 6,
    ),
    "Attention, side by side": (one("Attention", [(1, 7, 16), (1, 9, 16), (1, 9, 12)], (1, 7, 12)), 7 * 9 * (16 + 12)),
    "onnxruntime's Attention": (
        one("Attention", [(1, 7, 16), (16, 48), (48,)], (1, 7, 16), domain=MS),
        7 * 16 * 48 + 2 * 7 * 7 * 16,
    ),
    "MultiHeadAttention": (
        one("MultiHeadAttention", [(1, 7, 16), (1, 9, 16), (1, 9, 16)], (1, 7, 16), domain=MS),
        2 * 7 * 9 * 16,
    ),
    "GroupQueryAttention": (
        one("GroupQueryAttention", [(1, 7, 16), (1, 7, 8), (1, 7, 8)], (1, 7, 16), (1, 2, 20, 4), domain=MS),
        2 * 7 * 20 * 16,
    ),
    "Einsum, a product of matrices": (
        one("Einsum", [(3, 4), (4, 5)], (3, 5), equation="ij,jk->ik"),
        3 * 4 * 5,
    ),
    "Einsum, dots": (
        one("Einsum", [(2, 7, 3, 4), (7, 4, 5)], (2, 7, 3, 5), equation="...ij, ...jk -> ...ik"),
        2 * 7 * 3 * 4 * 5,
    ),
    "Einsum, a sum": (one("Einsum", [(3, 4)], (3,), equation="ij->i"), 0),
    "DeformConv": (one("DeformConv", [(1, 4, 8, 8), (6, 4, 3, 3), (1, 18, 6, 6)], (1, 6, 6, 6)), 6 * 36 * 4 * 9),
    "ConvInteger": (one("ConvInteger", [(1, 4, 8, 8), (6, 4, 3, 3)], (1, 6, 6, 6)), 6 * 36 * 4 * 9),
    "QLinearConv": (
        one("QLinearConv", [(1, 4, 8, 8), (1,), (1,), (6, 4, 3, 3), (1,), (1,), (1,), (1,)], (1, 6, 6, 6)),
        6 * 36 * 4 * 9,
    ),
    "MatMulInteger": (one("MatMulInteger", [(3, 4), (4, 5)], (3, 5)), 3 * 4 * 5),
    "FusedMatMul": (one("FusedMatMul", [(4, 3), (4, 5)], (3, 5), domain=MS, transA=1), 3 * 4 * 5),
    "MatMulNBits": (one("MatMulNBits", [(1, 3, 64), (5, 2, 16)], (1, 3, 5), domain=MS, K=64, N=5), 3 * 5 * 64),
    "Softmax": (one("Softmax", [(3, 4)], (3, 4)), 0),
    "Conv has its rule": (one("Conv", [(1, 4, 8, 8), (6, 4, 3, 3)], (1, 6, 6, 6)), 6 * 36 * 4 * 9),
}


@pytest.mark.parametrize("case", CASES)
def test_multiply_accumulates(case: str) -> None:
    graph, expected = CASES[case]
    assert multiply_accumulates(graph.nodes[0], graph) == expected
    assert not is_unknown_work(graph.nodes[0], graph)


def recurrent() -> Line:
    """An LSTM of 61,440 multiply-accumulates before a dense layer of 128."""
    net = Net()
    x = net.node("Reshape", net.input(None, 160), net.constant(np.asarray([10, 1, 16])))
    weights = [net.floats(1, 128, 16), net.floats(1, 128, 32), net.floats(1, 256)]
    net.node("LSTM", x, *weights, name="lstm", output="all", hidden_size=32)
    last = net.node("Gather", "all", net.constant(np.asarray(9)), axis=0)
    net.output(net.dense(net.node("Reshape", last, net.constant(np.asarray([1, 32]))), 32, 4, name="head"))
    net.fix_batch(1)
    return line(net)


def test_an_lstm_in_float_counts_in_the_share_and_in_the_costs() -> None:
    made = recurrent()
    fit = check(made.graph, made.topology, made.spec, made.schema)
    assert {r.node: r.macs for r in fit.refused}["lstm"] == 61_440
    assert fit.mac_share == pytest.approx(128 / (61_440 + 128))
    bits = {t: 8 for g in made.topology.groups for t in g.tensors} | {w.tensor: 8 for w in made.topology.weights}
    assert COSTS["bops"](made.topology, made.graph, made.spec, bits) == 61_440 * 32 * 32 + 128 * 8 * 8


def test_work_that_nobody_knows_is_said_so() -> None:
    body = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [
            helper.make_tensor_value_info("round", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []), helper.make_tensor_value_info("m", 1, [2, 2])],
    )
    loop = helper.make_node("Loop", ["count", "flag"], ["y"], name="loop", body=body)
    graph = helper.make_graph(
        [loop, helper.make_node("Gemm", ["x", "w"], ["z"], name="head")],
        "g",
        [helper.make_tensor_value_info("x", 1, [2, 2])],
        [helper.make_tensor_value_info("y", 1, None), helper.make_tensor_value_info("z", 1, [2, 2])],
        [
            numpy_helper.from_array(np.eye(2, dtype=np.float32), "w"),
            numpy_helper.from_array(np.asarray(3), "count"),
            numpy_helper.from_array(np.asarray(True), "flag"),
        ],
    )
    made = line(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    (note,) = check(made.graph, made.topology, made.spec, made.schema).notes
    assert (
        note
        == "multiply-accumulates of loop (Loop) are not known and not counted: the share in integers is an upper limit"
    )


def partly_quantized() -> onnx.ModelProto:
    """Q and DQ around one dense layer, a plain convolution before it."""
    rng = np.random.default_rng(0)
    values = {
        "w": rng.standard_normal((4, 3, 1, 1)).astype(np.float32),
        "s": np.asarray(0.1, np.float32),
        "z": np.asarray(3, np.uint8),
        "v": rng.standard_normal((4, 2)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("GlobalAveragePool", ["c"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flat"),
        helper.make_node("QuantizeLinear", ["f", "s", "z"], ["q"], name="quantize"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="dequantize"),
        helper.make_node("MatMul", ["d", "v"], ["y"], name="head"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, ["N", 3, 5, 5])],
        [helper.make_tensor_value_info("y", 1, ["N", 2])],
        [numpy_helper.from_array(a, n) for n, a in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_partly_quantized_model_is_named_node_by_node() -> None:
    """As they are named where nobody can read the scales: the graph is that of the file, not the restored one."""
    (note,) = decisions(view(ir.from_proto(partly_quantized()), "sha256:0", "m.onnx"), hardware("ort_cpu"))
    assert note.startswith("the model is already quantized in part: quantize (QuantizeLinear), dequantize (Dequant")
    assert "Give the float model" in note


def test_the_quantized_part_of_a_model_is_taken_over() -> None:
    made = line(partly_quantized())
    assert check(made.graph, made.topology, made.spec, made.schema).notes == ()
    assert [node.op for node in made.graph.nodes] == ["Conv", "GlobalAveragePool", "Flatten", "MatMul"]


def test_what_a_file_overrules_stands_in_the_answer() -> None:
    net = Net()
    x = net.input(None, 3, 6, 6)
    net.output(net.node("Add", net.conv(x, 3, 4, 1, 1), net.conv(x, 3, 4, 1, 1)))
    made = line(net, hardware("vta", add_inputs="both"))
    assert any("overrules [Conv, Add]" in n for n in check(made.graph, made.topology, made.spec, made.schema).notes)
