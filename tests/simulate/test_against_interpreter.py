"""The integers of the simulated and the realized graph are those of an interpreter that knows nothing of either."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import expose
from quantpipe.graph.session_options import INT8_KERNELS
from quantpipe.simulate.simulator import bind
from quantpipe.types import QuantPlan
from tests.ops.cases import CASES
from tests.ops.line import ArraySamples, Line, Net, hardware, hardware_data, line, normal_samples
from tests.ops.test_every_op import graph_of, line_of
from tests.simulate.interpreter import Interpreter

TARGETS = [("ort_cpu", "qdq"), ("ort_cpu", "qoperator"), ("ort_cpu", "integer"), ("vta", "integer")]
NETS = (
    "conv_plain", "conv_asymmetric_pads", "conv_strides", "conv_dilations", "conv_grouped", "conv_depthwise",
    "conv_chain", "gemm_trans", "gemm_plain", "gemm_row_bias", "matmul_matrix", "add_activations", "add_input",
    "add_same_twice", "add_broadcast_activation", "add_channel", "add_scalar", "residual_block", "residual_projection",
    "max_pool", "global_average_pool", "relu_standalone", "clip_standalone", "clip_both", "clamps_in_a_row",
    "tied_weights", "wide_sums", "mul_activations", "mul_channel",
)  # fmt: skip


def check(made: Line, plan: QuantPlan, backend: str) -> None:
    """Every integer tensor of both graphs equals the interpreter's, element by element."""
    simulation, realized = made.simulate(plan), made.realize(plan, backend)
    sim_names, real_names = simulation.rendered.integers, realized.integers
    model = bind(simulation.rendered.model, simulation.weights)
    sim_session = Session(expose(model, list(sim_names.values())))
    real_session = Session(expose(realized.model, list(real_names.values())), options=INT8_KERNELS)
    batch = next(iter(made.samples.batches(6)))
    truth = Interpreter(made.graph, made.topology, plan).run(batch.inputs)
    simulated = sim_session.run({**batch.inputs, **simulation.scalars})
    real = real_session.run(batch.inputs)
    compared = 0
    for tensor, name in {**dict.fromkeys(real_names), **dict.fromkeys(sim_names)}.items():
        del name
        base = tensor.removesuffix(" (accumulator)")
        expected = truth.raw[base] if base != tensor else truth.q(tensor)
        zero = 0 if base != tensor else plan.quantizers[tensor].zero_point
        for found in (
            simulated[sim_names[tensor]] + zero if tensor in sim_names else None,
            real[real_names[tensor]] if tensor in real_names else None,
        ):
            if found is not None:
                compared += 1
                np.testing.assert_array_equal(np.asarray(found, np.float64), expected.astype(np.float64), tensor)
    assert compared >= len(made.topology.kernels)


@pytest.mark.sliced(54)
@pytest.mark.parametrize(("spec", "backend"), TARGETS)
@pytest.mark.parametrize("name", NETS)
def test_nets(name: str, spec: str, backend: str) -> None:
    assert name in CASES
    made = line_of(name, spec, "auto")
    if made.topology.float_nodes:
        assert {why.text for why in made.topology.float_nodes.values()} <= {"vta does not declare Mul"}
        pytest.skip("a float island: the interpreter knows integers only")
    check(made, made.ties((8, 7, 5, 4), seed=5), backend)
    check(made, made.plan((8, 6), seed=6), backend)


ROUNDINGS = {
    "tflite double": ("tflite_int8", {}),
    "cmsis single": ("cmsis_nn", {}),
    "whole multipliers": ("tflite_xnnpack", {}),
    "sums of 64 bits": ("tflite_16x8", {}),
    **{
        f"multiplier of {bits} bits {how}": (
            "cmsis_nn",
            {"requantize": {"kind": "fixed_point", "rounding": how, "multiplier_bits": bits}},
        )
        for how, bits in (("double", 10), ("single", 15), ("single_away", 7))
    },
    **{
        f"multiplier {how}": ("ort_cpu", {"requantize": {"kind": "float_multiplier", "rounding": how}})
        for how in ("half_up", "half_away", "floor")
    },
    **{
        f"shift {how}": ("vta", {"requantize": {"kind": "shift", "rounding": how}})
        for how in ("half_even", "half_away", "floor")
    },
    "raw arms, multiplier": ("ort_cpu", {"add_inputs": "residual_only"}),
    "raw arms, fixed point": ("tflite_int8", {"add_inputs": "residual_only"}),
}


