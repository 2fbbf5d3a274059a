"""Real numbers into 16-bit files: halves at the ends and behind nodes in float, ratios that LiteRT makes in float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quantpipe import intmath
from quantpipe.evaluate.compared_models import SimulatedModel
from quantpipe.evaluate.forms_agreement import WrittenBeside, executed
from quantpipe.lowering import Rendered
from quantpipe.realize.tflite.run import TfliteModel, TfliteRunner
from quantpipe.realize.tflite.write import write_model
from quantpipe.types import FormRow, QuantPlan
from tests.ops.line import ArraySamples, Line, Net, line

pytestmark = pytest.mark.usefixtures("litert_here")
SHAPE = (24, 4, 12, 12)


def drawn(seed: int = 0) -> ArraySamples:
    return ArraySamples({"x": np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)})


def row_of(made: Line, plan: QuantPlan, *, written_of: QuantPlan | None = None, whole: bool = False) -> FormRow:
    """The file's row in the report; it is written of another plan where one is given."""
    content = write_model(made.graph, made.topology, written_of or plan, whole=whole).content
    runner = TfliteRunner(TfliteModel(content, "memory"))
    simulation = made.simulate(plan)
    held = Rendered(simulation.rendered.model, {t: t for t in runner.tensors})
    simulated = SimulatedModel(made.graph, made.topology, plan, simulation, realized=held)
    return executed(WrittenBeside("tflite", "m.tflite", 0, 0.0), runner, simulated, made.samples, timed=False)


def plain(net: Net) -> str:
    return net.conv(net.input(None, 4, 12, 12), 4, 4, 1, 1, name="front")


def ties(made: Line, plan: QuantPlan) -> int:
    steps = made.samples.inputs["x"] / np.float32(plan.quantizers["x"].scale)
    return int(np.count_nonzero(np.abs(steps - np.rint(steps)) == 0.5))


@pytest.mark.parametrize("device", ["tflite_16x8", "tflite_int8"])
def test_inputs_between_two_steps(device: str) -> None:
    net = Net(seed=1)
    net.output(plain(net))
    made = line(net, device, samples=drawn())
    plan = made.plan(16 if device == "tflite_16x8" else 8)
    row = row_of(made, plan)
    assert row["differing"] == 0 and row["elements"]
    assert row["facts"].get("input_ties", 0) == ties(made, plan)
    assert (ties(made, plan) > 3) == (device == "tflite_16x8")
    scale = plan.quantizers["x"].scale
    other = replace(plan.quantizers["x"], scale=np.float32(scale * np.float32(1.00001)))
    spoilt = row_of(made, plan, written_of=replace(plan, quantizers={**plan.quantizers, "x": other}))
    assert spoilt["differing"], "a scale that is off by a hundred-thousandth is seen"


def product(net: Net) -> str:
    return net.node("Mul", plain(net), net.conv("x", 4, 4, 1, 1, name="other"), name="last")


def leaky(net: Net) -> str:
    return net.node("LeakyRelu", plain(net), alpha=0.1, name="last")


@pytest.mark.parametrize("make", [product, leaky], ids=["product", "leaky"])
def test_ratios_are_made_in_float32(make: Any) -> None:
    """In float64 some accumulators of so many lie on the other side of a half, at one of these scales at least."""
    nets = [Net(seed=seed) for seed in range(6)]
    for net in nets:
        net.output(make(net))
    lines = [line(net, "tflite_16x8", samples=drawn(seed)) for seed, net in enumerate(nets)]
    assert sum(row_of(made, made.plan(16))["elements"] or 0 for made in lines) > 100_000
    assert [row_of(made, made.plan(16), whole=True)["differing"] for made in lines] == [0] * len(lines)


def test_the_ratio_of_a_product_is_that_of_float32() -> None:
    net = Net(seed=3)
    net.output(product(net))
    made = line(net, "tflite_16x8", samples=drawn())
    plan = made.plan(16)
    a, b, out = (np.float32(plan.quantizers[t].scale) for t in ("front_out", "other_out", "last_out"))
    fixed = plan.kernels["last"].output.fixed  # type: ignore[union-attr]
    single, double = float(np.float32(a * b) / out), float(a) * float(b) / float(out)
    assert (int(fixed.multiplier), int(fixed.shift)) == intmath.quantize_multiplier(single)
    assert intmath.quantize_multiplier(single) != intmath.quantize_multiplier(double)


def test_steps_behind_nodes_in_float() -> None:
    """What a node in float gives may lie exactly between two steps: LiteRT takes the one, the plan the other."""
    behind = 0
    for seed in range(4):
        net = Net(seed=seed)
        x = net.node("Sigmoid", plain(net), name="float")
        net.output(net.conv(net.node("Relu", x), 4, 4, 1, 1, name="last"))
        made = line(net, "tflite_16x8", samples=drawn(seed), float_nodes=("float",))
        row = row_of(made, made.plan(16))
        assert row["differing"] == 0
        behind += int(row["facts"].get("behind_float", 0))
    assert behind > 0
