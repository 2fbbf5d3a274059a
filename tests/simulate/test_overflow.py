"""Accumulators that wrap or saturate: both graphs hold what an int64 interpreter says is left, and the counters count
it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantpipe.errors import HardwareError
from quantpipe.evaluate.overflow import overflow_report
from quantpipe.realize.c import runner
from quantpipe.types import QuantPlan
from quantpipe.verify import verify_folder
from tests.ops.line import ArraySamples, Line, Net, hardware, line
from tests.realize.executed import run_c
from tests.simulate.interpreter import Interpreter
from tests.simulate.test_against_interpreter import check
from tests.verify.folders import constants, with_constant, write

BEHAVIOURS = ("wrap", "saturate")


def int16(overflow: str = "wrap", **changes: Any) -> Any:
    return hardware("hago_int16_acc", accumulator={"dtype": "int16", "overflow": overflow}, **changes)


def residual() -> Net:
    """Weights and inputs of one magnitude: sums of 45 products reach 22 times 2^15."""
    net = Net(seed=11)
    x = net.input(None, 5, 6, 6)
    front = net.node("Conv", x, net.signs(6, 5, 3, 3, scale=0.3), net.floats(6), pads=[1, 1, 1, 1], name="front")
    front = net.node("Relu", front)
    arm = net.node("Conv", front, net.signs(6, 6, 1, 1, scale=0.4), name="arm")
    net.output(net.node("Conv", net.node("Add", arm, front, name="join"), net.signs(2, 6, 1, 1, scale=0.2), name="end"))
    return net


def signs_samples(made: Line, count: int = 4) -> ArraySamples:
    rng = np.random.default_rng(5)
    shapes = {i.name: (count, *[d or 1 for d in i.shape[1:]]) for i in made.graph.inputs}
    return ArraySamples({n: np.where(rng.random(s) < 0.3, -1.0, 1.0).astype(np.float32) for n, s in shapes.items()})


def with_signs(net: Net, spec: Any) -> Line:
    made = line(net, spec)
    return line(made.graph, spec, samples=signs_samples(made))


def truth_of(made: Line, plan: QuantPlan) -> Mapping[str, int]:
    """Overflowing elements per tensor over all samples."""
    total: dict[str, int] = {}
    for batch in made.samples.batches(made.graph.batch_size):
        for tensor, count in Interpreter(made.graph, made.topology, plan).run(batch.inputs).overflowed.items():
            total[tensor] = total.get(tensor, 0) + count
    return total


def counted(made: Line, plan: QuantPlan) -> dict[str, int]:
    report = overflow_report(made.graph, made.topology, plan, made.simulate(plan), samples=made.samples)
    assert all(e["share"] == e["overflowed"] / e["elements"] for e in report)
    assert all(e["bound"] >= 1 << (int(e["accumulator"].removeprefix("int")) - 1) for e in report)
    return {e["tensor"]: e["overflowed"] for e in report}


@pytest.mark.parametrize("overflow", BEHAVIOURS)
@pytest.mark.parametrize("bits", [8, 7, 5])
def test_sixteen_bits(overflow: str, bits: int) -> None:
    made = with_signs(residual(), int16(overflow))
    plan = made.plan(bits)
    check(made, plan, "integer")
    assert counted(made, plan) == truth_of(made, plan)
    assert made.agree(plan, "integer").differing == 0


def test_overflow_happens_at_eight_bits_and_not_at_four() -> None:
    made = with_signs(residual(), int16())
    assert sum(counted(made, made.plan(8)).values()) > 100
    assert sum(counted(made, made.plan(4)).values()) == 0


@pytest.mark.parametrize("overflow", BEHAVIOURS)
def test_stored_results_overflow_before_they_are_narrowed(overflow: str) -> None:
    """A device with int16 accumulators that stores int8 behind each convolution."""
    ops = {"Conv": [{"in": ["int8", "int8"], "out": ["int8"]}], "Add": [{"in": ["int8"], "out": ["int8"]}]}
    ops |= {"Relu": [{"in": ["int8"], "out": ["int8"]}]}
    made = with_signs(residual(), int16(overflow, ops=ops))
    assert not made.topology.float_nodes
    plan = made.plan(8)
    check(made, plan, "integer")
    found = counted(made, plan)
    assert found == truth_of(made, plan) and sum(found.values()) > 100


def test_a_device_that_never_overflows_refuses_the_plan() -> None:
    made = with_signs(residual(), int16("never"))
    with pytest.raises(HardwareError, match=r"front: its sums may reach \d+, and the int16 accumulator holds 32767"):
        made.plan(8)
    assert made.plan((3,)).kernels["front"].limit is None


def long_dense() -> Net:
    """200 000 products of up to 127·127: beyond int32."""
    net = Net(seed=2)
    x = net.input(None, 200_000)
    weight = np.where(np.arange(400_000) % 7 < 6, 0.5, -0.5).reshape(200_000, 2).astype(np.float32)
    net.output(net.node("MatMul", x, net.constant(weight), name="dense"))
    return net


@pytest.mark.parametrize("overflow", BEHAVIOURS)
def test_thirty_two_bits(overflow: str) -> None:
    spec = hardware("vta", accumulator={"dtype": "int32", "overflow": overflow})
    made = line(long_dense(), spec)
    ones = np.ones((3, 200_000), np.float32)
    ones[1] = np.where(np.arange(200_000) % 7 < 6, 1.0, -1.0)  # the sign of each weight of the first column
    ones[2] = -ones[1]
    made = line(made.graph, spec, samples=ArraySamples({"x": ones}))
    plan = made.plan(8)
    check(made, plan, "integer")
    found = counted(made, plan) if overflow == "wrap" else truth_of(made, plan)
    assert found == truth_of(made, plan) and sum(found.values()) >= 2


def test_a_bias_that_the_accumulator_cannot_hold_raises_the_scale() -> None:
    net = Net(seed=1)
    bias = net.constant(np.float32([50.0, -80.0]))
    net.output(net.node("Conv", net.input(None, 3, 4, 4), net.floats(2, 3, 1, 1, scale=0.01), bias, name="c"))
    made = line(net, int16())
    plan = made.plan(8)
    assert plan.raised and np.abs(plan.kernels["c"].bias).max() <= 32767
    assert made.agree(plan, "integer").differing == 0


WIDTHS = (11, 13, 15, 17, 18)
"""Of sums: no type has these widths."""


@pytest.mark.sliced(6)
@pytest.mark.parametrize("overflow", BEHAVIOURS)
@pytest.mark.parametrize("bits", WIDTHS)
def test_accumulators_of_any_width(overflow: str, bits: int, tmp_path: Path) -> None:
    """Both graphs hold what the interpreter says is left, and the checker proves it from the files."""
    accumulator = {"bits": bits, "overflow": overflow}
    made = with_signs(residual(), hardware("hago_int16_acc", accumulator=accumulator))
    plan = made.plan(8)
    check(made, plan, "integer")
    found = counted(made, plan)
    assert found == truth_of(made, plan) and (bits > 15 or sum(found.values()) > 0)
    limits = [k.limit for k in plan.kernels.values() if getattr(k, "limit", None) is not None]
    assert limits and all(limit.label == f"int{bits}" for limit in limits)
    assert made.agree(plan, "integer").differing == 0
    proved = verify_folder(write(made, plan, "integer", tmp_path, accumulator=accumulator))
    assert proved.wrong is None and proved.proved == proved.kernels


def test_a_wrap_at_another_bit_is_found(tmp_path: Path) -> None:
    """Each constant of the wrap in turn."""
    accumulator = {"bits": 18, "overflow": "wrap"}
    made = with_signs(residual(), hardware("hago_int16_acc", accumulator=accumulator))
    plan = made.plan(8)
    path = write(made, plan, "integer", tmp_path, accumulator=accumulator)
    names = [n for n, _ in constants(path) if n.endswith(("/turn", "/half"))]
    assert len(names) >= 2
    for name in names:
        root = write(made, plan, "integer", tmp_path / name.replace("/", "_"), accumulator=accumulator)
        with_constant(root, name, np.int64(2 * dict(constants(root))[name]))
        assert "nothing wraps its sums in int18" in str(verify_folder(root).wrong)


def test_plans_respect_the_width_they_may_not_leave() -> None:
    made = with_signs(residual(), hardware("hago_int16_acc", accumulator={"bits": 18, "overflow": "never"}))
    with pytest.raises(
        HardwareError,
        match=r"front: its sums may reach \d+, and the int18 accumulator holds 131071.*`accumulator: int32` on the op",
    ):
        made.plan(8)
    plan = made.plan(5)
    assert all(getattr(k, "limit", None) is None and getattr(k, "bound", 0) <= 131071 for k in plan.kernels.values())


def test_an_accumulator_of_forty_bits_holds_what_thirty_two_do_not() -> None:
    spec = hardware("vta", accumulator={"bits": 40, "overflow": "never"})
    made = line(line(long_dense(), spec).graph, spec, samples=ArraySamples({"x": np.ones((2, 200_000), np.float32)}))
    plan = made.plan(8)
    assert plan.kernels["dense"].bound > 2**31 and spec.accumulator.dtype.bits == 64
    check(made, plan, "integer")


@pytest.mark.skipif(runner.compiler() is None, reason=runner.missing_compiler())
@pytest.mark.parametrize("overflow", BEHAVIOURS)
def test_the_c_form_has_the_same_sums(overflow: str) -> None:
    ops = {"Conv": [{"in": ["int8", "int8"], "out": ["int8"]}], "Add": [{"in": ["int8"], "out": ["int8"]}]}
    ops |= {"Relu": [{"in": ["int8"], "out": ["int8"]}]}
    spec = hardware("hago_int16_acc", accumulator={"bits": 14, "overflow": overflow}, ops=ops)
    made = with_signs(residual(), spec)
    plan = made.plan(8)
    assert sum(truth_of(made, plan).values()) > 0
    assert run_c(made, plan)["differing"] == 0
