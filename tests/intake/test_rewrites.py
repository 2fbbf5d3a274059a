"""Each rewrite: the pattern is gone, the outputs stay, and near patterns are left alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.graph.view import Graph
from quantpipe.types import HardwareSpec
from tests.ops.line import ArraySamples, Net, hardware, hardware_data, line, load, normal_samples


def ops(graph: Graph) -> Counter[str]:
    return Counter(n.op for n in graph.nodes)


def checked(net: Net) -> Graph:
    """Load, and compare all outputs with the net as written."""
    proto = net.proto()
    graph = load(proto)
    assert not graph.notes
    feeds = next(iter(normal_samples(graph).batches(graph.batch_size))).inputs
    providers = ["CPUExecutionProvider"]
    before = ort.InferenceSession(proto.SerializeToString(), providers=providers).run(None, feeds)
    cleaned = line(graph)
    after = cleaned.outputs()
    assert list(after) == [o.name for o in proto.graph.output]
    for expected, found in zip(before, after.values(), strict=True):
        np.testing.assert_allclose(found[: len(expected)], expected, rtol=1e-4, atol=1e-5)
    return graph


def number(net: Net, value: float) -> str:
    return net.constant(np.float32(value))


def gelu_at_once(net: Net, x: str) -> str:
    return net.node("Mul", net.node("Mul", x, number(net, 0.5)), one_and_erf(net, x))


def gelu_half_last(net: Net, x: str) -> str:
    return net.node("Mul", net.node("Mul", one_and_erf(net, x), x), number(net, 0.5))


def gelu_half_first(net: Net, x: str) -> str:
    return net.node("Mul", x, net.node("Mul", number(net, 0.5), one_and_erf(net, x)))


def gelu_over_two(net: Net, x: str) -> str:
    return net.node("Div", net.node("Mul", x, one_and_erf(net, x)), number(net, 2.0))


def one_and_erf(net: Net, x: str, by: float = float(np.sqrt(2.0))) -> str:
    return net.node("Add", net.node("Erf", net.node("Div", x, number(net, by))), number(net, 1.0))


def with_gelu() -> HardwareSpec:
    """onnxruntime's CPU with Gelu as a table, which the shipped file leaves in float since that is faster."""
    ops = hardware_data("ort_cpu")["ops"]
    return hardware("ort_cpu", ops={**ops, "Gelu": [{"in": ["uint8"], "out": ["uint8"]}]})


@pytest.mark.sliced(6)
@pytest.mark.parametrize("opset", [13, 17, 21])
@pytest.mark.parametrize("order", [gelu_at_once, gelu_half_last, gelu_half_first, gelu_over_two])
def test_a_written_out_gelu_is_one_op(order: Callable[[Net, str], str], opset: int) -> None:
    net = Net(opset=opset)
    x = net.conv(net.input(None, 3, 4, 4), 3, 4, 1, 1)
    net.output(net.conv(order(net, x), 4, 2, 1, 1))
    graph = checked(net)
    assert ops(graph) == {"Conv": 2, "Gelu": 1}
    made = line(graph, with_gelu())
    assert all(made.topology.node_conds.values())
    for form in ("qdq", "qoperator", "integer"):
        assert made.agree(made.plan(), form).differing == 0


@pytest.mark.parametrize("fault", ["another root", "the root twice", "half of another", "read elsewhere"])
def test_what_is_almost_a_gelu_is_left_alone(fault: str) -> None:
    net = Net()
    x = net.conv(net.input(None, 3, 4, 4), 3, 4, 1, 1)
    erf = one_and_erf(net, x, by=1.5 if fault == "another root" else float(np.sqrt(2.0)))
    factor = net.node("Sin", x) if fault == "half of another" else erf if fault == "the root twice" else x
    y = net.node("Mul", net.node("Mul", factor, number(net, 0.5)), erf)
    net.output(net.conv(y, 4, 2, 1, 1), *([erf] if fault == "read elsewhere" else []))
    found = ops(checked(net))
    assert found["Erf"] == 1 and found["Gelu"] == 0


