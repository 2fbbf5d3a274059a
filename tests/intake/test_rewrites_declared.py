"""Functions of one value in several nodes become one op where the device has it: Swish, and 1 / √x as a power."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, numpy_helper

from quantpipe.graph.execute import Session
from tests.ops.line import Net, hardware, hardware_data, line, load


def ops(net: Net, *declared: str) -> Counter[str]:
    """The ops of the clean model; that it computes the same is checked on samples where it is loaded."""
    return Counter(n.op for n in load(net, declared=declared).nodes)


def silu(net: Net, x: str, alpha: float | None, swapped: bool) -> str:
    inside = x if alpha is None else net.node("Mul", net.constant(np.float32(alpha)), x)
    gate = net.node("Sigmoid", inside, name="gate")
    return net.node("Mul", *((gate, x) if swapped else (x, gate)), name="product")


@pytest.mark.parametrize("alpha", [None, 1.702])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_gate_of_its_own_input_is_a_swish_where_the_device_has_one(alpha: float | None, swapped: bool) -> None:
    net = Net(seed=1)
    net.output(net.conv(silu(net, net.conv(net.input(None, 3, 5, 5), 3, 4, 1, 1), alpha, swapped), 4, 2, 1, 1))
    assert ops(net, "Swish") == {"Conv": 2, "Swish": 1}
    assert ops(net)["Swish"] == 0 and ops(net)["Sigmoid"] == 1


def test_a_gate_that_is_read_elsewhere_or_gates_another_value_is_none() -> None:
    net = Net(seed=2)
    x = net.conv(net.input(None, 3, 5, 5), 3, 4, 1, 1)
    net.output(silu(net, x, None, False), net.node("Relu", "gate_out"))
    assert ops(net, "Swish")["Swish"] == 0
    other = Net(seed=3)
    x = other.conv(other.input(None, 3, 5, 5), 3, 4, 1, 1)
    other.output(other.node("Mul", other.node("Relu", x), other.node("Sigmoid", x)))
    assert ops(other, "Swish")["Swish"] == 0


@pytest.mark.parametrize("how", ["Reciprocal", "Div"])
def test_the_reciprocal_of_a_root_is_one_power_where_the_device_has_one(how: str) -> None:
    net = Net(seed=4)
    root = net.node(
        "Sqrt", net.node("Clip", net.input(None, 6), net.constant(np.float32(0.3)), net.constant(np.float32(9)))
    )
    net.output(net.node(how, *((net.constant(np.float32(1)),) if how == "Div" else ()), root, name="rsqrt"))
    assert ops(net, "Pow") == {"Clip": 1, "Pow": 1} and ops(net)["Sqrt"] == 1


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_the_op_itself_is_kept_or_written_out_without_casts(alpha: float) -> None:
    net = Net(seed=6, opset=24)
    net.output(net.node("Swish", net.node("Relu", net.input(None, 6)), alpha=alpha, name="own"))
    assert ops(net, "Swish") == {"Relu": 1, "Swish": 1}
    assert set(ops(net)) <= {"Relu", "Sigmoid", "Mul"}


def test_one_table_is_nearer_than_two() -> None:
    """The same net on a device with and without Swish: one rounding in place of two."""
    data = hardware_data("npu_w8a16")
    eight = {"activations": {"symmetric": True, "bits": 8, "narrow": True}}
    found = {}
    for name, own in (("apart", {}), ("one", {"Swish": [{"in": ["int16"], "out": ["int16"]}]})):
        net = Net(seed=5)
        x = net.conv(net.input(None, 3, 6, 6), 3, 4, 3, 3)
        net.output(net.conv(silu(net, x, None, False), 4, 2, 1, 1))
        made = line(net, hardware("npu_w8a16", ops={**data["ops"], **own},
                                  functions={**data["functions"], **dict.fromkeys(own, "table")}, **eight))  # fmt: skip
        assert not made.topology.float_nodes
        plan = made.plan(8)
        assert made.agree(plan, "integer").differing == 0
        (wanted,), (got,) = made.outputs().values(), made.outputs(made.realize(plan, "integer").model).values()
        found[name] = float(np.sqrt(np.mean((wanted - got) ** 2)))
    assert found["one"] < found["apart"]


def masked(sentinel: float) -> Net:
    """Scores, some of which a mask takes out of their Softmax, as exporters of encoders write it."""
    net = Net(seed=7)
    x = net.input(None, 6, 16)
    scores = net.node("MatMul", x, net.floats(16, 6, scale=0.5), name="scores")
    part = net.node("Slice", x, *(net.constant(np.int64([v])) for v in (0, 6, 2)))
    keep = net.node("Greater", part, net.constant(np.float32(-0.5)))
    mask = net.node("Where", keep, net.constant(np.float32(0)), net.constant(np.float32(sentinel)), name="mask")
    weights = net.node("Softmax", net.node("Add", scores, mask, name="sum"), axis=-1)
    net.output(net.node("MatMul", weights, net.floats(6, 5, scale=0.5), name="last"))
    return net


@pytest.mark.sliced(3)
@pytest.mark.parametrize("device", ["npu_w8a16", "qnn_htp"])
@pytest.mark.parametrize("sentinel", [-3.4e38, -np.inf, -1e4])
def test_a_mask_leaves_scores_their_steps_where_a_device_adds_integers_alone(sentinel: float, device: str) -> None:
    """In 16 bits, whether it has 8 bits beside them or not."""
    made = line(masked(sentinel), device)
    plan = made.plan(16)
    assert made.agree(plan, "integer").differing == 0
    (wanted,), (got,) = made.outputs().values(), made.outputs(made.realize(plan, "integer").model).values()
    assert np.sqrt(np.mean((wanted - got) ** 2)) < 0.01 * np.std(wanted)
    assert float(plan.quantizers["sum_out"].scale) < 0.01
    narrow = hardware("qnn_htp", activations={**hardware_data("qnn_htp")["activations"], "bits": 8})
    for other in ("ort_cpu", "fpga_shift", narrow):  # which may add in float, or in 8 bits: the mask stays what it is
        real = line(masked(sentinel), other).graph
        constants = [t for n in real.nodes if n.op == "Where" for t in n.inputs if real.is_constant(t)]
        assert min(float(real.constant(t).min()) for t in constants) <= -1e4


def multiplied(made_of: str) -> Net:
    """(1 - mask) times a sentinel on scores; the mask is a row of integers, of truth values, or of real numbers."""
    net = Net(seed=7)
    x = net.input(None, 6, 16)
    scores = net.node("MatMul", x, net.floats(16, 6, scale=0.5), name="scores")
    part = net.node("Slice", x, *(net.constant(np.int64([v])) for v in (0, 6, 2)))
    raised = net.node("Add", part, net.constant(np.float32(0.5)))
    steep = net.node("Mul", raised, net.constant(np.float32(1e9)))  # 0 or 1 in all samples, and real all the same
    mask = net.node("Clip", steep, net.constant(np.float32(0)), net.constant(np.float32(1)))
    if made_of == "integers":
        raised = net.node("Add", part, net.constant(np.float32(1.5)))
        kept = net.node("Clip", raised, net.constant(np.float32(0)), net.constant(np.float32(1.5)))
        mask = net.node("Cast", kept, to=TensorProto.INT64)
    elif made_of == "truths":
        mask = net.node("Greater", part, net.constant(np.float32(-0.5)))
    mask = mask if made_of == "reals" else net.node("Cast", mask, to=TensorProto.FLOAT)
    away = net.node("Sub", net.constant(np.float32(1.0)), mask)
    far = net.node("Mul", away, net.constant(np.finfo(np.float32).min), name="far")
    weights = net.node("Softmax", net.node("Add", scores, far, name="sum"), axis=-1)
    net.output(net.node("MatMul", weights, net.floats(6, 5, scale=0.5), name="last"))
    return net


@pytest.mark.parametrize(("made_of", "factor"), [("integers", -64.0), ("truths", -64.0), ("reals", None)])
def test_a_sentinel_times_whole_numbers_is_a_mask(made_of: str, factor: float | None) -> None:
    """Times real numbers it may be anything: 1e-37 of it is not to be taken for a mask."""
    made = line(multiplied(made_of), "npu_w8a16")
    (found,) = [float(made.graph.constant(t)) for t in made.graph.by_name["far"].inputs if made.graph.is_constant(t)]
    assert found == pytest.approx(np.finfo(np.float32).min if factor is None else factor)
    feeds = next(iter(made.samples.batches(16))).inputs
    (wanted,) = ort.InferenceSession(multiplied(made_of).proto().SerializeToString()).run(None, dict(feeds))
    (clean,) = Session(made.graph.model).run(feeds).values()
    np.testing.assert_allclose(clean, wanted, rtol=1e-5, atol=1e-6)
    if factor is not None:
        plan = made.plan(16)
        assert made.agree(plan, "integer").differing == 0
        assert float(plan.quantizers["sum_out"].scale) < 0.01


def above_diagonal(filled: float) -> Net:
    """Scores whose later keys a value hides that fills a triangle, as OPT is exported."""
    net = Net(seed=7, opset=17)
    x = net.input(None, 6, 16)
    scores = net.node("MatMul", x, net.floats(16, 6, scale=0.5), name="scores")
    value = numpy_helper.from_array(np.float32([filled]), "value")
    whole = net.node("ConstantOfShape", net.node("Shape", scores), name="whole", value=value)
    later = net.node("Trilu", whole, net.constant(np.int64(1)), name="later", upper=1)
    places = net.constant(np.arange(6, dtype=np.int64))
    hidden = net.node("Greater", places, net.node("Reshape", places, net.constant(np.int64([6, 1]))), name="hidden")
    mask = net.node("Mul", later, net.node("Cast", hidden, name="ones", to=1), name="mask")
    seen = net.node("Equal", mask, net.constant(np.float32(0)), name="seen")
    net.output(net.node("Softmax", net.node("Add", scores, mask, name="sum"), axis=-1))
    net.output(net.node("Cast", seen, name="seen_ones", to=1))
    return net


@pytest.mark.parametrize("filled", [float(np.finfo(np.float32).min), -1e30])
def test_a_mask_that_fills_a_triangle_leaves_scores_their_steps(filled: float) -> None:
    made = line(above_diagonal(filled), "npu_w8a16")
    plan = made.plan(16)
    assert made.agree(plan, "integer").differing == 0
    assert float(plan.quantizers["sum_out"].scale) < 0.01
    wanted, got = (list(made.outputs(m).values()) for m in (None, made.realize(plan, "integer").model))
    assert np.sqrt(np.mean((wanted[0] - got[0]) ** 2)) < 0.01 * np.std(wanted[0])
    feeds = next(iter(made.samples.batches(16))).inputs
    exact = ort.InferenceSession(above_diagonal(filled).proto().SerializeToString()).run(None, dict(feeds))
    for array, known in zip(wanted, exact, strict=True):
        np.testing.assert_allclose(array, known, rtol=1e-5, atol=1e-6)


def test_a_filled_triangle_of_scores_stays_as_it_is() -> None:
    """What a value of normal size fills is no mask."""
    made = line(above_diagonal(-3.0), "npu_w8a16")
    shares = next(iter(made.outputs().values()))
    assert float(shares.min()) > 1e-9