def own_kernels() -> dict[str, Any]:
    """Each kernel of the device narrows in another way."""
    ways = {
        "Conv": {"kind": "fixed_point", "rounding": "single"},
        "Gemm": {"kind": "fixed_point", "rounding": "double"},
        "Add": {"kind": "fixed_point", "rounding": "single"},
        "Mul": {"kind": "float_multiplier", "rounding": "half_up"},
        "GlobalAveragePool": {"kind": "float_multiplier", "rounding": "half_even"},
    }
    ops = hardware_data("tflite_int8")["ops"]
    return {"ops": ops | {op: [{**ops[op][0], "requantize": way}] for op, way in ways.items()}}


ROUNDINGS["own kernels"] = ("tflite_int8", own_kernels())
FEW = ("conv_asymmetric_pads", "gemm_plain", "residual_projection", "wide_sums",
       "add_broadcast_activation", "global_average_pool", "mul_activations", "add_input")  # fmt: skip


@pytest.mark.sliced(48)
@pytest.mark.parametrize("kind", ROUNDINGS)
@pytest.mark.parametrize("name", FEW)
def test_every_requantize_kind_and_rounding(name: str, kind: str) -> None:
    """In the integer form; most accumulators of the second plan sit on ties."""
    shipped, changes = ROUNDINGS[kind]
    made = line(graph_of(name), hardware(shipped, **changes))
    if made.topology.float_nodes:
        assert {why.text for why in made.topology.float_nodes.values()} <= {"vta does not declare Mul"}
        pytest.skip("a float island: the interpreter knows integers only")
    check(made, made.plan((8, 6), seed=6), "integer")
    check(made, made.ties((8, 7, 5, 4), seed=5), "integer")


@st.composite
def nets(draw: st.DrawFn) -> tuple[Net, dict[str, Any]]:
    """Conv, a residual Conv, a sum, a global average, a dense layer; sizes, strides and clamps as drawn."""
    net = Net(seed=draw(st.integers(0, 1 << 16)))
    side, channels = draw(st.integers(4, 7)), draw(st.integers(1, 5))
    scale = 2.0 ** draw(st.integers(-6, 6))
    x = net.input(None, 2, side, side)
    front = net.conv(x, 2, channels, 3, 3, pads=[1, 1, 1, 1], bias=draw(st.booleans()))
    if draw(st.booleans()):
        front = net.node("Relu", front)
    depthwise = draw(st.booleans())
    arm = net.conv(front, channels, channels, 3, 1, pads=[1, 0, 1, 0], group=channels if depthwise else 1)
    operands = (front, arm) if draw(st.booleans()) else (arm, front)
    joined = net.node("Add", *operands)
    low = draw(st.sampled_from([None, 0.0, -0.3]))
    if low is not None:
        joined = net.node("Clip", joined, net.constant(np.float32(low)), net.constant(np.float32(1.1 * scale)))
    pooled = net.node("Flatten", net.node("GlobalAveragePool", joined))
    net.output(net.dense(pooled, channels, 3, trans=draw(st.integers(0, 1))))
    how = {"seed": draw(st.integers(0, 99)), "bits": draw(st.sampled_from([8, (8, 6), (7, 5, 4), (4, 2)]))}
    return net, {"scale": scale, "ties": draw(st.booleans()), **how}


@pytest.mark.sliced(12)
@pytest.mark.parametrize(
    ("spec", "backend"),
    [("ort_cpu", "qdq"), ("ort_cpu", "integer"), ("vta", "integer"), ("tflite_int8", "integer")],
)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(drawn=nets())
def test_drawn_nets(spec: str, backend: str, drawn: tuple[Net, dict[str, Any]]) -> None:
    net, how = drawn
    made = line(net, spec, min_bits=2)
    few = normal_samples(made.graph, 4).inputs
    scaled = ArraySamples({k: (v * how["scale"]).astype(np.float32) for k, v in few.items()})
    made = line(made.graph, spec, samples=scaled, min_bits=2)
    if any("Average" in made.graph.by_name[n].op for n in made.topology.float_nodes):
        return  # the map is no power of two, so VTA averages in float: an island
    plan = made.ties(how["bits"], how["seed"]) if how["ties"] else made.plan(how["bits"], how["seed"])
    check(made, plan, backend)
