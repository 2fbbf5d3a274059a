"""Products of activations, tables, subtractions, transposed convolutions on every accumulator and requantize: integers
equal an independent computation, or a refusal says why not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quantpipe.errors import HardwareError
from quantpipe.evaluate.overflow import overflow_report
from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import expose
from quantpipe.graph.session_options import INT8_KERNELS
from quantpipe.oprules.facts import LONGEST_SUM
from quantpipe.simulate.simulator import bind
from quantpipe.types import Accumulate, Accumulator, DType, QuantPlan, Sum
from tests.ops.line import ArraySamples, Line, Net, hardware, hardware_data, line, load


def with_ops(shipped: str, ops: dict[str, Any], **changes: Any) -> Any:
    return hardware(shipped, ops=hardware_data(shipped)["ops"] | ops, **changes)


def int16(overflow: str) -> dict[str, Any]:
    return {"bias": "int16", "accumulator": {"dtype": "int16", "overflow": overflow}}


def integers(made: Line, plan: QuantPlan, backend: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """q - z by tensor of the simulated graph, q of the realized one, on the first batch."""
    simulation, realized = made.simulate(plan), made.realize(plan, backend)
    batch = next(iter(made.samples.batches(6)))
    names, real_names = simulation.rendered.integers, realized.integers
    model = bind(simulation.rendered.model, simulation.weights)
    found = Session(expose(model, list(names.values()))).run({**batch.inputs, **simulation.scalars})
    real = Session(expose(realized.model, list(real_names.values())), options=INT8_KERNELS).run(batch.inputs)
    return {t: found[n] for t, n in names.items()}, {t: real[n] for t, n in real_names.items()}


def attention() -> Net:
    net = Net(seed=3)
    x = net.input(None, 6, 16)
    q, k = (net.node("MatMul", x, net.floats(16, 12, scale=0.3), name=n) for n in ("query", "key"))
    scores = net.node("MatMul", q, net.node("Transpose", k, perm=[0, 2, 1]), name="mid")
    net.output(net.node("MatMul", scores, net.floats(6, 5, scale=0.3), name="last"))
    return net


def difference() -> Net:
    net = Net(seed=5)
    x = net.input(None, 4, 6, 6)
    a, b = net.conv(x, 4, 6, 1, 1, name="a"), net.conv(x, 4, 6, 3, 3, pads=[1, 1, 1, 1], name="b")
    net.output(net.conv(net.node("Sub", a, b, name="mid"), 6, 3, 1, 1, name="last"))
    return net


def upsampled(channels: int = 5) -> Net:
    net = Net(seed=7)
    x = net.input(None, channels, 6, 6)
    up = net.node(
        "ConvTranspose", x, net.signs(channels, 3, 3, 3, scale=0.3), net.floats(3), name="mid", strides=[2, 2]
    )
    net.output(net.conv(up, 3, 2, 1, 1, name="last"))
    return net


def upsampled_truth(made: Line, plan: QuantPlan, centred: Any) -> Any:
    """Σ (q_x - z_x)·q_w + bias of the transposed convolution with stride 2, in int64, loop by loop."""
    numbers = plan.kernels["mid"]
    assert isinstance(numbers, Accumulate) and numbers.bias is not None
    x, w = np.rint(centred).astype(np.int64), plan.weights[numbers.weight].values.astype(np.int64)
    n, _, height, width = x.shape
    acc = np.zeros((n, w.shape[1], 2 * (height - 1) + 3, 2 * (width - 1) + 3), np.int64)
    for i in range(height):
        for j in range(width):
            acc[:, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3] += np.einsum("nc,cokl->nokl", x[:, :, i, j], w)
    return acc + numbers.bias.reshape(-1, 1, 1)


@pytest.mark.parametrize("overflow", ["wrap", "saturate"])
def test_a_transposed_convolution_overflows_like_any_other(overflow: str) -> None:
    rows = {"ConvTranspose": [{"in": ["int8", "int8"], "out": ["int16"]}]}
    spec = with_ops("hago_int16_acc", rows, accumulator={"dtype": "int16", "overflow": overflow})
    graph = load(upsampled(24))
    made = line(
        graph,
        spec,
        samples=ArraySamples(
            {"x": np.where(np.random.default_rng(5).random((6, 24, 6, 6)) < 0.3, -1.0, 1.0).astype(np.float32)}
        ),
    )
    plan = made.plan(8)
    simulated, realized = integers(made, plan, "integer")
    acc = "mid_out (accumulator)"
    whole = upsampled_truth(made, plan, simulated["x"])
    kept = (whole + 32768) % 65536 - 32768 if overflow == "wrap" else np.clip(whole, -32768, 32767)
    assert np.any(kept != whole)
    np.testing.assert_array_equal(simulated[acc], kept)
    np.testing.assert_array_equal(realized[acc], kept)
    (entry,) = (e for e in overflow_report(made.graph, made.topology, plan, made.simulate(plan), samples=made.samples)
                if e["node"] == "mid")  # fmt: skip
    assert entry["overflowed"] >= np.count_nonzero(kept != whole)


def test_weights_of_four_bits_in_a_transposed_convolution() -> None:
    rows = {"ConvTranspose": [{"in": ["uint8", "int4"], "out": ["uint8"]}]}
    made = line(upsampled(), with_ops("int4_weights", rows))
    plan = made.plan(8)
    assert plan.weights[made.topology.kernel_of["mid"].weight or ""].dtype is DType.INT4
    for backend in ("qdq", "qoperator", "integer"):
        assert made.agree(plan, backend).differing == 0


def test_sixteen_bit_transposed_convolutions_are_refused_where_float32_is_not_exact() -> None:
    rows = {"ConvTranspose": [{"in": ["int16", "int16"], "out": ["int16"]}]}
    made = line(upsampled(), with_ops("mixed_npu", rows))
    plan = made.plan(16)
    with pytest.raises(HardwareError, match="transposed convolution runs in float32"):
        made.simulate(plan)


def test_sixteen_bit_activations_in_transposed_convolutions_and_tables() -> None:
    rows = {
        "ConvTranspose": [{"in": ["int16", "int8"], "out": ["int16"]}],
        "Tanh": [{"in": ["int16"], "out": ["int16"]}],
    }
    net = Net(seed=8)
    x = net.input(None, 7, 6, 6)
    up = net.node("ConvTranspose", x, net.signs(7, 3, 1, 1, scale=0.3), net.floats(3), name="mid", strides=[2, 2])
    net.output(net.conv(net.node("Tanh", up, name="table"), 3, 2, 1, 1, name="last"))
    made = line(net, with_ops("mixed_npu", rows))
    assert {"mid", "table"} <= set(made.topology.kernel_of)
    plan = made.plan(16)
    simulated, realized = integers(made, plan, "integer")
    assert made.agree(plan, "integer").differing == 0
    q, out = plan.quantizers["mid_out"], plan.quantizers["table_out"]
    real = np.tanh((realized["mid_out"].astype(np.float64) - q.zero_point) * q.scale) / out.scale
    assert np.max(np.abs(np.clip(real, out.low, out.high) - simulated["table_out"])) <= 0.51


@pytest.mark.parametrize("shipped", ["tflite_int8", "cmsis_nn", "ort_cpu", "vta", "hago_int16_acc"])
def test_subtractions(shipped: str) -> None:
    """The real difference, to within the steps that rounding takes; simulated equals realized."""
    declared = hardware_data(shipped)["ops"]
    spec = with_ops(shipped, {"Sub": declared["Add"]})
    made = line(difference(), spec)
    assert any(k.node == "mid" for k in made.topology.kernels)
    plan = made.plan(5 if shipped == "hago_int16_acc" else 8)
    assert isinstance(plan.kernels["mid"], Sum)
    backend = hardware_data(shipped)["realize"]
    assert made.agree(plan, backend).differing == 0
    _, found = integers(made, plan, "integer")
    q = plan.quantizers["mid_out"]

    def real(tensor: str) -> Any:
        if f"{tensor} (accumulator)" in found:
            scale = plan.raw_scales[tensor]
            return found[f"{tensor} (accumulator)"] * (scale.reshape(-1, 1, 1) if scale.ndim else scale)
        grid = plan.quantizers[tensor]
        return (found[tensor].astype(np.float64) - grid.zero_point) * grid.scale

    exact = np.clip((real("a_out") - real("b_out")) / q.scale, q.low, q.high)
    steps = real("mid_out") / q.scale
    assert np.max(np.abs(np.clip(steps, q.low, q.high) - exact)) <= 1.6, shipped
    assert np.ptp(exact) > 10


@pytest.mark.parametrize("shipped", ["tflite_int8", "vta", "tensorrt"])
def test_products_of_activations_on_every_requantize_kind(shipped: str) -> None:
    made = line(attention(), shipped)
    plan = made.plan(8)
    simulated, realized = integers(made, plan, "integer")
    z = {t: plan.quantizers[t].zero_point for t in ("query_out", "mid_out")}
    a = simulated["query_out"].astype(np.int64)
    np.testing.assert_array_equal(realized["query_out"].astype(np.int64) - z["query_out"], a)
    (b,) = (v for t, v in simulated.items() if t.startswith("transpose"))
    exact = a @ b.astype(np.int64)
    multiplier = float(np.asarray(plan.kernels["mid"].output.multiplier))  # type: ignore[union-attr]
    q = plan.quantizers["mid_out"]
    for found in (simulated["mid_out"], realized["mid_out"].astype(np.float64) - z["mid_out"]):
        assert np.max(np.abs(found - np.clip(exact * multiplier, q.low, q.high))) <= 0.501 + (shipped == "tflite_int8")
    np.testing.assert_array_equal(realized["mid_out"].astype(np.int64) - z["mid_out"], simulated["mid_out"])


@pytest.mark.parametrize(
    ("shipped", "changes", "reason"),
    [
        ("mixed_npu", {"accumulator": "int32"}, "the int32 accumulator holds 2147483647"),
        (
            "tensorrt",
            int16("wrap"),
            "the int16 accumulator holds 32767",
        ),
        (
            "tensorrt",
            int16("saturate"),
            "the int16 accumulator holds 32767",
        ),
    ],
)
def test_products_of_activations_are_refused_where_they_are_not_exact(
    shipped: str, changes: dict[str, Any], reason: str
) -> None:
    dtype = "int16" if shipped == "mixed_npu" else "int8"
    rows = {"MatMul": [{"in": [dtype, dtype], "out": [dtype], "when": {"operands": "activations"}}]}
    made = line(attention(), with_ops(shipped, rows, realize="integer", **changes))
    with pytest.raises(HardwareError, match=reason):
        made.plan(16 if shipped == "mixed_npu" else 8)


@pytest.mark.parametrize("isa", ["any", "avx2"])
def test_products_of_signed_activations_are_refused_without_vnni(isa: str) -> None:
    rows = {"MatMul": [{"in": ["uint8", "int8"], "out": ["int8"], "when": {"operands": "activations"}}]}
    net = Net(seed=3)
    x, y = net.input(None, 6, 16), net.input(None, 16, 5, name="y")
    net.output(net.node("MatMul", x, y, name="mid"))
    made = line(net, with_ops("ort_cpu", rows, isa=isa))
    with pytest.raises(HardwareError, match="can saturate on x86 without VNNI"):
        made.plan(8)


def test_products_of_unsigned_activations_on_avx2_are_widened_first_and_not_refused() -> None:
    rows = {"MatMul": [{"in": ["uint8", "uint8"], "out": ["uint8"], "when": {"operands": "activations"}}]}
    net = Net(seed=3)
    x, y = net.input(None, 6, 16), net.input(None, 16, 5, name="y")
    net.output(net.node("MatMul", x, y, name="mid"))
    assert "mid" in line(net, with_ops("ort_cpu", rows, isa="avx2")).plan(8).kernels


def test_sums_of_open_length_are_bounded_by_as_many_terms_as_int32_holds() -> None:
    """A product whose summed axis is open is planned for 32,768 terms; one with other open axes for its own."""
    made = line(attention(), "tflite_int8")
    bounds = []
    for axes in ({1}, {2}):
        graph = replace(made.graph, varying=frozenset({"query_out"}), open_axes={"query_out": frozenset(axes)})
        bounds.append(line(graph, "tflite_int8", samples=made.samples).plan(8).kernels["mid"].bound)
    terms = made.graph.shapes["query_out"][-1]
    assert bounds[0] == made.plan(8).kernels["mid"].bound and bounds[1] * terms == bounds[0] * LONGEST_SUM


def test_sums_of_open_length_that_an_accumulator_cannot_hold_stay_in_float() -> None:
    made = line(attention(), "tflite_int8")
    graph = replace(made.graph, varying=frozenset({"query_out"}))
    spec = replace(hardware("tflite_int8"), accumulator=Accumulator(bits=24))
    kept = line(graph, spec, samples=made.samples).topology
    assert "24 bits do not hold 32,768 terms" in kept.float_nodes["mid"].text
    assert "query" in kept.kernel_of


def test_fixed_point_says_how_it_forms_a_function() -> None:
    """Each library of fixed-point arithmetic has its own way, so a file must name it."""
    said = r"ops\.Softsign runs in integers, but functions\.Softsign does not say how"
    with pytest.raises(HardwareError, match=said):
        with_ops("tflite_int8", {"Softsign": [{"in": ["int8"], "out": ["int8"]}]})