def normed(net: Net, x: str, *, power: bool = True, offset: bool = True, axis: int = -1, by: str | None = None) -> str:
    """Layer normalization of the last axis, in nine nodes. `by`: what the deviation is divided by, if not its own."""
    centred = net.node("Sub", x, net.node("ReduceMean", x, axes=[-1]), output="centred")
    squared = net.node("Pow", centred, number(net, 2.0)) if power else net.node("Mul", centred, centred)
    spread = net.node("Sqrt", net.node("Add", net.node("ReduceMean", squared, axes=[axis]), number(net, 1e-3)))
    y = net.node("Mul", net.node("Div", by or centred, spread), net.floats(8))
    return net.node("Add", net.floats(8), y, name="norm") if offset else y


@pytest.mark.parametrize("offset", [True, False])
@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("opset", [12, 17])
def test_a_written_out_layer_normalization_is_one_op(opset: int, power: bool, offset: bool) -> None:
    net = Net(opset=opset)
    x = net.node("MatMul", net.input(None, 3, 6), net.floats(6, 8))
    net.output(net.node("MatMul", normed(net, x, power=power, offset=offset), net.floats(8, 4)))
    assert ops(checked(net)) == {"MatMul": 2, "LayerNormalization": 1}


@pytest.mark.parametrize("fault", ["another axis", "another deviation", "read elsewhere"])
def test_what_is_almost_a_layer_normalization_is_left_alone(fault: str) -> None:
    net = Net()
    x = net.node("MatMul", net.input(None, 8, 6), net.floats(6, 8))
    y = normed(net, x, axis=-2 if fault == "another axis" else -1, by=x if fault == "another deviation" else None)
    net.output(net.node("MatMul", y, net.floats(8, 4)), *(["centred"] if fault == "read elsewhere" else []))
    found = ops(checked(net))
    if fault == "read elsewhere":  # the deviation is still there for whoever reads it
        assert found["LayerNormalization"] == 1 and found["Sub"] == 1 and found["Sqrt"] == 0
    else:
        assert found["LayerNormalization"] == 0 and found["Sqrt"] == 1


def test_split_becomes_slices() -> None:
    net = Net()
    net.split(net.input(None, 7, 4, 4), ["a", "b", "c"], [2, 1, 4], 1)
    net.output(*(net.node("Erf", t) for t in "abc"))
    assert ops(checked(net)) == {"Slice": 3, "Erf": 3}


@pytest.mark.parametrize("op", ["Sum", "Max", "Min"])
def test_many_operands_become_pairs(op: str) -> None:
    net = Net()
    x = net.input(None, 3, 4, 4)
    parts = [net.node(f, x) for f in ("Erf", "Tanh", "Sin")]
    net.output(net.node(op, *parts, name="many"))
    found = ops(checked(net))
    assert found[{"Sum": "Add"}.get(op, op)] == 2 and found["Sum"] == 0


@pytest.mark.parametrize(("op", "low", "high"), [("Max", 0.25, np.inf), ("Min", -np.inf, 0.25)])
@pytest.mark.parametrize("first", [True, False])
def test_an_extreme_with_a_number_is_a_clip(op: str, low: float, high: float, first: bool) -> None:
    net = Net()
    x, bound = net.conv(net.input(None, 3, 4, 4), 3, 4, 1, 1), number(net, 0.25)
    net.output(net.conv(net.node(op, *((bound, x) if first else (x, bound)), name="mid"), 4, 2, 1, 1))
    graph = checked(net)
    assert ops(graph) == {"Conv": 2, "Clip": 1}
    assert line(graph).topology.kernels[0].bounds == (low, high)


def test_differences_and_quotients_by_constants() -> None:
    net = Net()
    x = net.input(None, 3, 4, 4)
    y = net.node("Div", net.node("Sub", x, net.floats(3, 1, 1), name="minus"), number(net, 58.5), name="over")
    net.output(net.node("Erf", y))
    assert ops(checked(net)) == {"Add": 1, "Mul": 1, "Erf": 1}


def test_quotients_that_have_no_inverse_stay() -> None:
    net = Net()
    x = net.node("Exp", net.input(None, 3, 4, 4))
    net.output(net.node("Erf", net.node("Div", x, net.constant(np.float32([[[0.0]], [[1.0]], [[2.0]]])))))
    assert ops(load(net))["Div"] == 1


