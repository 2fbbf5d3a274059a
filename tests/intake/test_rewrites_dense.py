"""Dense layers over rows as one Gemm: with fixed and free axes, shared rows, functions behind them, and what stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from quantpipe.graph.io import model_proto
from quantpipe.graph.view import Graph
from tests.intake.test_rewrites import checked, ops
from tests.ops.line import ArraySamples, Net, line, load


def dense(net: Net, x: str, into: int, out: int, name: str, swap: bool = False) -> str:
    """As exporters write it: MatMul by a constant matrix, and Add of a constant vector on either side."""
    product = net.node("MatMul", x, net.floats(into, out, scale=1 / np.sqrt(into)), name=name)
    operands = (net.floats(out, scale=0.3), product) if swap else (product, net.floats(out, scale=0.3))
    return net.node("Add", *operands, name=f"{name}_bias", output=f"{name}_sum")


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("shape", [(None, 3, 6), (None, 2, 3, 6)])
def test_a_dense_layer_over_rows_is_one_gemm(shape: tuple[int | None, ...], swap: bool) -> None:
    net = Net()
    net.output(dense(net, net.input(*shape), 6, 5, "dense", swap))
    graph = checked(net)
    assert ops(graph) == {"Reshape": 2, "Gemm": 1}
    assert graph.by_name["dense"].op == "Gemm" and [o.name for o in graph.outputs] == ["dense_sum"]
    made = line(graph)
    for form in ("qdq", "qoperator", "integer"):
        assert made.agree(made.plan(), form).differing == 0, form


def test_layers_that_read_the_same_rows_lay_them_flat_once() -> None:
    net = Net()
    x = net.node("Relu", net.input(None, 3, 6), name="front")
    net.output(*(dense(net, x, 6, 6, name) for name in ("query", "key", "value")))
    graph = checked(net)
    assert ops(graph) == {"Relu": 1, "Reshape": 4, "Gemm": 3}


def test_what_follows_value_by_value_works_on_flat_rows() -> None:
    net = Net()
    hidden = net.node("Relu", dense(net, net.input(None, 3, 6), 6, 8, "up"), name="relu")
    net.output(dense(net, net.node("Clip", hidden, net.constant(np.float32(0.1)), name="clip"), 8, 6, "down"))
    graph = checked(net)
    assert ops(graph) == {"Reshape": 2, "Gemm": 2, "Relu": 1, "Clip": 1}
    assert line(graph).topology.fused_into["relu"] == "up", "the kernel takes it in"


def test_a_view_behind_the_rows_is_taken_of_the_flat_ones() -> None:
    net = Net()
    heads = net.node("Reshape", dense(net, net.input(None, 4, 6), 6, 6, "query"), net.constant(np.int64([-1, 4, 2, 3])))
    copied = net.node("Reshape", dense(net, "x", 6, 6, "key"), net.constant(np.int64([0, 4, 2, 3])))
    net.output(net.node("Transpose", heads, perm=[0, 2, 1, 3]), net.node("Transpose", copied, perm=[0, 2, 1, 3]))
    graph = checked(net)
    assert ops(graph)["Reshape"] == 4, "a shape that copies the first axis needs the rows as they were"


def free_rows(named: bool) -> tuple[Graph, ArraySamples]:
    """Two free axes, whose names the tensor in front of the layer has or, behind a Gather, has not."""
    net = Net()
    net.input(None, None, 6)
    x = net.node("Relu", "x") if named else net.node("Gather", "x", net.constant(np.int64([0, 2, 1])), axis=1)
    first = net.node("Relu", dense(net, x, 6, 6, "first"))
    net.output(dense(net, net.node("Add", first, x), 6, 4, "second"))
    samples = ArraySamples({"x": np.random.default_rng(1).standard_normal((6, 5, 6)).astype(np.float32)})
    return load(net, lambda graph: samples), samples


@pytest.mark.parametrize("named", [True, False])
def test_free_axes_are_read_from_what_has_them(named: bool) -> None:
    graph, samples = free_rows(named)
    assert ops(graph)["Gemm"] == 2 and not graph.notes
    made = line(graph, samples=samples)
    assert made.agree(made.plan(), "qdq").differing == 0
    longer = np.random.default_rng(2).standard_normal((3, 9, 6)).astype(np.float32)
    assert next(iter(line(graph, samples=ArraySamples({"x": longer})).outputs().values())).shape[0] == 3


def test_a_shape_is_read_from_integers_where_these_are_there() -> None:
    net = Net()
    x = net.node("Relu", dense(net, net.input(None, 4, 6), 6, 6, "first"), name="relu")
    size = net.node("Shape", net.node("Transpose", x, perm=[0, 2, 1], name="turned"), name="size")
    net.output(net.node("Identity", size, name="out"), dense(net, "turned_out", 4, 4, "last"))
    proto = net.proto()
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("out_out", 7, [3]))
    made = line(load(proto))
    if "size" in made.graph.by_name:
        model = model_proto(made.realize(made.plan(), "qdq").model)
        read = next(n.input[0] for n in model.graph.node if n.op_type == "Shape")
        assert "DequantizeLinear" not in {n.op_type for n in model.graph.node if read in n.output}
    assert made.agree(made.plan(), "qdq").differing == 0


SPELLINGS = {"row": (1, 5), "rows": (1, 1, 5), "one number": (), "one in a row": (1, 1)}


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_bias_is_one_however_it_is_spelled(spelling: str, rank: int) -> None:
    net, shape = Net(), SPELLINGS[spelling]
    if len(shape) > rank:
        pytest.skip("the result would have more axes than the data")
    product = net.node("MatMul", net.input(None, 3, 6) if rank == 3 else net.input(None, 6), net.floats(6, 5), name="d")
    net.output(net.node("Add", net.constant(net.rng.standard_normal(shape).astype(np.float32)), product))
    graph = checked(net)
    assert ops(graph) == ({"Reshape": 2, "Gemm": 1} if rank == 3 else {"Gemm": 1})
    made = line(graph)
    for form in ("qdq", "qoperator", "integer"):
        assert made.agree(made.plan(), form).differing == 0, form


def test_a_bias_behind_the_view_as_heads_goes_in_front_of_it() -> None:
    """As flax writes DenseGeneral: the product, parted into heads, and a bias of [heads, size]."""
    net = Net()
    product = net.node("MatMul", net.input(None, 4, 6), net.floats(6, 6), name="query")
    heads = net.node("Reshape", product, net.constant(np.int64([-1, 4, 2, 3])))
    net.output(net.node("Transpose", net.node("Add", heads, net.floats(2, 3)), perm=[0, 2, 1, 3]))
    graph = checked(net)
    assert ops(graph) == {"Reshape": 2, "Gemm": 1, "Transpose": 1}
    made = line(graph)
    assert made.agree(made.plan(), "qdq").differing == 0


@pytest.mark.parametrize("bias", [(2, 3), (4, 2, 3), (3,), (2, 1)])
def test_only_a_bias_of_all_features_goes_in_front_of_the_heads(bias: tuple[int, ...]) -> None:
    net = Net()
    product = net.node("MatMul", net.input(None, 4, 6), net.floats(6, 6), name="query")
    net.output(net.node("Add", net.node("Reshape", product, net.constant(np.int64([-1, 4, 2, 3]))), net.floats(*bias)))
    assert ("Gemm" in ops(checked(net))) == (bias == (2, 3))


def test_a_matrix_with_leading_axes_of_one_is_a_matrix() -> None:
    net = Net()
    product = net.node("MatMul", net.input(None, 3, 6), net.floats(1, 6, 5), name="dense")
    net.output(net.node("Add", product, net.floats(5)))
    assert ops(checked(net)) == {"Reshape": 2, "Gemm": 1}


def test_onnxruntime_fuses_the_layer_and_its_bias_into_one_integer_kernel(tmp_path: Path) -> None:
    """QGemm holds the bias in its accumulator: nothing is rounded between the product and the addition."""
    net = Net()
    hidden = net.node("Relu", dense(net, net.input(None, 3, 6), 6, 8, "up"))
    net.output(dense(net, hidden, 8, 6, "down"))
    made = line(checked(net))
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(model_proto(made.realize(made.plan(), "qdq").model).SerializeToString(), options)
    kernels = [n.op_type for n in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert kernels.count("QGemm") == 2 and not {"Gemm", "MatMul", "Add", "FusedGemm"} & set(kernels), kernels


@pytest.mark.parametrize("case", ["no bias", "two vectors", "read twice", "an output"])
def test_what_is_no_dense_layer_stays(case: str) -> None:
    net = Net()
    x = net.input(None, 3, 6)
    product = net.node("MatMul", x, net.floats(6, 5), name="product")
    if case == "no bias":
        net.output(net.node("Relu", product))
    elif case == "two vectors":
        net.output(net.node("Add", product, net.floats(3, 5)))
    elif case == "read twice":
        net.output(net.node("Add", product, net.floats(5)), net.node("Relu", product))
    else:
        net.output(net.node("Add", product, net.floats(5)), product)
    assert "Gemm" not in ops(checked(net))
