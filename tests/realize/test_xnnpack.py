"""Hardware `tflite_xnnpack` against LiteRT's default kernels: every stored tensor, element by element, op by op."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantpipe.errors import HardwareError
from quantpipe.evaluate.compared_models import SimulatedModel
from quantpipe.evaluate.forms_agreement import WrittenBeside, executed
from quantpipe.lowering import Rendered
from quantpipe.realize.tflite.form import TfliteForm, kernels_of
from quantpipe.realize.tflite.run import LiteRTKernels
from quantpipe.types import FixedRounding, FormRow, QuantPlan, Sum
from tests.ops.cases import CASES
from tests.ops.line import Line, Net, hardware, line, normal_samples
from tests.ops.test_every_op import line_of
from tests.realize.executed import MADE
from tests.realize.test_tflite import detector, small

DEVICE = "tflite_xnnpack"


pytestmark = pytest.mark.usefixtures("litert_here")


def row_of(made: Line, plan: QuantPlan, folder: Path) -> FormRow:
    """The form's row in the report, as a run makes it."""
    form = TfliteForm("tflite_integer_io", "model_integer_io.tflite", whole=True)
    written = form.write(made.graph, made.topology, plan, MADE)
    (folder / form.file).write_bytes(written.files[form.file])
    runner = form.open(folder, made.graph, made.topology, plan)
    simulation = made.simulate(plan)
    held = Rendered(simulation.rendered.model, {t: t for t in runner.tensors})
    simulated = SimulatedModel(made.graph, made.topology, plan, simulation, realized=held)
    beside = WrittenBeside(form.name, form.file, 0, 0.0, facts=written.facts)
    return executed(beside, runner, simulated, made.samples, timed=False)


@pytest.mark.sliced(60)
@pytest.mark.parametrize("name", CASES)
def test_every_op_computes_what_was_searched(name: str, tmp_path: Path) -> None:
    """With bits of all widths, and with scales at which many accumulators are ties."""
    made = line_of(name, DEVICE, "auto")
    for plan in (made.plan((8, 7, 5, 4), seed=5), made.ties()):
        try:
            found = row_of(made, plan, tmp_path)
        except HardwareError:
            return  # what no .tflite file holds is tested with the reference kernels
        assert found["elements"] and found["differing"] == 0, f"{found['differing']}, {found['first_tensor']}"


@pytest.mark.grid
def test_a_detector(tmp_path: Path) -> None:
    """With a Softmax, which LiteRT's default kernel forms in float32: it stays in float there."""
    graph = detector()
    made = line(graph, DEVICE, samples=normal_samples(graph, 4))
    found = row_of(made, made.plan(), tmp_path)
    assert found["elements"] > 200_000 and found["differing"] == 0, found["first_tensor"]


@pytest.mark.sliced(2)
@pytest.mark.parametrize(("device", "other"), [(DEVICE, "reference"), ("tflite_int8", "xnnpack")])
def test_the_other_kernels_are_counted_and_decide_nothing(device: str, other: str, tmp_path: Path) -> None:
    made = line(small(), device)
    found = row_of(made, made.plan(), tmp_path)
    assert found["differing"] == 0 and found["elements"]
    counted = found["facts"][f"differing_{other}"]
    assert isinstance(counted, int) and 0 < counted < found["elements"]


def test_each_file_is_compared_by_the_kernels_of_its_device() -> None:
    assert kernels_of(line(small(), DEVICE).plan()) is LiteRTKernels.XNNPACK
    assert kernels_of(line(small(), "tflite_int8").plan()) is LiteRTKernels.REFERENCE


FAULTS: dict[str, tuple[str, Any]] = {
    "conv": ("Conv", {"kind": "float_multiplier", "rounding": "half_up"}),
    "add": ("Add", {"kind": "fixed_point", "rounding": "double"}),
    "mean": ("GlobalAveragePool", {"kind": "float_multiplier", "zero": "last"}),
}