def test_batch_normalization_of_an_input_is_a_depthwise_convolution() -> None:
    net = Net()
    x = net.input(None, 5, 6, 6)
    numbers = [net.floats(5), net.floats(5), net.floats(5), net.constant(np.float32([0.5, 1, 2, 3, 0.1]))]
    y = net.node("BatchNormalization", x, *numbers, epsilon=1e-3, name="norm")
    net.output(y, net.conv(net.node("Relu", y), 5, 3, 3, 3))
    graph = checked(net)
    assert ops(graph) == {"Conv": 2, "Relu": 1}
    assert graph.by_name["norm"].op == "Conv" and graph.by_name["norm"].attr("group") == 5
    assert not line(graph).topology.float_nodes


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [[2, 3], [1, 2], [-1, -2]])
def test_spatial_means_are_pools(axes: list[int], keep: int) -> None:
    net = Net()
    x = net.node("Erf", net.input(None, 3, 5, 4))
    net.output(net.node("ReduceMean", x, axes=axes, keepdims=keep, name="mean"))
    found = ops(checked(net))
    assert found["GlobalAveragePool"] == 1 and found["ReduceMean"] == 0


@pytest.mark.parametrize("axes", [[1], [3], [1, 2, 3]])
def test_other_means_stay(axes: list[int]) -> None:
    net = Net()
    net.output(net.node("ReduceMean", net.node("Erf", net.input(None, 3, 5, 4)), axes=axes, name="mean"))
    assert ops(checked(net))["ReduceMean"] == 1


def _product_first(net: Net, x: str, gate: str) -> str:
    return net.node("Div", net.node("Mul", x, gate), number(net, 6.0))


def _gate_first(net: Net, x: str, gate: str) -> str:
    return net.node("Mul", net.node("Mul", gate, number(net, 1 / 6)), x)


@pytest.mark.parametrize("order", [_product_first, _gate_first])
def test_a_written_out_hard_swish_is_one_op(order: Callable[[Net, str, str], str]) -> None:
    net = Net()
    x = net.conv(net.input(None, 3, 6, 6), 3, 4, 3, 3)
    gate = net.node("Clip", net.node("Add", x, number(net, 3.0)), number(net, 0.0), number(net, 6.0))
    net.output(net.conv(order(net, x, gate), 4, 2, 1, 1))
    graph = checked(net)
    assert ops(graph) == {"Conv": 2, "HardSwish": 1}
    assert not line(graph).topology.float_nodes


def test_a_gate_of_hard_sigmoid_is_hard_swish() -> None:
    net = Net()
    x = net.conv(net.input(None, 3, 6, 6), 3, 4, 3, 3)
    net.output(net.node("Mul", net.node("HardSigmoid", x, alpha=1 / 6, beta=0.5), x))
    assert ops(checked(net)) == {"Conv": 1, "HardSwish": 1}


@pytest.mark.parametrize(("offset", "top", "divisor"), [(3.0, 5.0, 6.0), (2.0, 6.0, 6.0), (3.0, 6.0, 5.0)])
def test_what_only_looks_like_hard_swish_stays(offset: float, top: float, divisor: float) -> None:
    net = Net()
    x = net.conv(net.input(None, 3, 6, 6), 3, 4, 3, 3)
    gate = net.node("Clip", net.node("Add", x, number(net, offset)), number(net, 0.0), number(net, top))
    net.output(net.node("Div", net.node("Mul", x, gate), number(net, divisor)))
    assert ops(checked(net))["HardSwish"] == 0


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_with_a_known_condition_is_inlined(taken: bool) -> None:
    def body(name: str, op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, None)
        weight = numpy_helper.from_array(np.full((2, 3, 1, 1), 0.5, np.float32), "w")
        nodes = [helper.make_node("Conv", ["x", "w"], ["t"]), helper.make_node(op, ["t"], [f"{name}_out"])]
        return helper.make_graph(nodes, name, [], [out], [weight])

    nodes = [helper.make_node("If", ["flag"], ["y"], name="if",
                              then_branch=body("a", "Relu"), else_branch=body("b", "Tanh"))]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(taken), "flag")],
    )
    loaded = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert ops(loaded) == {"Conv": 1, "Relu" if taken else "Tanh": 1}
    made = line(loaded)
    assert made.topology.kernels and made.agree(made.plan(8), "qdq").differing == 0


