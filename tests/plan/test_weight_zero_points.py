"""Weights with a zero point: their integers against fractions, their sums against the integer interpreter."""

from __future__ import annotations

import copy
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.variants import Topologies
from quantpipe.calibrate.estimators import MaxRange
from quantpipe.calibrate.measure import measure
from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.check.compatibility import check as fit
from quantpipe.check.lint.findings import lint
from quantpipe.errors import HardwareError
from quantpipe.graph.execute import pairs_saturate
from quantpipe.graph.io import model_proto
from quantpipe.graph.view import Graph
from quantpipe.intake.load import load_as_written
from quantpipe.pipeline.strategy_file import read_strategy, strategy_payload
from quantpipe.types import DType, HardwareSpec, Strategy
from tests.ops.line import Line, Net, hardware, hardware_data, line
from tests.ops.test_every_op import graph_of
from tests.simulate.test_against_interpreter import check

WEIGHTED = ("Conv", "Gemm", "MatMul", "ConvTranspose")
KERNELS = ("conv_asymmetric_pads", "conv_strides", "conv_dilations", "conv_grouped", "conv_depthwise", "gemm_trans",
           "gemm_plain", "gemm_row_bias", "matmul_matrix", "residual_projection", "tied_weights",
           "wide_sums")  # fmt: skip


def device(shipped: str, weight: str, granularity: str, bits: int = 8, data: str | None = None) -> HardwareSpec:
    """A shipped device that takes weights of a type with zero points."""
    given = copy.deepcopy(hardware_data(shipped))
    for op in WEIGHTED:
        for row in given["ops"].get(op, ()):
            if row.get("when", {}).get("operands") != "activations" and "float32" not in row["in"]:
                row["in"] = [data or row["in"][0], weight]
    given["weights"] |= {"symmetric": False, "granularity": [granularity], "narrow": False, "bits": bits}
    given["activations"] |= {"symmetric": False}
    isa = {"isa": "vnni"} if "isa" in given else {}  # with `any`, int8 weights with zero points are stored as uint8
    return hardware(shipped, **{k: given[k] for k in ("ops", "weights", "activations")}, **isa)


@pytest.mark.sliced(30)
@pytest.mark.parametrize("form", ["qdq", "qoperator", "integer"])
@pytest.mark.parametrize(("weight", "granularity"), [("uint8", "per_tensor"), ("int8", "per_channel")])
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_equals_plain_integers(name: str, weight: str, granularity: str, form: str) -> None:
    made = line(graph_of(name), device("ort_cpu", weight, granularity))
    plan = made.ties((8, 7, 5, 4), seed=5)
    zeros = [w.zero_point for w in plan.weights.values()]
    assert all(z.ndim == (granularity == "per_channel") for z in zeros) and any(np.any(z) for z in zeros)
    check(made, plan, form)
    check(made, made.plan(8), form)


@pytest.mark.parametrize(("weight", "granularity"), [("uint8", "per_channel"), ("int8", "per_tensor")])
@pytest.mark.parametrize("name", ["conv_grouped", "conv_asymmetric_pads", "gemm_trans"])
def test_int8_activations_in_the_integer_form(name: str, weight: str, granularity: str) -> None:
    if pairs_saturate() and weight == "uint8" and name.startswith("conv"):
        pytest.skip("onnxruntime has no exact ConvInteger of int8 by uint8 on a CPU without VNNI")
    made = line(graph_of(name), device("tflite_int8", weight, granularity))
    check(made, made.ties(8, seed=2), "integer")


@pytest.mark.parametrize("name", ["conv_grouped", "conv_asymmetric_pads", "gemm_trans"])
def test_int8_activations_by_uint8_weights_have_no_kernel(name: str) -> None:
    refused = line(graph_of(name), device("ort_cpu", "uint8", "per_channel", data="int8"))
    with pytest.raises(HardwareError, match=r"int8 activations by uint8 weights.*realize=integer"):
        refused.realize(refused.plan(), "qdq")