@pytest.mark.sliced(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_arithmetic_of_one_kernel_is_found(fault: str, tmp_path: Path) -> None:
    op, how = FAULTS[fault]
    ops = dict(hardware_ops())
    ops[op] = [{"in": ["int8", "int8"] if op == "Conv" else ["int8"], "out": ["int8"], "requantize": how}]
    net = Net(seed=11)
    a = net.conv(net.input(None, 3, 8, 8), 3, 32, 3, 3, pads=[1, 1, 1, 1])
    b = net.node("Add", a, net.conv(a, 32, 32, 1, 1))
    net.output(net.node("GlobalAveragePool", b))
    made = line(net, hardware(DEVICE, ops=ops))
    plan = made.ties()
    assert row_of(made, plan, tmp_path)["differing"]
    own = line(net, DEVICE)
    assert row_of(own, own.ties(), tmp_path)["differing"] == 0


def hardware_ops() -> dict[str, Any]:
    from tests.ops.line import hardware_data

    return dict(hardware_data(DEVICE)["ops"])


def test_operands_beyond_what_the_kernel_takes_are_refused() -> None:
    net = Net(seed=2)
    x = net.input(None, 4)
    faint = net.node("Gemm", x, net.floats(4, 4, scale=1e-6), transB=1)
    net.output(net.node("Add", faint, net.dense(x, 4, 4)))
    made = line(net, DEVICE)
    with pytest.raises(HardwareError, match="legal are stored operands at"):
        made.plan()


@pytest.mark.parametrize("op", ["Conv", "Mul"])
def test_the_way_of_additions_is_legal_there_alone(op: str) -> None:
    own = {"in": ["int8"], "out": ["int8"], "requantize": {"kind": "fixed_point", "rounding": "common_shift"}}
    with pytest.raises(HardwareError, match=rf"ops\.{op}\.requantize\.rounding"):
        hardware(DEVICE, ops={op: [own]})
    with pytest.raises(HardwareError, match="of float_multiplier alone"):
        hardware(DEVICE, requantize={"kind": "fixed_point", "zero": "first"})


@given(st.integers(-128, 127), st.integers(-128, 127), st.integers(0, 3))
def test_a_sum_is_that_of_plain_integers(a: int, b: int, seed: int) -> None:
    """The plan's numbers by the formula, in fractions."""
    plan, zero = planned(seed)
    terms = plan.terms
    assert plan.whole and plan.output is not None and plan.output.fixed is not None
    assert plan.output.rounding is FixedRounding.SINGLE
    wholes = [Fraction(int(t.fixed.multiplier)) * Fraction(2) ** int(t.fixed.shift - 31) for t in terms if t.fixed]
    assert all(w.denominator == 1 and w < 1 << 21 for w in wholes) and max(wholes) >= 1 << 20
    shift = 1 - int(plan.output.fixed.shift)
    ratios = [np.float32(np.float32(t.scale) / zero[1]) for t in terms]
    assert [int(w) for w in wholes] == [round(Fraction(float(r)) * 2**shift) for r in ratios]
    total = sum(int(w) * (q - t.zero_point) for w, q, t in zip(wholes, (a, b), terms, strict=True))
    real = sum(float(r) * (q - t.zero_point) for r, q, t in zip(ratios, (a, b), terms, strict=True))
    assert abs(total / 2**shift - real) < 2e-3


def planned(seed: int) -> tuple[Sum, tuple[int, np.float32]]:
    if seed not in KEPT:
        made = line(small(seed), DEVICE)
        plan = made.plan()
        (found,) = [k for k in plan.kernels.values() if isinstance(k, Sum)]
        out = plan.quantizers[next(k.output for k in made.topology.kernels if k.node == found.node)]
        KEPT[seed] = found, (out.zero_point, np.float32(out.scale))
    return KEPT[seed]


KEPT: dict[int, tuple[Sum, tuple[int, np.float32]]] = {}