def test_axes_of_unknown_size_may_be_written_as_minus_one() -> None:
    net = Net()
    net.output(net.conv(net.input(None, 3, 6, 6), 3, 4, 3, 3))
    proto = net.proto()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert load(proto).inputs[0].shape == (None, 3, 6, 6)


@pytest.mark.sliced(3)
@pytest.mark.parametrize("opset", [9, 11, 13, 15, 18, 20, 21, 22, 23])
def test_opsets_are_raised_and_run(opset: int) -> None:
    """Ops whose attributes became inputs: Clip (11), Squeeze (13), Pad (11), Split (13), Dropout (12)."""
    net = Net(opset=opset)
    x = net.conv(net.input(None, 3, 8, 8), 3, 6, 3, 3)
    if opset < 11:
        x = net.node("Clip", x, min=0.0, max=6.0)
        x = net.node("Pad", x, pads=[0, 0, 1, 1, 0, 0, 0, 0])
    else:
        x = net.node("Clip", x, number(net, 0.0), number(net, 6.0))
        x = net.node("Pad", x, net.constant(np.int64([0, 0, 1, 1, 0, 0, 0, 0])))
    x = net.node("GlobalAveragePool", net.conv(x, 6, 5, 3, 3))
    axes = np.int64([2, 3])
    x = net.node("Squeeze", x, axes=[2, 3]) if opset < 13 else net.node("Squeeze", x, net.constant(axes))
    net.output(net.node("Softmax", net.dense(x, 5, 4), axis=1))
    made = line(load(net))
    assert not made.graph.notes
    assert [made.graph.by_name[n].op for n in made.topology.float_nodes] == ["Softmax"]
    for form in ("qdq", "integer"):
        assert made.agree(made.plan(8), form).differing == 0


def test_a_wrongly_declared_output_shape_does_not_stop_the_clean_up() -> None:
    """Some exporters declare shapes that the model does not have; a clean-up that trusts them changes the outputs."""
    net = Net()
    x = net.conv(net.input(None, 3, 6, 6), 3, 4, 3, 3)
    size = net.node("Shape", x)
    sizes = [net.node("Gather", size, net.constant(np.int64([i])), axis=0) for i in (0, 1)]
    wanted = net.node("Concat", *sizes, net.constant(np.int64([-1])), axis=0)
    net.output(net.node("Reshape", x, wanted, name="last"))
    proto = net.proto()
    proto.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "width"
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 1
    proto.graph.output[0].type.tensor_type.shape.dim.add().dim_param = "length"

    def samples(raw: Graph) -> ArraySamples:
        return ArraySamples({"x": np.random.default_rng(0).standard_normal((4, 3, 6, 6)).astype(np.float32)})

    graph = load(proto, samples)
    assert not graph.notes
    assert graph.shapes[graph.outputs[0].name] == (1, 4, 16)


def test_outputs_of_a_few_float_steps_do_not_stop_the_clean_up() -> None:
    """A sigmoid far out gives results of about 1e-6, which any other order of sums changes by percents."""
    net = Net()
    x = net.conv(net.input(None, 16, 6, 6), 16, 8, 3, 3)
    numbers = [net.floats(8), net.floats(8), net.floats(8), net.constant(np.float32([0.5, 1, 2, 3, 0.1, 1, 1, 2]))]
    x = net.node("BatchNormalization", x, *numbers)
    x = net.node("Sub", net.conv(net.node("Relu", x), 8, 1, 3, 3), number(net, 14.0))
    net.output(net.node("Sigmoid", x))
    assert not load(net).notes


def test_constants_that_are_nodes_are_lifted_whatever_else_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: object) -> None:
        raise RuntimeError("switched off")

    monkeypatch.setattr("quantpipe.intake.cleanup.slimmed", broken)
    net = Net()
    x = net.conv(net.input(None, 3, 6, 6), 3, 4, 3, 3)
    graph = load(_with_constant_node(net, x))
    assert "Constant" not in ops(graph) and graph.notes


def _with_constant_node(net: Net, x: str) -> onnx.ModelProto:
    net.output(net.node("Add", x, net.constant(np.float32(1.5), "offset"), name="plus"))
    proto = net.proto()
    offset = next(i for i in proto.graph.initializer if i.name == "offset")
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["offset"], value=offset))
    proto.graph.initializer.remove(offset)
    return proto
