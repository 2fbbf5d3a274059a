"""Scales, zero points, multipliers, shifts, biases and bounds of small plans, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantpipe import intmath
from quantpipe.errors import HardwareError
from quantpipe.lowering.products import _fitting
from quantpipe.plan import Overrides
from quantpipe.plan.bounds import bias_room
from quantpipe.types import Accumulate, Average, DType, Form, Move, Range, Strategy, Sum
from tests.ops.line import Line, Net, hardware, line
from tests.ops.test_every_op import line_of

F = np.float32


def one_conv(clamp: tuple[float, float] | None = None, spec: str = "ort_cpu", bias: float = 0.1) -> Line:
    """y = clamp(0.5·a - 0.25·b + bias), one output channel."""
    net = Net()
    weight = net.constant(F([0.5, -0.25]).reshape(1, 2, 1, 1), "w")
    y = net.node("Conv", net.input(None, 2, 2, 2), weight, net.constant(F([bias]), "b"), kernel_shape=[1, 1], name="c")
    if clamp is not None:
        y = net.node("Clip", y, net.constant(F(clamp[0])), net.constant(F(clamp[1])), name="clip")
    net.output(net.node("Erf", y, output="end"))
    return line(net, spec)


def plan_of(made: Line, ranges: dict[str, Range], weight: float, bits: dict[str, int] | None = None):
    wide = {t: 8 for g in made.topology.groups for t in g.tensors} | {w.tensor: 8 for w in made.topology.weights}
    thresholds = {w.tensor: np.full(() if w.axis is None else (1,), weight) for w in made.topology.weights}
    return made.planner.plan(Strategy(wide | (bits or {}), ranges, thresholds))


def test_asymmetric_float_multiplier() -> None:
    made = one_conv()
    plan = plan_of(made, {"x": Range(-1, 3), "c_out": Range(-1, 2)}, 0.5)
    x, y, w = plan.quantizers["x"], plan.quantizers["c_out"], plan.weights["w"]
    assert (float(x.scale), x.zero_point, x.qmin, x.qmax) == (float(F(4 / 255)), 64, 0, 255)  # 63.75
    assert (x.low, x.high) == (-64, 191)
    assert (float(y.scale), y.zero_point) == (float(F(3 / 255)), 85)
    assert w.values.reshape(-1).tolist() == [127, -64] and w.scale.tolist() == [float(F(0.5 / 127))]  # -63.5: even
    kernel = plan.kernels["c"]
    assert isinstance(kernel, Accumulate) and kernel.output is not None and kernel.bias is not None
    acc_scale = F(F(4 / 255) * F(0.5 / 127))
    assert kernel.acc_scale.tolist() == [float(acc_scale)]
    assert kernel.bias.tolist() == [round(float(F(0.1)) / float(acc_scale))]
    assert kernel.output.multiplier.tolist() == [float(F(acc_scale / F(3 / 255)))]
    assert (kernel.output.zero_point, kernel.output.low, kernel.output.high) == (85, 0, 255)
    assert kernel.bound == (127 + 64) * 191 + kernel.bias[0]
    assert kernel.exact_in_float32


def test_symmetric_power_of_two_shift() -> None:
    made = one_conv(spec="vta")
    plan = plan_of(made, {"x": Range(-1, 1), "c_out": Range(-3, 3)}, 0.5)
    x, y, w = plan.quantizers["x"], plan.quantizers["c_out"], plan.weights["w"]
    assert (float(x.scale), x.zero_point, x.qmin, x.qmax) == (2.0**-7, 0, -127, 127)  # 1 / 2^7
    assert float(w.scale) == 2.0**-8 and w.scale.shape == ()  # 0.5 / 2^7
    assert w.values.reshape(-1).tolist() == [127, -64]  # 128 is clipped, 64
    assert float(y.scale) == 2.0**-5  # 3/128, up
    kernel = plan.kernels["c"]
    assert isinstance(kernel, Accumulate) and kernel.output is not None
    assert kernel.bias.tolist() == [round(float(F(0.1)) * 2**15)]
    assert (kernel.output.shift, float(kernel.output.multiplier)) == (10, 2.0**-10)  # -5 - (-7 - 8)
    assert kernel.bound == (127 + 64) * 127 + kernel.bias[0]


def test_fewer_bits_inside_the_same_storage() -> None:
    plan = plan_of(one_conv(), {"x": Range(-1, 3), "c_out": Range(-1, 2)}, 0.5, {"x": 4, "w": 3})
    x, w = plan.quantizers["x"], plan.weights["w"]
    assert (float(x.scale), x.zero_point, x.qmin, x.qmax) == (float(F(4 / 15)), 4, 0, 15)  # 3.75
    assert w.values.reshape(-1).tolist() == [3, -2] and w.scale.tolist() == [float(F(0.5 / 3))]  # -1.5: even
    assert plan.mean_weight_bits == 3.0 and plan.mean_activation_bits == 6.0


@pytest.mark.parametrize(
    ("clamp", "low", "high"),
    [
        ((0.0, 6.0), 85, 255),
        ((-0.4, 1.0), 51, 170),  # 85 - 34, 85 + 85
        ((-9.0, -8.0), 0, 0),  # outside the range altogether
        ((8.0, 9.0), 255, 255),
    ],
)
def test_swallowed_clamps_narrow_the_bounds(clamp: tuple[float, float], low: int, high: int) -> None:
    made = one_conv(clamp)
    assert made.topology.kernel_of["c"].fused == ("clip",)
    plan = plan_of(made, {"x": Range(-1, 3), "clip_out": Range(-1, 2)}, 0.5)
    output = plan.kernels["c"].output
    assert (output.low, output.high) == (low, high)


def test_standalone_clamp_bounds() -> None:
    made = line_of("clip_standalone", "ort_cpu", "auto")
    strategy = made.strategy(8)
    group = made.topology.group_of["mid_out"].key
    plan = made.planner.plan(replace(strategy, ranges={**strategy.ranges, group: Range(-1, 2)}))
    move = plan.kernels["mid"]
    assert isinstance(move, Move)
    assert (move.low, move.high) == (43, 170)  # -0.5 and 1 at float32(3/255): -42.4999… and 85


@pytest.mark.parametrize("bias", [1e3, 1e6, 1e12])
def test_a_bias_that_does_not_fit_raises_the_weight_scale(bias: float) -> None:
    made = one_conv(bias=bias)
    plan = plan_of(made, {"x": Range(-1, 3), "c_out": Range(0, 2 * bias)}, 0.5)
    kernel, weight = plan.kernels["c"], plan.weights["w"]
    (raised,) = plan.raised
    assert (raised["node"], raised["tensor"], raised["channels"]) == ("c", "w", 1)
    assert weight.scale[0] > F(0.5 / 127) and raised["factor"] == pytest.approx(float(weight.scale[0]) * 254, rel=1e-5)
    assert kernel.acc_scale[0] == F(plan.quantizers["x"].scale * weight.scale[0])
    assert kernel.bias[0] * float(kernel.acc_scale[0]) == pytest.approx(bias, rel=1e-5)
    assert abs(kernel.bias[0]) <= made.spec.bias.qmax and kernel.exact_in_float32


def test_a_bias_that_fits_raises_nothing() -> None:
    assert not plan_of(one_conv(), {"x": Range(-1, 3), "c_out": Range(-1, 2)}, 0.5).raised


def test_a_raised_scale_of_a_power_of_two_schema_is_the_next_that_holds_the_bias() -> None:
    made = one_conv(spec="vta", bias=3e7)
    plan = plan_of(made, {"x": Range(-(2.0**-9), 2.0**-9), "c_out": Range(0, 4e7)}, 2.0**-9)
    assert np.log2(float(plan.weights["w"].scale)) % 1 == 0
    bias = abs(plan.kernels["c"].bias[0])
    assert plan.raised and bias < 2**31 and 2.1 * bias > 2**31  # at half of the scale it would not fit


def test_a_narrow_bias_type_raises_sooner() -> None:
    made = one_conv(bias=3.0)
    made = line(made.graph, hardware("ort_cpu", bias="int16"))
    plan = plan_of(made, {"x": Range(-1, 3), "c_out": Range(-2, 4)}, 0.5)
    assert plan.raised and abs(plan.kernels["c"].bias[0]) <= 32767
    assert plan.kernels["c"].bias[0] * float(plan.kernels["c"].acc_scale[0]) == pytest.approx(3.0, rel=1e-3)


@pytest.mark.parametrize("bias", [0.1, -3.0, 0.7, 100.0])
def test_a_bias_of_few_bits_has_a_power_of_two_of_its_own(bias: float) -> None:
    """vitis_dpu: 8 bits at the least power of two at which it fits, but never finer than the accumulator."""
    made = one_conv(spec="vitis_dpu", bias=bias)
    plan = plan_of(made, {"x": Range(-1, 1), "c_out": Range(-128, 128)}, 0.5)
    kernel = plan.kernels["c"]
    acc, stored = float(kernel.acc_scale), int(kernel.bias.reshape(-1)[0])
    step = acc
    while round(abs(bias) / step) > 127:
        step *= 2
    assert stored * acc == round(bias / step) * step
    assert stored % round(step / acc) == 0


def test_tied_weights_share_one_raised_scale() -> None:
    """The second user's bias raises the scale; the first one's plan must follow."""
    net = Net(seed=1)
    shared = net.floats(3, 3, 1, 1, name="shared")
    a = net.node("Conv", net.input(None, 3, 4, 4), shared, kernel_shape=[1, 1], name="first")
    big = net.constant(F([3e5, 1.0, -2.0]))
    net.output(net.node("Conv", net.node("Relu", a), shared, big, kernel_shape=[1, 1], name="second"))
    made = line(net)
    plan = made.plan()
    assert list(plan.weights) == ["shared"] and sum("bias" in row["reason"] for row in plan.raised) == 1
    for node in ("first", "second"):
        kernel = plan.kernels[node]
        x = plan.quantizers[made.topology.kernel_of[node].operands[0].tensor]
        np.testing.assert_array_equal(kernel.acc_scale, x.scale * plan.weights["shared"].scale)
    for backend in ("qdq", "integer"):
        assert made.agree(plan, backend).differing == 0


@pytest.mark.parametrize("isa", ["any", "vnni"])
@pytest.mark.parametrize("biases", [(3e4, 6e4), (6e4, 3e4), (0.0, 3e3)])
def test_tied_weights_have_room_for_both_biases(biases: tuple[float, float], isa: str) -> None:
    """Each kernel may raise the scale, and pairs of products may: the last one keeps what the others needed."""
    net = Net(seed=1)
    shared = net.floats(3, 3, 3, 3, name="shared")
    x = net.input(None, 3, 6, 6)
    for node, bias in zip(("first", "second"), biases, strict=True):
        net.output(net.node("Conv", x, shared, net.constant(F([bias, 1.0, -2.0])), kernel_shape=[3, 3], name=node))
    made = line(net, hardware("ort_cpu", isa=isa))
    plan = made.plan()
    for node, bias in zip(("first", "second"), biases, strict=True):
        kernel = plan.kernels[node]
        assert abs(float(kernel.bias[0]) - bias / float(kernel.acc_scale[0])) <= 1 and abs(kernel.bias[0]) <= 1 << 22
    assert made.agree(plan, "qdq").differing == 0


def test_tied_weights_that_recovery_chose_keep_their_integers() -> None:
    """As uint8 about 128 for one kernel, they are the same numbers for the next one."""
    net = Net(seed=2)
    shared = net.floats(4, 4, name="shared")
    net.output(net.node("MatMul", net.node("Relu", net.node("MatMul", net.input(None, 4), shared)), shared))
    made = line(net, hardware("ort_cpu"))
    strategy = made.strategy()
    own = made.planner.weight("shared", 8, strategy.weights["shared"])
    chosen = replace(own, values=np.where(np.arange(16).reshape(4, 4) % 2, 126, -127).astype(np.int8))
    plan = made.planner.plan(strategy, Overrides({"shared": chosen}, {}))
    assert plan.weights["shared"].dtype is DType.UINT8
    np.testing.assert_array_equal(plan.weights["shared"].centred(), chosen.values)
    assert made.agree(plan, "qdq").differing == 0


@pytest.mark.parametrize("spec", ["ort_cpu", "vta"])
def test_sums_beyond_float32_are_made_of_digits(spec: str) -> None:
    made = line_of("wide_sums", spec, "auto")
    plan = made.plan()
    kernel = plan.kernels["wide"]
    assert kernel.bound >= 1 << 24 and not kernel.exact_in_float32
    ops = [n.op_type for n in made.simulate(plan).rendered.model.graph]
    assert ops.count("Gemm") + ops.count("MatMul") > 1 and "MatMulInteger" not in ops
    backends = ["integer"] if spec == "vta" else ["qdq", "qoperator", "integer"]
    assert all(made.agree(plan, b).differing == 0 for b in backends)


def test_wide_convolutions_are_made_of_digits() -> None:
    net = Net(seed=4)
    weight = net.signs(3, 300, 3, 3, scale=0.01)
    net.output(net.node("Conv", net.input(None, 300, 4, 4), weight, pads=[1, 1, 1, 1], name="conv1"))
    made = line(net)
    plan = made.ties()
    assert not plan.kernels["conv1"].exact_in_float32
    ops = [n.op_type for n in made.simulate(plan).rendered.model.graph]
    assert ops.count("Conv") > 1 and "ConvInteger" not in ops
    assert all(made.agree(plan, b).differing == 0 for b in ("qdq", "qoperator", "integer"))


def test_bound_holds_for_the_worst_input() -> None:
    """The bound is reached by an input at its farthest end, with the signs of the weights."""
    plan = plan_of(one_conv(bias=0.0), {"x": Range(-3, 1), "c_out": Range(-1, 2)}, 0.5)
    x, kernel = plan.quantizers["x"], plan.kernels["c"]
    q = plan.weights["w"].values.reshape(-1).astype(int)
    sums = [a * int(q[0]) + b * int(q[1]) for a in (x.low, x.high) for b in (x.low, x.high)]
    assert kernel.bound >= max(map(abs, sums))
    assert kernel.bound == int(np.abs(q).sum()) * max(abs(x.low), abs(x.high))


def test_max_shift_is_refused_by_node() -> None:
    made = line(one_conv(spec="vta").graph, hardware("vta", requantize={"kind": "shift", "max_shift": 3}))
    with pytest.raises(HardwareError, match=r"plan: c: needs a right shift by 10, the device shifts by at most 3"):
        plan_of(made, {"x": Range(-1, 1), "c_out": Range(-3, 3)}, 0.5)


# --- additions ------------------------------------------------------------------------------------------------------


def two_arms() -> Net:
    net = Net(seed=3)
    x = net.input(None, 3, 4, 4)
    a, b = net.conv(x, 3, 4, 1, 1, name="a"), net.conv(x, 3, 4, 1, 1, name="b")
    net.output(net.conv(net.node("Add", a, b, name="add"), 4, 2, 1, 1, name="back"))
    return net


@pytest.mark.parametrize(("unify", "common", "shifts"), [("min_scale", -7, (2, 0)), ("max_scale", -5, (0, -2))])
def test_operands_come_to_one_scale(unify: str, common: int, shifts: tuple[int, int]) -> None:
    made = line(two_arms(), hardware("vta", unify=unify, fuse=[]))
    strategy = made.strategy()
    ranges = {**strategy.ranges, "a_out": Range(-4, 4), "b_out": Range(-1, 1), "add_out": Range(-8, 8)}
    plan = made.planner.plan(replace(strategy, ranges=ranges))
    kernel = plan.kernels["add"]
    assert isinstance(kernel, Sum) and kernel.scale is not None and kernel.output is not None
    assert float(kernel.scale) == 2.0**common  # 4/128 and 1/128
    assert tuple(t.shift for t in kernel.terms) == shifts
    assert kernel.output.shift == -4 - common  # 8/128
    moved = "a_out" if unify == "min_scale" else "b_out"
    assert [(r["node"], r["tensor"]) for r in plan.rescales] == [("add", moved)]
    assert kernel.bound >= 127 * (4 + 1) if unify == "min_scale" else 127 * 1.25
    assert made.agree(plan, "integer").differing == 0


def test_head_room_is_kept() -> None:
    """Scales so far apart that the larger one cannot be shifted to the smaller inside int32."""
    made = line(two_arms(), hardware("vta", fuse=[]))
    strategy = made.strategy()
    ranges = {**strategy.ranges, "a_out": Range(-(2.0**20), 2.0**20), "b_out": Range(-(2.0**-10), 2.0**-10)}
    plan = made.planner.plan(replace(strategy, ranges=ranges))
    kernel = plan.kernels["add"]
    assert kernel.bound <= 1 << 30
    assert kernel.terms[0].shift > 0 > kernel.terms[1].shift
    assert made.agree(plan, "integer").differing == 0


def test_a_fused_accumulator_is_added_as_it_is() -> None:
    made = line(two_arms(), "vta")
    plan = made.plan()
    kernel = plan.kernels["add"]
    assert [t.form for t in kernel.terms] == [Form.QUANTIZED, Form.RAW]
    assert plan.kernels["b"].output is None
    assert float(plan.raw_scales["b_out"]) == float(plan.quantizers["x"].scale * plan.weights["c3"].scale)
    assert "b_out" not in plan.quantizers


@pytest.mark.parametrize("spec", ["ort_cpu", "vta"])
def test_average_multiplier(spec: str) -> None:
    made = line_of("average_pool", spec, "auto")
    strategy = made.strategy()
    ranges = {**strategy.ranges, "front_out": Range(-2, 2), "mid_out": Range(-1, 1)}
    plan = made.planner.plan(replace(strategy, ranges=ranges))
    kernel = plan.kernels["mid"]
    assert isinstance(kernel, Average) and kernel.count == 4
    if spec == "vta":
        assert kernel.output.shift == 2 - 1 and kernel.bound == 4 * 127
    else:
        assert float(kernel.output.multiplier) == pytest.approx(2 / 4) and kernel.bound == 4 * 128


@given(
    low=st.floats(-1e3, 0, width=32), high=st.floats(0, 1e3, width=32), bits=st.integers(2, 8),
    threshold=st.floats(1e-4, 1e3),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_quantizers_cover_their_range(low: float, high: float, bits: int, threshold: float) -> None:
    """Every number within the range is within half a step of an integer; zero is one exactly."""
    made = HYPOTHESIS_LINE
    plan = plan_of(made, {"x": Range(low, high), "c_out": Range(-1, 2)}, threshold, {"x": bits, "w": bits})
    x = plan.quantizers["x"]
    scale = float(x.scale)
    assert scale > 0 and x.qmin <= x.zero_point <= x.qmax and x.qmax - x.qmin == 2**bits - 1
    assert x.low * scale <= low + 0.501 * scale and x.high * scale >= high - 0.501 * scale
    w = plan.weights["w"]
    if not plan.raised:
        assert np.max(np.abs(w.values)) <= 2 ** (bits - 1) - 1
        real = np.clip(F([0.5, -0.25]), -threshold, threshold)
        assert np.all(np.abs(w.values.reshape(-1) * float(w.scale[0]) - real) <= 0.501 * float(w.scale[0]))


HYPOTHESIS_LINE = one_conv()


# --- kernels that narrow in ways of their own -----------------------------------------------------------------------


def test_a_kernel_narrows_as_its_signature_says() -> None:
    """The first signature of the stored types decides; a signature without a way of its own has the device's."""
    net = Net(seed=3)
    x = net.conv(net.input(None, 3, 4, 4), 3, 4, 1, 1, name="conv")
    net.output(net.conv(x, 4, 2, 1, 1, name="wide"))
    once = {"kind": "fixed_point", "rounding": "single"}
    narrow = {"in": ["int8", "int8"], "out": ["int8", "int16"], "requantize": once}
    wide = {"in": ["int16", "int8"], "out": ["int8", "int16"]}
    spec = hardware("tflite_int8", ops={"Conv": [narrow, wide]}, activations={"symmetric": False, "bits": 16})
    made = line(net, spec)
    strategy = made.strategy()
    plan = made.planner.plan(replace(strategy, bits=strategy.bits | {"input": 8, "conv_out": 12}))
    found = {n: k.output.rounding for n, k in plan.kernels.items() if isinstance(k, Accumulate) and k.output}
    assert found == {"conv": "single", "wide": "double"}


