"""Names, constants and float parts of the realized graphs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from quantpipe.errors import HardwareError
from quantpipe.graph.execute import Session
from quantpipe.graph.io import model_proto
from quantpipe.lowering import render
from quantpipe.realize import BACKENDS
from quantpipe.simulate.simulator import Simulator, bind
from tests.ops.line import Net, hardware, line
from tests.ops.test_every_op import graph_of, line_of

FORMS = ("qdq", "qoperator", "integer")


@pytest.mark.parametrize("form", FORMS)
def test_ports_keep_names_order_and_shapes(form: str) -> None:
    made = line_of("intermediate_output", "ort_cpu", "auto")
    model = made.realize(made.plan(), form).model
    assert [i.name for i in model.graph.inputs] == [i.name for i in made.graph.inputs]
    assert [o.name for o in model.graph.outputs] == [o.name for o in made.graph.outputs]
    onnx.checker.check_model(model_proto(model), full_check=False)


def test_simulated_ports_keep_their_names_too() -> None:
    made = line_of("intermediate_output", "ort_cpu", "auto")
    model = made.simulate(made.plan()).rendered.model
    assert [o.name for o in model.graph.outputs] == [o.name for o in made.graph.outputs]


def colliding() -> Net:
    """User tensors with the names that we would give, and nodes named like tensors."""
    net = Net(seed=3)
    x = net.input(None, 3, 6, 6)
    a = net.conv(x, 3, 4, 3, 3, name="x_q")  # its result is x_q_out
    a = net.node("Sigmoid", a, name="c1_q", output="x_scale")
    b = net.conv(a, 4, 4, 1, 1, name="x_scale_q")
    c = net.node("Tanh", b, output="x_q")
    d = net.node("Add", c, net.floats(4, 1, 1, name="x_zero_point"), name="x", output="x_real")
    net.output("x_q", "x_real", net.conv(d, 4, 2, 1, 1, name="x_real"))
    return net


@pytest.mark.parametrize("form", FORMS)
def test_user_names_that_collide_with_ours(form: str) -> None:
    made = line(colliding())
    plan = made.plan()
    model = made.realize(plan, form).model
    assert [o.name for o in model.graph.outputs] == [o.name for o in made.graph.outputs]
    names = [v.name for n in model.graph for v in n.outputs] + list(model.graph.initializers)
    assert len(names) == len(set(names))
    assert made.agree(plan, form).differing == 0
    wanted, found = made.outputs(), made.outputs(model)
    for name, expected in wanted.items():
        assert np.std(found[name] - expected) < 0.05 * np.std(expected)


@pytest.mark.parametrize("form", FORMS)
def test_constants_of_node_and_tensor_with_one_name_stay_apart(form: str) -> None:
    """The bias of node `a` and the tensor `a_bias` both give `a_bias_q` and `a_bias_scale`."""
    net = Net(seed=5)
    x = net.input(None, 3, 6, 6)
    a = net.node("Conv", x, net.floats(4, 3, 1, 1), net.floats(4), kernel_shape=[1, 1], name="a", output="a_bias")
    b = net.node("Add", a, net.floats(4, 1, 1, name="b_bias"), name="c")
    b = net.node("Conv", b, net.floats(4, 4, 1, 1), net.floats(4, name="other"), kernel_shape=[1, 1], name="b")
    net.output(b)
    made = line(net)
    assert made.agree(made.plan(), form).differing == 0
    found, wanted = made.outputs(made.realize(made.plan(), form).model), made.outputs()
    assert np.std(found["b_out"] - wanted["b_out"]) < 0.05 * np.std(wanted["b_out"])


def with_if(captured: str) -> onnx.ModelProto:
    """A Conv whose result the branches of an If read by name, and a Conv behind."""
    rng = np.random.default_rng(0)

    def branch(name: str, op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, None)
        node = helper.make_node(op, [captured], [f"{name}_out"], name=f"{name}_node")
        return helper.make_graph([node], name, [], [out])

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return onnx.numpy_helper.from_array((rng.standard_normal(shape) * 0.4).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], name="front", kernel_shape=[1, 1]),
        helper.make_node("Relu", ["y"], ["z"], name="relu"),
        helper.make_node("ReduceMax", ["x"], ["top"], name="top", keepdims=0),
        helper.make_node("Greater", ["top", "limit"], ["flag"], name="flag"),
        helper.make_node(
            "If", ["flag"], ["i"], name="if", then_branch=branch("a", "Tanh"), else_branch=branch("b", "Neg")
        ),
        helper.make_node("Conv", ["i", "v"], ["out"], name="back", kernel_shape=[1, 1]),
    ]
    graph = helper.make_graph(
        nodes,
        "if",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 5, 5])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["N", 2, 5, 5])],
        [weight("w", 4, 3, 1, 1), weight("v", 2, 4, 1, 1), onnx.numpy_helper.from_array(np.float32(-1e9), "limit")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("captured", ["y", "z"])
def test_an_if_that_captures_a_quantized_tensor(captured: str, form: str) -> None:
    """The branches must read the dequantized tensor, under its own name."""
    made = line(with_if(captured))
    assert "its bodies are graphs of their own" in made.topology.float_nodes["if"].text
    assert made.topology.kernel_of["front"].output in ("y", "z")
    plan = made.plan()
    found = made.agree(plan, form)
    assert found.differing == 0 and found.behind_float == 0
    model = made.realize(plan, form).model
    stored = made.topology.kernel_of["front"].output
    if stored == captured:
        producers = {v.name: n.op_type for n in model.graph for v in n.outputs}
        assert producers[captured] == "DequantizeLinear"
    wanted, outputs = made.outputs(), made.outputs(model)
    assert np.std(outputs["out"] - wanted["out"]) < 0.05 * np.std(wanted["out"])


@pytest.mark.parametrize("form", FORMS)
def test_tied_weights_stay_one_tensor(form: str) -> None:
    made = line_of("tied_weights", "ort_cpu", "auto")
    model = made.realize(made.plan(), form).model
    assert [n for n in model.graph.initializers if n.startswith("shared_q")] == ["shared_q"]


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_forms_without_accumulators_refuse_devices_that_hand_them_on(form: str) -> None:
    made = line_of("residual_block", "vta", "auto")
    with pytest.raises(HardwareError, match="realize=integer"):
        made.realize(made.plan(), form)


def test_an_op_without_a_lowering_is_refused_by_name() -> None:
    class Poor(BACKENDS["qdq"]):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.ops = {k: v for k, v in self.ops.items() if k != "MaxPool"}

    made = line_of("max_pool", "ort_cpu", "auto")
    with pytest.raises(HardwareError, match=r"no way to write MaxPool.*annotate.float_ops=\[MaxPool\]"):
        render(made.graph, made.topology, made.plan(), Poor())


def test_one_session_serves_plans_of_equal_weights() -> None:
    made = line_of("residual_block", "ort_cpu", "auto")
    simulator = Simulator(made.graph, made.topology)
    strategy = made.strategy(8)
    first, numbers = simulator.prepare(made.planner.plan(strategy))
    activations = {g.key for g in made.topology.groups}
    fewer = {t: (6 if t in activations else b) for t, b in strategy.bits.items()}
    from dataclasses import replace

    second, others = simulator.prepare(made.planner.plan(replace(strategy, bits=fewer)))
    assert list(numbers) == list(others)
    batch = next(iter(made.samples.batches(6))).inputs
    for scalars, plan in (
        (numbers, made.planner.plan(strategy)),
        (others, made.planner.plan(replace(strategy, bits=fewer))),
    ):
        simulation = made.simulate(plan)
        alone = Session(bind(simulation.rendered.model, simulation.weights)).run({**batch, **simulation.scalars})
        shared = first if scalars is numbers else second
        for name, value in shared.run({**batch, **scalars}).items():
            np.testing.assert_array_equal(value, alone[name])


def test_a_session_is_shared_when_only_scales_differ() -> None:
    net = Net(seed=2)
    x = net.conv(net.input(None, 3, 5, 5), 3, 4, 3, 3, bias=False)
    net.output(net.conv(net.node("Relu", x), 4, 2, 1, 1, bias=False))
    made = line(net)
    simulator = Simulator(made.graph, made.topology)
    strategy = made.strategy(8)
    from quantpipe.types import Range
    from tests.ops.line import set_threshold

    wider = set_threshold(strategy, made.topology.groups[0].key, Range(-7.0, 9.0))
    assert simulator.prepare(made.planner.plan(strategy))[0] is simulator.prepare(made.planner.plan(wider))[0]


def test_graphs_are_the_same_every_time() -> None:
    made = line(graph_of("residual_block"), hardware("vta"))
    texts = {model_proto(made.realize(made.plan(), "integer").model).SerializeToString() for _ in range(3)}
    assert len(texts) == 1


@pytest.mark.parametrize("move", ["Reshape", "Transpose", "Identity"])
def test_an_accumulator_that_float_nodes_move_keeps_its_values(move: str) -> None:
    """onnxruntime puts QuantizeLinear, without a zero point and so to uint8, behind a node that moves what a
    DequantizeLinear without one gives: the result would be cut to 0 .. 255 steps."""
    net = Net(seed=8)
    x = net.node("Add", net.node("MatMul", net.input(None, 6, 8), net.floats(8, 8)), net.floats(6, 8, scale=3.0))
    more = {"Reshape": [net.constant(np.array([0, 48]))], "Transpose": [], "Identity": []}[move]
    net.output(net.node("Sin", net.node(move, x, *more)))
    made = line(net, "hago_sample")
    plan = made.plan()
    (expected,), (found,) = (made.outputs(model).values() for model in (None, made.realize(plan, "integer").model))
    assert made.graph.by_name[made.topology.kernels[0].node].op == "Add"
    np.testing.assert_allclose(found, expected, atol=0.2)


@pytest.mark.parametrize("backend", ["qdq", "qoperator"])
def test_a_clip_of_accumulators_is_refused_by_forms_that_have_none(backend: str) -> None:
    net = Net()
    net.output(net.node("Clip", net.conv(net.input(None, 3, 5, 5), 3, 4, 1, 1), net.constant(np.float32(0)),
                        net.constant(np.float32(6))))  # fmt: skip
    made = line(net, "hago_sample")
    with pytest.raises(HardwareError, match="passes accumulators from op to op"):
        made.realize(made.plan(), backend)
