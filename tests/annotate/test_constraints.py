"""Statements about single tensors: what each kind does, what is refused, where scales that are both given meet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantpipe.annotate.choices import choice_space
from quantpipe.annotate.constraints import constraints_given
from quantpipe.errors import ConfigError, HardwareError
from quantpipe.types import HardwareSpec, Range
from tests.ops.line import Line, Net, hardware, hardware_data, line, load
from tests.ops.test_every_op import graph_of

FORMS = ("qdq", "qoperator", "integer")


def uniform(scale: float, zero_point: int, dtype: str = "uint8") -> dict[str, Any]:
    return {"kind": "uniform", "scale": scale, "zero_point": zero_point, "dtype": dtype}


def calibrated(low: float, high: float) -> dict[str, Any]:
    return {"kind": "calibrated", "min": low, "max": high}


def made(case: str, constraints: dict[str, Any], spec: str = "ort_cpu", schema: str = "auto") -> Line:
    return line(graph_of(case), spec, schema, constraints=constraints)


def forked() -> Net:
    """Two convolutions, concatenated: a, b -> joined."""
    net = Net()
    x = net.input(None, 3, 8, 8)
    a, b, c = (net.conv(x, 3, 4, 3, 3, name=n) for n in "abc")
    net.output(net.conv(net.node("Concat", a, b, c, axis=1, name="join"), 12, 5, 1, 1, name="last"))
    return net


FORKED = load(forked())


@pytest.mark.parametrize("scale", [0.03, 0.0625, 0.0213])
@pytest.mark.parametrize("zero", [0, 77, 128, 255])
def test_uniform_gives_exactly_this_scale_and_zero_point(scale: float, zero: int) -> None:
    found = made("conv_chain", {"relu1_out": uniform(scale, zero)})
    quantizer = found.plan(8).quantizers["relu1_out"]
    assert (quantizer.scale, quantizer.zero_point, quantizer.bits) == (np.float32(scale), zero, 8)
    assert next(c for c in choice_space(found.topology, found.options) if c.key == "bits:relu1_out").options == (8,)
    assert "relu1_out" not in found.topology.measured, "a known range needs no statistics"
    assert found.agree(found.plan(8), "qdq").differing == 0


def test_uniform_in_a_symmetric_schema() -> None:
    """Unsigned storage holds symmetric values with the zero point in the middle."""
    found = made("conv_chain", {"relu1_out": uniform(0.05, 128)}, schema="symmetric")
    quantizer = found.plan(8).quantizers["relu1_out"]
    assert (quantizer.scale, quantizer.zero_point) == (np.float32(0.05), 128)
    with pytest.raises(ConfigError, match=r"under the schema symmetric \(symmetric\)"):
        _ = made("conv_chain", {"relu1_out": uniform(0.05, 7)}, schema="symmetric").topology


def test_calibrated_gives_the_range_at_any_bits() -> None:
    found = made("max_pool", {"mid_out": calibrated(-1.0, 3.0)})
    for bits in (8, 5):
        quantizer = found.plan(bits).quantizers["front_out"]
        assert quantizer.bits == bits
        assert float(quantizer.scale) == pytest.approx(4.0 / ((1 << bits) - 1))
    assert not {"front_out", "mid_out"} & set(found.topology.measured), (
        "the pool's input and result are one group, and its range is known"
    )


def test_any_is_a_floor_of_bits() -> None:
    found = made("conv_chain", {"relu1_out": {"kind": "any", "bits": 7}, "c1": {"kind": "any", "bits": 8}})
    options = {c.key: c.options for c in choice_space(found.topology, found.options)}
    assert options["bits:relu1_out"] == (8, 7) and options["bits:c1"] == (8,) and options["bits:x"][-1] == 4


def test_none_keeps_a_tensor_real() -> None:
    found = made("conv_chain", {"conv2_out": "none"})
    assert found.topology.float_nodes["conv2"].text == "kept in float by annotate.constraints (conv2_out is real)"
    assert "conv2_out" not in found.topology.group_of
    assert found.agree(found.plan(8), "qdq").differing == 0


def test_names_may_be_patterns_and_later_ones_count() -> None:
    found = made("residual_block", {"*": {"kind": "any", "bits": 6}, "front_out": "none"})
    options = {c.key: c.options for c in choice_space(found.topology, found.options)}
    assert min(min(o) for o in options.values()) == 6
    assert not found.topology.node_conds["front"]


@pytest.mark.parametrize(
    ("constraints", "said"),
    [
        ({"nowhere": "none"}, "'nowhere' matches no tensor"),
        ({"relu1_ou": "none"}, "did you mean 'relu1_out'"),
        ({"x": "nome"}, r"kind is 'nome' \(did you mean 'none'.*; legal are uniform, calibrated, any, none"),
        ({"x": 3}, "is 3; legal: none, or a mapping with kind"),
        ({"x": {"kind": "any"}}, "of kind any takes bits"),
        ({"x": {"kind": "any", "bits": 1}}, "bits is 1; legal are 2 to 16"),
        ({"x": calibrated(1.0, 2.0)}, "must hold 0"),
        ({"x": uniform(-1.0, 0)}, "scale is -1.0; it must be above 0"),
        ({"x": uniform(1.0, 0, "uint7")}, r"dtype is 'uint7' \(did you mean 'uint"),
        ({"x": uniform(1.0, 0, "int8")}, "'x' is stored as uint8 on this hardware, not as int8"),
        ({"x": uniform(1.0, 300)}, "cannot have scale 1.0 and zero point 300"),
        ({"x": {"kind": "any", "bits": 12}}, "'x' must have at least 12 bits, and ort_cpu gives it 8"),
        ({"conv1_out": calibrated(-1, 1)}, "the constraint of 'conv1_out' cannot hold: conv1_out is inside"),
    ],
)
def test_mistakes_are_named(constraints: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        _ = made("conv_chain", constraints).topology


# --- scales that are both given -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_pinned_operand_of_a_pinned_concatenation_is_rescaled(form: str) -> None:
    given = {"a_out": uniform(0.03, 100), "join_out": uniform(0.05, 120)}
    found = line(FORKED, constraints=given)
    operands = found.topology.kernel_of["join"].operands
    assert [o.rescaled for o in operands] == [True, False, False], (
        "the free producers write the common scale themselves"
    )
    plan = found.plan(8)
    assert [(r["node"], r["tensor"]) for r in plan.rescales] == [("join", "a_out")]
    agreement = found.agree(plan, form)
    assert agreement.differing == 0 and agreement.behind_float == 0
    wanted, outputs = found.outputs(), found.outputs(found.realize(plan, form).model)
    for name in wanted:
        assert np.sqrt(np.mean((wanted[name] - outputs[name]) ** 2)) < 0.2 * np.std(wanted[name])


def test_the_scale_that_most_operands_have_becomes_the_common_one() -> None:
    given = {"a_out": uniform(0.03, 100), "b_out": uniform(0.05, 120), "c_out": uniform(0.05, 120)}
    found = line(FORKED, constraints=given)
    assert [o.rescaled for o in found.topology.kernel_of["join"].operands] == [True, False, False]
    assert found.plan(8).quantizers["join_out"].scale == np.float32(0.05)


@pytest.mark.parametrize("device", ["ort_cpu", "tensorrt"])
@pytest.mark.parametrize("narrow", ["a_out", "b_out"])
def test_given_ranges_that_meet_have_a_common_one_that_holds_all(device: str, narrow: str) -> None:
    wide = {"a_out": "b_out", "b_out": "a_out"}[narrow]
    found = line(FORKED, device, constraints={narrow: calibrated(-6, 6), wide: calibrated(-24, 24)})
    assert found.topology.group_of["join_out"].fixed == Range(-24, 24)
    apart = line(FORKED, device, constraints={"a_out": calibrated(-6, 2), "b_out": calibrated(-1, 8)})
    assert apart.topology.group_of["join_out"].fixed == Range(-6, 8)


@pytest.mark.parametrize("device", ["ort_cpu", "qnn_htp"])
@pytest.mark.parametrize("op", ["Where", "Max", "Min"])
def test_given_ranges_that_meet_at_a_selection_have_a_common_one(op: str, device: str) -> None:
    """The first operand's range alone would cut off three quarters of the second one's."""
    net = Net(seed=1)
    x = net.input(None, 3, 8, 8)
    a, b = net.conv(x, 3, 4, 3, 3, name="a"), net.conv(x, 3, 4, 3, 3, name="b")
    condition = [net.constant(np.arange(4).reshape(1, 4, 1, 1) % 2 == 0)] if op == "Where" else []
    net.output(net.conv(net.node(op, *condition, a, b, name="mid"), 4, 3, 1, 1))
    found = line(net, device, constraints={a: calibrated(-6, 6), b: calibrated(-24, 24)})
    kernel = found.topology.kernel_of["mid"]
    assert found.topology.group_of[kernel.output].fixed == Range(-24, 24)
    plan = found.plan(8)
    scale = float(plan.quantizers[kernel.output].scale)
    assert 48 / 256 <= scale < 48 / 253
    if any(o.rescaled for o in kernel.operands):
        assert [(r["node"], r["tensor"]) for r in plan.rescales] == [("mid", a)]
    else:  # one scale for all: no operand keeps the narrow range
        assert {found.topology.group_of[t].key for t in (a, b)} == {found.topology.group_of[kernel.output].key}
    assert found.agree(plan, "integer").differing == 0


def test_equal_pins_need_no_rescale() -> None:
    given = {"a_out": uniform(0.03, 100), "join_out": uniform(0.03, 100)}
    found = line(FORKED, constraints=given)
    assert not any(o.rescaled for k in found.topology.kernels for o in k.operands)
    assert not found.plan(8).rescales


def test_one_rescale_between_two_ends_of_a_chain() -> None:
    net = Net()
    x = net.conv(net.input(None, 3, 8, 8), 3, 4, 1, 1, name="first")
    x = net.node("MaxPool", x, kernel_shape=[2, 2], name="pool")
    x = net.node("Transpose", x, perm=[0, 1, 3, 2], name="turn")
    x = net.node("DepthToSpace", x, blocksize=2, name="depth")
    net.output(net.conv(x, 1, 3, 3, 3))
    found = line(net, constraints={"first_out": uniform(0.03, 100), "depth_out": uniform(0.05, 90)})
    assert sum(o.rescaled for k in found.topology.kernels for o in k.operands) == 1
    for form in FORMS:
        assert found.agree(found.plan(8), form).differing == 0


def test_a_device_without_a_multiplier_says_that_it_cannot_rescale() -> None:
    net = forked()
    found = line(net, "vta", constraints={"a_out": calibrated(-2, 2), "join_out": calibrated(-8, 8)})
    if found.topology.kernel_of["join"].operands[0].form.value == "quantized":
        with pytest.raises(HardwareError, match="has no multiplier to convert between them"):
            found.plan(8)


def test_fixed_outputs_give_functions_their_usual_scale() -> None:
    found = line(graph_of("gate_of_silu"), fixed_outputs=True)
    quantizer = found.plan(8).quantizers["mid_out"]
    assert (quantizer.scale, quantizer.zero_point) == (np.float32(1 / 256), 0)
    tanh = line(graph_of("function_tanh"), fixed_outputs=True).plan(8).quantizers["mid_out"]
    assert (tanh.scale, tanh.zero_point) == (np.float32(1 / 128), 128)
    softmax = line(graph_of("softmax_island"), fixed_outputs=True).plan(8).quantizers["mid_out"]
    assert (softmax.scale, softmax.zero_point) == (np.float32(1 / 256), 0)
    assert found.agree(found.plan(8), "qdq").differing == 0


def test_fixed_outputs_of_signed_bytes() -> None:
    data = hardware_data("ort_cpu")
    for rows in data["ops"].values():
        for row in rows:
            row["in"] = ["int8" if d == "uint8" else d for d in row["in"]]
            row["out"] = ["int8" if d == "uint8" else d for d in row["out"]]
    found = line(graph_of("gate_of_silu"), hardware("ort_cpu", ops=data["ops"]), "asymmetric", fixed_outputs=True)
    quantizer = found.plan(8).quantizers["mid_out"]
    assert (quantizer.scale, quantizer.zero_point) == (np.float32(1 / 256), -128)


FIXED = {
    # op: (scale, zero point) in int8, uint8 and int16, asymmetric; then scale in symmetric int8 and int16
    "Softmax": ((2**-8, -128), (2**-8, 0), (2**-15, 0), 2**-7, 2**-15),
    "Sigmoid": ((2**-8, -128), (2**-8, 0), (2**-15, 0), 2**-7, 2**-15),
    "Tanh": ((2**-7, 0), (2**-7, 128), (2**-15, 0), 2**-7, 2**-15),
    "LpNormalization": ((2**-7, 0), (2**-7, 128), (2**-15, 0), 2**-7, 2**-15),
    "LogSoftmax": ((16 / 256, 127), (16 / 256, 255), (16 / 65536, 32767), 16 / 128, 16 / 32768),
}


@pytest.mark.grid
@pytest.mark.parametrize("op", FIXED)
def test_fixed_outputs_are_those_of_the_specification(op: str) -> None:
    """Also on devices with fewer bits than their storage, and where scales are powers of two."""
    net = Net(seed=1)
    net.output(net.conv(net.node(op, net.conv(net.input(None, 3, 4, 4), 3, 4, 1, 1), output="f"), 4, 2, 1, 1))
    graph = load(net)
    int8, uint8, int16, narrow, long = FIXED[op]

    def stored(spec: HardwareSpec, schema: str = "auto") -> tuple[float, int]:
        made = line(graph, spec, schema, fixed_outputs=True)
        plan = made.plan(16)
        assert made.agree(plan, "integer").differing == 0
        return float(plan.quantizers["f"].scale), plan.quantizers["f"].zero_point

    loose = {"symmetric": False, "narrow": False}
    assert stored(hardware("tflite_int8"), "asymmetric") == int8
    assert stored(hardware("ort_cpu")) == uint8
    assert stored(hardware("mixed_npu", activations=loose | {"bits": 16}), "asymmetric") == int16
    assert stored(hardware("tensorrt")) == (narrow, 0)
    assert stored(hardware("vta")) == (narrow, 0)
    assert stored(hardware("mixed_npu")) == (long, 0)
    scale, zero = stored(hardware("fbgemm"))
    assert (scale, zero) == (2 * uint8[0], uint8[1] // 2 if uint8[1] < 255 else 127)


def test_statements_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "given.yaml").write_text("relu1_out: {kind: any, bits: 7}\nx: none\n")
    assert constraints_given("given.yaml", tmp_path) == {"relu1_out": {"kind": "any", "bits": 7}, "x": "none"}
    assert constraints_given(None, tmp_path) == {}
    (tmp_path / "list.yaml").write_text("- x\n")
    with pytest.raises(ConfigError, match="must map names of tensors"):
        constraints_given("list.yaml", tmp_path)
    with pytest.raises(ConfigError, match="is not a readable YAML file"):
        constraints_given("absent.yaml", tmp_path)


def test_a_statement_that_cannot_hold_says_what_the_tensor_is() -> None:
    """The true reason for each: a weight is held in integers, and its range is no matter of constraints."""
    said = {
        "c1": r"c1 is the weight of conv1\. Ranges of weights .*for weights are \{kind: uniform.*\{kind: any",
        "c2": r"c2 is the bias of conv1, which is stored at the scale of the products",
        "conv1_out": r"conv1_out is inside the kernel conv1 .*constrain its output relu1_out instead",
    }
    for tensor, reason in said.items():
        for statement in (calibrated(-1, 1), *([] if tensor == "c1" else [uniform(0.1, 0)])):
            with pytest.raises(ConfigError, match=rf"the constraint of '{tensor}' cannot hold: {reason}"):
                _ = made("conv_chain", {tensor: statement}).topology


def test_a_floor_of_bits_that_reaches_nothing_is_refused_too() -> None:
    for tensor in ("c2", "conv1_out"):
        with pytest.raises(ConfigError, match=f"the constraint of '{tensor}' cannot hold"):
            _ = made("conv_chain", {tensor: {"kind": "any", "bits": 6}}).topology
    with pytest.raises(ConfigError, match="'c1' must have at least 12 bits, and ort_cpu gives it 8"):
        _ = made("conv_chain", {"c1": {"kind": "any", "bits": 12}}).topology
    assert made("conv_chain", {"c*": {"kind": "any", "bits": 6}}).topology.weight_of["c1"].min_bits == 6


def test_a_tensor_of_a_node_in_float_names_the_node_and_its_reason() -> None:
    with pytest.raises(ConfigError, match=r"relu1_out is real, since .* stays in float: kept in float by"):
        _ = line(graph_of("conv_chain"), constraints={"relu1_out": calibrated(-1, 1)}, float_nodes=["*"]).topology
    accumulators = line(graph_of("residual_block"), "vta").topology
    raw = next(k for k in accumulators.kernels if k.form == "raw")
    with pytest.raises(ConfigError, match=f"{raw.output} leaves {raw.node} as accumulator"):
        _ = line(graph_of("residual_block"), "vta", constraints={raw.output: calibrated(-1, 1)}).topology


# --- scales of weights ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["ort_cpu", "tflite_int8", "tensorrt_both"])
@pytest.mark.parametrize("scale", [0.03, [0.0213, 0.01, 0.5, 0.0625]])
def test_uniform_gives_a_weight_exactly_these_scales(spec: str, scale: Any) -> None:
    graph = graph_of("conv_chain")
    channels = graph.shapes["c1"][0]
    wanted = np.resize(np.asarray(scale, np.float32), channels)
    given = wanted.tolist() if isinstance(scale, list) else scale
    found = line(graph, spec, constraints={"c1": uniform(given, 0, "int8")})
    weight = found.plan(8).weights["c1"]
    assert np.array_equal(np.broadcast_to(weight.scale, channels), wanted)
    integers = np.clip(np.rint(graph.constant("c1") / wanted[:, None, None, None]), -127, 127)
    assert np.array_equal(weight.centred(), integers)
    assert next(c for c in choice_space(found.topology, found.options) if c.key == "bits:c1").options == (8,)
    assert found.agree(found.plan(8), "integer").differing == 0


def test_a_weight_of_four_bits_in_eight() -> None:
    found = made("conv_chain", {"c1": uniform(0.125, 0, "int4")})
    weight = found.plan(8).weights["c1"]
    assert (weight.bits, weight.dtype) == (4, "int8") and np.abs(weight.values).max() <= 7


@pytest.mark.parametrize(
    ("spec", "statement", "said"),
    [
        ("ort_cpu", uniform(0.1, 0, "uint8"), "'c1' is stored as int8 on this hardware, not as uint8"),
        ("ort_cpu", uniform(0.1, 3, "int8"), "has zero points, and weights are symmetric here"),
        ("ort_cpu", uniform([0.1, 0.2], 0, "int8"), "output channels, and is given 2 scales"),  # type: ignore[arg-type]
        ("vta", uniform(0.1, 0, "int8"), "has scales that are no powers of two"),
        ("vta", uniform([0.5] * 8, 0, "int8"), "has scales per channel, and weights have one scale here"),  # type: ignore[arg-type]
        ("ort_cpu", uniform(0.1, 300, "int8"), "is given the zero point 300; int8 holds -128 to 127"),
    ],
)
def test_scales_of_weights_that_a_device_has_not(spec: str, statement: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        _ = line(graph_of("conv_chain"), spec, constraints={"c1": statement}).topology


def test_an_activation_has_one_scale() -> None:
    with pytest.raises(ConfigError, match="'relu1_out' is given 2 scales; an activation has one"):
        _ = made("conv_chain", {"relu1_out": uniform([0.1, 0.2], 0)}).topology  # type: ignore[arg-type]


def test_an_output_whose_scale_is_given_is_stored() -> None:
    """It would leave its kernel as real numbers, and then have no scale."""
    free = made("gemm_trans", {})
    name = free.graph.outputs[0].name
    assert name not in free.topology.group_of
    held = made("gemm_trans", {name: uniform(0.05, 128)})
    assert held.plan(8).quantizers[name].scale == np.float32(0.05)
    assert held.agree(held.plan(8), "qdq").differing == 0