def test_max_shift_of_a_kernel_is_its_own() -> None:
    ops = {"Conv": [{"in": ["int8", "int8"], "out": ["int8"], "requantize": {"kind": "shift", "max_shift": 3}}]}
    made = line(one_conv(spec="vta").graph, hardware("vta", ops=ops, fuse=[]))
    with pytest.raises(HardwareError, match=r"plan: c: needs a right shift by 10, the device shifts by at most 3"):
        plan_of(made, {"x": Range(-1, 1), "c_out": Range(-3, 3)}, 0.5)


def test_a_bias_has_the_room_that_the_products_leave() -> None:
    """By the definition: what the sums leave of int32, and all of the type where the products alone overflow."""
    greatest = 2**31 - 1
    reached = np.asarray([0, 10, greatest - 1, greatest + 5], np.int64)
    spec = hardware("ort_cpu")
    assert bias_room(spec, spec.accumulator, reached).tolist() == [greatest, greatest - 10, 1, greatest]


@pytest.mark.parametrize("seed", range(4))
def test_weights_in_digits_of_base_16_are_the_weights(seed: int) -> None:
    """Digits lie in -8..8, so that the sums of their products are a sixteenth of those of the weights."""
    values = np.random.default_rng(seed).integers(-128, 128, (2, 300_000)).astype(np.int8)
    parts = _fitting(1, values, 0)
    assert [factor for factor, _ in parts] == [16, 1]
    assert all(np.abs(part.astype(int)).max() <= 8 for _, part in parts)
    assert np.array_equal(sum(factor * part.astype(int) for factor, part in parts), values)


def test_a_scale_is_computed_once_for_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk of recovery plans one kernel after the other, with the scales of all tensors each time."""
    made, ranges = one_conv(), {"x": Range(-1, 3), "c_out": Range(-1, 2)}
    computed: list[Range] = []
    original = intmath.scale_zero_point

    def counted(found: Range, *given: Any) -> Any:
        computed.append(found)
        return original(found, *given)

    monkeypatch.setattr(intmath, "scale_zero_point", counted)
    first, again = plan_of(made, ranges, 0.5), plan_of(made, ranges, 0.25)
    assert computed == [Range(-1, 3), Range(-1, 2)]
    assert first.quantizers.keys() == again.quantizers.keys()
    other = plan_of(made, {**ranges, "c_out": Range(-1, 4)}, 0.5)
    assert computed[2:] == [Range(-1, 4)]
    assert other.quantizers["c_out"].scale == F(5 / 255) and first.quantizers["c_out"].scale == F(3 / 255)
