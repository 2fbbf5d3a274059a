"""What `check` says of the forms that a device's tool chain loads is what comes of writing them."""

from __future__ import annotations

import io

import pytest
import rich.console

from quantpipe.check import check
from quantpipe.check.exact_forms import loaded_forms
from quantpipe.errors import HardwareError
from quantpipe.realize import BACKENDS
from quantpipe.realize.c import runner
from quantpipe.realize.qonnx.qonnx_form import written
from quantpipe.report.compatibility import fit_tables
from tests.ops.line import CONF, Line, Net, hardware, hardware_data, line
from tests.realize.executed import run_c

SHIPPED = sorted(p.stem for p in (CONF / "hardware").glob("*.yaml"))


def small() -> Net:
    net = Net(seed=3)
    x = net.input(None, 2, 8, 8)
    a = net.node("Relu", net.conv(x, 2, 4, 3, 3, pads=[1, 1, 1, 1]))
    b = net.node("Relu", net.node("Add", net.conv(a, 4, 4, 1, 1), a))
    net.output(net.dense(net.node("Flatten", b), 256, 3))
    return net


def holds(made: Line, form: str) -> bool | None:
    """Whether a form computes what the device does; None where this test has no way to tell."""
    plan = made.plan(made.spec.activations.bits)
    if form in BACKENDS:
        try:
            return made.agree(plan, form).differing == 0
        except HardwareError:
            return False
    if form == "c" and runner.compiler() is not None:
        try:
            return run_c(made, plan)["differing"] == 0
        except HardwareError:
            return False
    return written(made.graph, made.topology, plan).inexact is None if form == "qonnx" else None


@pytest.mark.sliced(8)
@pytest.mark.parametrize("name", [n for n in SHIPPED if hardware(n).loads])
def test_each_shipped_file_says_what_comes_of_its_forms(name: str) -> None:
    made = line(small(), name)
    rows = loaded_forms(made.graph, made.topology, made.spec)
    assert [row.form for row in rows] == list(made.spec.loads)
    for row in rows:
        found = holds(made, row.form) if row.written and row.exact is not None else None
        handed_on = row.exact is False and "passed on" in row.why  # in float32, which may come to the same
        assert found is None or found is row.exact or handed_on, (row, found)
        assert row.exact is True or row.why


@pytest.mark.parametrize(("name", "exact"), [("vta", True), ("vitis_dpu", True), ("ort_cpu", False), ("snpe", False)])
def test_qonnx_is_exact_where_scales_are_powers_of_two(name: str, exact: bool) -> None:
    made = line(small(), hardware(name, loads=["qonnx"]))
    (row,) = loaded_forms(made.graph, made.topology, made.spec)
    assert row.exact is exact and holds(made, "qonnx") is exact
    assert exact or "float values are between its integers" in str(row.why)


@pytest.mark.parametrize("name", ["tflite_int8", "tflite_16x8", "tflite_xnnpack"])
def test_tflite_is_exact_where_the_kernels_of_litert_narrow_alike(name: str) -> None:
    made = line(small(), name)
    (row,) = (r for r in loaded_forms(made.graph, made.topology, made.spec) if r.form == "tflite")
    assert row.exact is True, row
    ops = hardware_data(name)["ops"]
    dense = {"in": ops["Gemm"][0]["in"], "out": ops["Gemm"][0]["out"]}
    other = line(
        small(),
        hardware(name, ops=ops | {"Gemm": [{**dense, "requantize": {"kind": "fixed_point", "rounding": "double"}}]}),
    )
    (row,) = (r for r in loaded_forms(other.graph, other.topology, other.spec) if r.form == "tflite")
    assert row.exact is False and "(Gemm) is stated as fixed_point, rounding double" in str(row.why)


@pytest.mark.parametrize(("name", "shown"), [("ascend_acl", True), ("fbgemm", True), ("ort_cpu", False)])
def test_a_tool_chain_that_loads_no_form_is_named(name: str, shown: bool) -> None:
    made = line(small(), name)
    out = io.StringIO()
    rich.console.Console(file=out, width=120).print(
        fit_tables(check(made.graph, made.topology, made.spec, made.schema).as_dict())
    )
    assert ("none known" in out.getvalue()) is shown