@pytest.mark.sliced(3)
@pytest.mark.parametrize("group", [1, 3, 6])
@pytest.mark.parametrize("weight", ["uint8", "int8"])
def test_sums_beyond_float32_with_a_zero_point_per_channel(weight: str, group: int) -> None:
    """Skewed weights on many channels: |Σ| passes 2^24, so that ConvInteger and the window sums carry it."""
    net, channels = Net(seed=group), 960
    values = net.rng.uniform(0.9, 1.0, (6, channels // group, 2, 2)) * net.rng.choice([-1, 1], (6, 1, 1, 1))
    kernel = net.constant(values.astype(np.float32), "w")
    net.output(net.node("Conv", net.input(None, channels, 4, 4), kernel, group=group, pads=[1, 0, 0, 1], name="c"))
    made = line(net, device("ort_cpu", weight, "per_channel"))
    plan = made.plan(8)
    assert not plan.kernels["c"].exact_in_float32 or group == 6
    assert len(np.unique(plan.weights["w"].zero_point)) > 1
    for form in ("integer", "qdq"):
        check(made, plan, form)


@pytest.mark.parametrize("overflow", ["wrap", "saturate"])
@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel"])
def test_accumulators_that_overflow(granularity: str, overflow: str) -> None:
    data = hardware_data("tflite_int8")
    data["accumulator"] = {"dtype": "int16", "overflow": overflow}
    data["bias"] = "int16"
    ops = {k: [v[0]] for k, v in data["ops"].items() if k in ("Conv", "Gemm", "Relu", "Flatten")}
    for op in ("Conv", "Gemm"):
        ops[op] = [{"in": ["int8", "int8"], "out": ["int8"]}]
    weights = {"symmetric": False, "granularity": [granularity], "narrow": False}
    made = line(graph_of("conv_chain"), hardware("tflite_int8", **data | {"ops": ops, "weights": weights}))
    plan = made.plan(8)
    assert any(k.limit is not None for k in plan.kernels.values() if hasattr(k, "limit"))
    check(made, plan, "integer")


@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel"])
def test_the_integers_are_the_nearest_to_the_real_weights(granularity: str) -> None:
    """q = clamp(round(w/s) + z) and s·(0 - …) = 0 exactly, from fractions; and the error is within half a step."""
    made = line(graph_of("conv_asymmetric_pads"), device("ort_cpu", "uint8", granularity))
    plan = made.plan(8)
    for tensor, found in plan.weights.items():
        real = made.graph.constant(tensor)
        assert found.dtype is DType.UINT8
        for channel in range(len(real)):
            s = Fraction(float(found.scale.reshape(-1)[channel if granularity == "per_channel" else 0]))
            z = int(found.zero_point.reshape(-1)[channel if granularity == "per_channel" else 0])
            assert 0 <= z <= 255
            for w, q in zip(
                real[channel].reshape(-1).tolist(), found.values[channel].reshape(-1).tolist(), strict=True
            ):
                assert abs(Fraction(w) - s * (q - z)) <= s * Fraction(505, 1000) * (1 if 0 < q < 255 else 2)


@pytest.mark.parametrize("bits", [8, 5, 3, 2])
@pytest.mark.parametrize("form", ["qdq", "integer"])
def test_four_bit_storage(form: str, bits: int) -> None:
    made = line(graph_of("conv_asymmetric_pads"), device("int4_weights", "uint4", "per_channel", bits=4), min_bits=2)
    check(made, made.plan(bits), form)
    made = line(graph_of("gemm_plain"), device("int4_weights", "int4", "per_channel", bits=4), min_bits=2)
    check(made, made.plan(bits), form)


def test_sixteen_bit_weights() -> None:
    made = line(
        graph_of("conv_asymmetric_pads"), device("mixed_npu", "int16", "per_channel", 16, "int16"), "asymmetric"
    )
    plan = made.plan(16)
    assert any(np.abs(w.zero_point).max() > 255 for w in plan.weights.values())
    check(made, plan, "integer")


def test_a_transposed_convolution() -> None:
    for weight, granularity in (("uint8", "per_tensor"), ("int8", "per_channel")):
        made = line(graph_of("transposed_strides"), device("ort_cpu", weight, granularity))
        plan = made.plan(8)
        assert any(np.any(w.zero_point) for w in plan.weights.values())
        for form in ("qdq", "qoperator", "integer"):
            assert made.agree(plan, form).differing == 0


def test_a_bias_too_large_raises_the_scale_and_keeps_the_zero_point() -> None:
    net = Net(seed=1)
    weight = net.constant((net.rng.uniform(-1, 3, (4, 2, 1, 1)) * 1e-6).astype(np.float32), "w")
    bias = net.constant(np.asarray([0, 1e3, 0, -1e3], np.float32), "b")
    net.output(net.node("Conv", net.input(None, 2, 3, 3), weight, bias, kernel_shape=[1, 1], name="c"))
    made = line(net, device("ort_cpu", "int8", "per_channel"))
    plan = made.plan(8)
    assert plan.raised and plan.raised[0]["channels"] == 2
    alone = made.planner.weight("w", 8, made.strategy(8).weights["w"])
    np.testing.assert_array_equal(plan.weights["w"].zero_point, alone.zero_point)
    check(made, plan, "integer")


@pytest.mark.sliced(3)
@pytest.mark.parametrize("bias", [0.0, 0.7, -1e3])
@pytest.mark.parametrize("size", [1e-40, 1e-37, 1e-30])
@pytest.mark.parametrize("spec", ["ort_cpu", "vta", "affine"])
def test_the_bias_of_a_channel_of_all_but_zero_weights(spec: str, size: float, bias: float) -> None:
    """Training leaves such channels behind. Below 2^-126 no scale follows the weights, and the bias decides all."""
    net = Net(seed=1)
    values = net.rng.uniform(-1, 1, (3, 2, 1, 1)).astype(np.float32)
    values[1] *= np.float32(size)
    weight, offset = net.constant(values, "w"), net.constant(np.asarray([0.1, bias, 0], np.float32), "b")
    net.output(net.node("Conv", net.input(None, 2, 3, 3), weight, offset, kernel_shape=[1, 1], name="c"))
    made = line(net, device("ort_cpu", "int8", "per_channel") if spec == "affine" else spec)
    plan = made.plan(8)
    kernel = plan.kernels["c"]
    assert abs(kernel.bias[1] * float(np.broadcast_to(kernel.acc_scale, (3,))[1]) - bias) <= 1e-3 * max(abs(bias), 1)
    check(made, plan, "integer")


def test_a_symmetric_schema_on_unsigned_weights_has_its_zero_in_the_middle() -> None:
    spec = device("snpe", "uint8", "per_tensor")
    made = line(graph_net(), spec, "symmetric_with_uint8")
    plan = made.plan(8)
    assert {int(w.zero_point) for w in plan.weights.values()} == {128}
    check(made, plan, "qdq")


def graph_net() -> Net:
    net = Net(seed=4)
    net.output(net.conv(net.input(None, 3, 6, 6), 3, 4, 3, 3, pads=[1, 1, 1, 1]))
    return net


def test_a_device_without_weight_zero_points_takes_no_unsigned_weights() -> None:
    data = hardware_data("ort_cpu")
    spec = hardware("ort_cpu", ops=data["ops"] | {"Conv": [{"in": ["uint8", "uint8"], "out": ["uint8"]}]})
    (reason,) = line(graph_net(), spec).topology.float_nodes.values()
    assert "takes weights without zero points" in reason.text


def test_the_strategy_file_gives_the_same_plan() -> None:
    for granularity in ("per_tensor", "per_channel"):
        made = line(graph_of("residual_projection"), device("ort_cpu", "int8", granularity))
        strategy = made.strategy(8)
        payload = strategy_payload("m", made.spec, made.schema, made.topology, strategy=strategy, results={})
        variants = Topologies(made.graph, made.spec, made.schema, AnnotateOptions())
        again = read_strategy(payload, "here", "m", made.spec, schema=made.schema, variants=variants)
        for tensor, limits in strategy.weights.items():
            np.testing.assert_array_equal(again.weights[tensor], limits)
            entry = payload["strategy"]["thresholds"][tensor]
            assert isinstance(entry, list) is (granularity == "per_channel")


@pytest.mark.parametrize("method", ["max_range", "mse", "estimator"])
def test_every_way_to_choose_ranges(method: Any) -> None:
    made = line(graph_of("conv_asymmetric_pads"), device("ort_cpu", "int8", "per_channel"))
    profile = measure(made.graph, made.topology.measured, made.samples, 1024)
    table = ThresholdTable(made.graph, made.topology, made.schema, profile, estimator=MaxRange(), weight_method=method)
    for site in made.topology.weights:
        limits = table.weight_thresholds(site.tensor, 8)
        assert limits.shape == (made.graph.shapes[site.tensor][0], 2) and np.all(limits[:, 0] <= 0)


def test_lint_and_check_know_them() -> None:
    made = line(graph_of("residual_projection"), device("ort_cpu", "int8", "per_channel"))
    plan = made.plan(8)
    for form in ("qdq", "qoperator", "integer"):
        model = made.realize(plan, form).model
        written = reread(model, made)
        assert not lint(written, made.spec).refused
        symmetric = [f.rule for f in lint(written, hardware("ort_cpu")).refused]
        assert (form == "integer") or "zero_point" in symmetric
    found = fit(made.graph, made.topology, made.spec, made.schema)
    worst = {a.node: a.worst for a in found.accumulators}
    for node, numbers in plan.kernels.items():
        if node in worst:
            assert getattr(numbers, "bound", 0) <= worst[node] * 1.05 + 2**23


def reread(model: Any, made: Line) -> Graph:
    """A written model as lint reads it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        onnx.save(model_proto(model), path)
        return load_as_written(path, lambda raw: next(iter(made.samples.batches(4))).inputs)


@pytest.mark.grid
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    seed=st.integers(0, 1 << 16),
    group=st.sampled_from([1, 2, 4]),
    skew=st.floats(-2.0, 2.0),
    unsigned=st.booleans(),
    bits=st.sampled_from([8, 7, 4, 2]),
    per_channel=st.booleans(),
    pads=st.lists(st.integers(0, 2), min_size=4, max_size=4),
)
def test_drawn_convolutions(
    seed: int, group: int, skew: float, unsigned: bool, bits: int, per_channel: bool, pads: list[int]
) -> None:
    """Sizes, skews, bits, pads and groups as drawn; a channel of zeros and one of a single sign among them."""
    net = Net(seed=seed)
    values = net.rng.standard_normal((4, 4 // group, 3, 2)) + skew
    values[0] = 0
    values[1] = np.abs(values[1])
    weight = net.constant(values.astype(np.float32), "w")
    x = net.input(None, 4, 5, 5)
    y = net.node("Conv", x, weight, net.floats(4), pads=pads, group=group, name="c")
    net.output(net.dense(net.node("Flatten", net.node("GlobalAveragePool", y)), 4, 3))
    granularity = "per_channel" if per_channel else "per_tensor"
    made = line(net, device("ort_cpu", "uint8" if unsigned else "int8", granularity), min_bits=2)
    plan = made.plan(bits, seed)
    for form in ("qdq", "integer"):
        check(made, plan, form)


def test_wider_ranges_have_larger_scales_and_the_same_zero_points() -> None:
    made = line(graph_net(), device("ort_cpu", "int8", "per_channel"))
    found = made.strategy(8)
    doubled = Strategy(found.bits, found.ranges, {t: v * 2 for t, v in found.weights.items()})
    first, second = made.planner.plan(found), made.planner.plan(doubled)
    for tensor in found.weights:
        np.testing.assert_allclose(second.weights[tensor].scale, 2 * first.weights[tensor].scale)
        np.testing.assert_array_equal(second.weights[tensor].zero_point, first.weights[tensor].zero_point)
