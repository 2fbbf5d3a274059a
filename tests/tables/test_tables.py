"""Tables of which rows are looked up: their integers by definition, the same in every form, and what stays in float."""

from __future__ import annotations

import itertools
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper

import quantpipe
from quantpipe.annotate.choices import bits_of, choice_space
from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.errors import ConfigError, HardwareError, ModelError
from quantpipe.evaluate.agreement import compare_with, session_kinds
from quantpipe.evaluate.compared_models import SimulatedModel
from quantpipe.graph.normalize import expose
from quantpipe.graph.view import Graph
from quantpipe.hardware.cost import COSTS
from quantpipe.pipeline.plan_rows import table_rows
from quantpipe.plan.table_numbers import real_rows, row_table
from quantpipe.realize import BACKENDS
from quantpipe.realize.tflite.write import write_model
from quantpipe.report.text import tables as told
from quantpipe.scoring.chain import PlanDigest
from quantpipe.types import TableLayout, TableLimits, TableNumbers
from tests.ops.line import ArraySamples, Line, hardware, hardware_data, line, load

Array = np.ndarray[Any, Any]
ROWS, COLUMNS = 300, 17
"""An odd number of columns: the last byte of a row of 4 bits holds one integer."""

LIMITS = [
    TableLimits((bits,), offset, TableNumbers(numbers), TableLayout(layout), min_bytes=1024)
    for bits, offset, numbers, layout in itertools.product(
        (8, 4), (False, True), ("float32", "float16"), ("beside", "fused")
    )
    if offset or layout == "beside"
]
NAMES = [f"{m.bits[0]}-{'offset' if m.offset else 'scale'}-{m.numbers}-{m.layout}" for m in LIMITS]


def table(rows: int = ROWS, *shape: int, seed: int = 0) -> Array:
    """Rows of very different size, one of zeros, one of one value, one far from zero."""
    rng = np.random.default_rng(seed)
    shape = shape or (COLUMNS,)
    found = rng.standard_normal((rows, *shape)) * np.exp(2 * rng.standard_normal((rows, *[1] * len(shape))))
    found[3], found[4], found[5] = 0, 0.25, found[5] + 100
    return found.astype(np.float32)


def model(values: Array, *, extra: str = "", opset: int = 17) -> onnx.ModelProto:
    """A table of which rows are looked up, summed with weights, and put through a dense layer."""
    node, width = helper.make_node, int(np.prod(values.shape[1:]))
    rng = np.random.default_rng(1)
    constants = {
        "table": values,
        "w": (rng.standard_normal((width, 8)) / 4).astype(np.float32),
        "b": rng.standard_normal(8).astype(np.float32),
        "axes": np.asarray([1], np.int64),
        "flat": np.asarray([0, 3, -1], np.int64),
    }
    nodes = [
        node("Gather", ["table", "places"], ["rows"], name="lookup"),
        node("Reshape", ["rows", "flat"], ["flatrows"], name="flatten"),
        node("Mul", ["flatrows", "weights"], ["weighed"], name="weigh"),
        node("ReduceSum", ["weighed", "axes"], ["bag"], name="pool", keepdims=0),
        node("Gemm", ["bag", "w", "b"], ["y"], name="fc"),
    ]
    outputs = ["y"]
    if extra == "scaled":  # something else reads the table in real numbers
        nodes += [node("ReduceMax", ["y"], ["most"], name="most", keepdims=0), node("Mul", ["table", "most"], ["z"])]
        outputs = ["z"]
    if extra == "tied":  # the scores of all rows: the table is the weight of a dense layer as well
        nodes += [node("Gemm", ["bag", "table"], ["z"], name="scores", transB=1)]
        outputs += ["z"]
    if extra == "turned":  # as exporters write it: a MatMul by the transposed table
        nodes += [node("Transpose", ["table"], ["columns"], name="turn", perm=[1, 0])]
        nodes += [node("MatMul", ["bag", "columns"], ["z"], name="scores")]
        outputs += ["z"]
    if extra == "copied":  # the file holds the transposed table as another constant
        constants["columns"] = np.ascontiguousarray(values.T)
        nodes += [node("MatMul", ["bag", "columns"], ["z"], name="scores")]
        outputs += ["z"]
    graph = helper.make_graph(
        nodes,
        "bag",
        [
            helper.make_tensor_value_info("places", TensorProto.INT64, ["N", 3]),
            helper.make_tensor_value_info("weights", TensorProto.FLOAT, ["N", 3, 1]),
        ],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def samples(graph: Graph, count: int = 60) -> ArraySamples:
    """Every row near the ends, counted from behind as well, and others by chance."""
    rng = np.random.default_rng(2)
    places = rng.integers(-ROWS, ROWS, (count, 3))
    places[:6, 0] = [0, ROWS - 1, -ROWS, 3, 4, 5]
    return ArraySamples({"places": places, "weights": rng.random((count, 3, 1)).astype(np.float32)})


def bag(limits: TableLimits | None, values: Array | None = None, extra: str = "", **options: Any) -> Line:
    spec = replace(hardware("ort_cpu"), tables=limits)
    graph = load(model(table() if values is None else values, extra=extra), samples)
    return line(graph, spec, samples=samples(graph), **options)


def stored(written: ir.Model) -> dict[str, Array]:
    return {name: np.asarray(v.const_value.numpy()) for name, v in written.graph.initializers.items()}


def by_definition(held: dict[str, Array], limits: TableLimits) -> Array:
    """The real rows of a realized model's constants, number by number in Python."""
    bits, half = limits.bits[0], limits.numbers is TableNumbers.FLOAT16
    if limits.layout is TableLayout.BESIDE:
        integers = held["table_q4" if bits == 4 else "table_q"].astype(np.int64)
        scale = held["table_scale"].astype(np.float32)
        offset = held["table_offset"].astype(np.float32) if limits.offset else np.zeros_like(scale)
        return (integers.astype(np.float32) * scale) + offset
    rows, width = [], 2 if half else 4
    for row in held["table_fused"]:
        octets = row.tobytes()
        scale, offset = struct.unpack("<2e" if half else "<2f", octets[-2 * width :])
        inside = octets[: -2 * width]
        integers = list(inside) if bits == 8 else [n for o in inside for n in (o & 15, o >> 4)]
        product = [np.float32(q) * np.float32(scale) for q in integers[:COLUMNS]]
        rows.append([p + np.float32(offset) for p in product])
    return np.asarray(rows, np.float32)


@pytest.mark.sliced(3)
@pytest.mark.parametrize("limits", LIMITS, ids=NAMES)
def test_rows_are_those_of_the_definition_and_of_the_simulation(limits: TableLimits) -> None:
    made = bag(limits)
    plan = made.plan(8)
    for form in BACKENDS if limits in LIMITS[::3] else ("qdq",):
        found = made.agree(plan, form)
        assert found.differing == 0 and found.elements > 60 * 3 * COLUMNS, form
    realized = made.realize(plan, "qdq")
    real = by_definition(stored(realized.model), limits)
    assert np.array_equal(real, real_rows(plan.tables["table"]))
    (name,) = made.graph.by_name["lookup"].outputs
    rows = made.outputs(expose(realized.model, [name]))[name]
    assert np.array_equal(rows, real[made.samples.inputs["places"]])  # type: ignore[attr-defined]
    off = np.abs(real - table())
    most = np.abs(table()).max(axis=1, keepdims=True)
    steps = plan.tables["table"].scale[:, None] * (0.51 if limits.bits[0] == 8 else 8)
    assert np.all(off <= steps + most * (2e-3 if limits.numbers is TableNumbers.FLOAT16 else 1e-6))


@pytest.mark.parametrize("limits", [LIMITS[0], LIMITS[3]], ids=["beside", "fused"])
def test_a_changed_integer_is_found(limits: TableLimits) -> None:
    made = bag(limits)
    plan = made.plan(8)
    held = plan.tables["table"]
    wrong = held.values.copy()
    wrong[0, 0] ^= 1
    changed = replace(plan, tables={"table": replace(held, values=wrong)})
    realized = made.realize(changed, "qdq")
    simulated = SimulatedModel(made.graph, made.topology, plan, made.simulate(plan), realized=realized)
    kinds = [k for k in session_kinds(realized.model) if k.decides]
    found = compare_with(simulated, realized, made.samples, kinds)
    assert found.differing > 0 and str(found.first_tensor).endswith("(rows)")


@given(
    hnp.arrays(
        np.float32, st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=st.floats(-(2.0**100), 2.0**100, width=32)
    ),
    st.sampled_from(LIMITS),
)
def test_no_value_is_further_off_than_half_a_step(values: Array, limits: TableLimits) -> None:
    if limits.numbers is TableNumbers.FLOAT16:
        values = (values * np.float32(1e-28)).astype(np.float32)
    made = row_table("t", values, limits.bits[0], replace(limits, bits=(8,)))
    half = limits.numbers is TableNumbers.FLOAT16
    for numbers in (made.scale, made.offset) if made.offset is not None else (made.scale,):
        kind = np.float16 if half else np.float32
        assert np.array_equal(numbers, numbers.astype(kind)) and np.isfinite(numbers).all()
    if limits.bits[0] == 8:
        error = np.abs(real_rows(made).astype(np.float64) - values)
        slack = np.abs(values).max(axis=1, keepdims=True) * (2e-3 if half else 1e-6) + 1e-7 * half
        assert np.all(error <= made.scale[:, None].astype(np.float64) * 0.5 + slack + 2.0**-99)


def test_few_bits_take_the_range_of_least_error() -> None:
    values = table()
    made = row_table("t", values, 4, TableLimits((4,)))
    error = np.square(real_rows(made) - values).sum(axis=1)
    for row in range(0, ROWS, 37):
        scale = np.abs(values[row]).max() / 7
        whole = np.clip(np.rint(values[row] / scale), -7, 7) * scale if scale else values[row]
        assert error[row] <= np.square(whole - values[row]).sum() * 1.0001


@pytest.mark.parametrize("worst", [np.inf, -np.inf, np.nan, 1e39])
def test_a_row_that_overflows_is_named(worst: float) -> None:
    values = table()
    with np.errstate(over="ignore"):
        values[7, 2] = worst
    said = r"the table 'table' has 1 of 300 rows .* row 7 holds .*float_nodes=\[lookup\]"
    with pytest.raises(ModelError, match=said):
        _ = bag(LIMITS[0], values).topology


def test_a_row_beyond_half_precision_is_named_and_fits_single() -> None:
    values = table()
    values[9, 0] = 3e7
    limits = next(m for m in LIMITS if m.numbers is TableNumbers.FLOAT16)
    with pytest.raises(ModelError, match=r"row 9 holds 3e\+07"):
        _ = bag(limits, values).topology
    assert bag(LIMITS[0], values).topology.tables


def test_what_is_left_as_it_is() -> None:
    assert bag(None).topology.tables == ()
    assert bag(LIMITS[0], extra="scaled").topology.tables == ()
    assert bag(LIMITS[0], float_nodes=("lookup",)).topology.tables == ()
    assert bag(LIMITS[0], float_ops=("Gather",)).topology.tables == ()
    none = {"table": "none"}
    assert bag(LIMITS[0], constraints=none).topology.tables == ()
    assert bag(replace(LIMITS[0], min_bytes=1 << 20)).topology.tables == ()
    assert bag(LIMITS[0], table(9000, 1)).topology.tables == ()  # a scale takes as many bytes as the number did
    (site,) = bag(LIMITS[0]).topology.tables
    assert site.nodes == ("lookup",) and "stored in integers" in bag(LIMITS[0]).topology.float_nodes["lookup"].text


def test_a_table_that_is_a_weight_as_well_is_stored_for_both() -> None:
    made = bag(LIMITS[0], extra="tied")
    assert [t.tensor for t in made.topology.tables] == ["table"] and "table" in made.topology.weight_of
    plan = made.plan(8)
    assert made.agree(plan, "qdq").differing == 0
    held = stored(made.realize(plan, "qdq").model).values()
    assert not any(v.dtype == np.float32 and v.size == ROWS * COLUMNS for v in held)


@pytest.mark.parametrize("extra", ["tied", "turned", "copied"])
def test_a_table_with_the_numbers_of_a_weight_is_written_once(extra: str) -> None:
    made = bag(LIMITS[0], extra=extra)
    (site,) = made.topology.tables
    assert site.weight is not None
    plan = made.plan(8)
    assert made.agree(plan, "qdq").differing == 0
    held = [v for v in stored(made.realize(plan, "qdq").model).values() if v.size == ROWS * COLUMNS]
    assert [v.dtype for v in held] == [np.int8]
    np.testing.assert_array_equal(plan.tables["table"].scale, plan.weights[site.weight].scale)
    choices = choice_space(made.topology, AnnotateOptions())
    keys = [choice.key for choice in choices]
    assert len({*keys}) == len(keys) and f"bits:{site.weight}" in keys
    assert bits_of(made.topology, {c.key: c.options[0] for c in choices})["table"] == 8


@pytest.mark.parametrize(
    "limits", [replace(LIMITS[0], offset=True), LIMITS[-1], replace(LIMITS[0], bits=(4,))], ids=["offset", "fused", "4"]
)
def test_a_table_that_the_device_stores_otherwise_has_its_own_integers(limits: TableLimits) -> None:
    made = bag(limits, extra="tied")
    assert made.topology.tables[0].weight is None
    choices = choice_space(made.topology, AnnotateOptions())
    assert [c.key for c in choices].count("bits:table") == 1
    assert made.agree(made.plan(8), "qdq").differing == 0


@pytest.mark.sliced(4)
@pytest.mark.parametrize("shape", [(4, 5), (1, 1, 6)])
@pytest.mark.parametrize("limits", [LIMITS[0], LIMITS[-1]], ids=["scale", "fused4"])
def test_tables_of_more_axes(shape: tuple[int, ...], limits: TableLimits) -> None:
    made = bag(limits, table(ROWS, *shape))
    for form in ("qdq", "integer"):
        assert made.agree(made.plan(8), form).differing == 0


def test_bits_are_a_choice_within_what_the_device_reads() -> None:
    both = replace(LIMITS[0], bits=(8, 4))
    made = bag(both)
    choice = next(c for c in choice_space(made.topology, AnnotateOptions()) if c.key == "bits:table")
    assert choice.options == (8, 4) and choice.edges == ("table->lookup:0",)
    few = next(c for c in choice_space(made.topology, AnnotateOptions(min_bits=6)) if c.key == "bits:table")
    assert few.options == (8,)
    held = bag(both, constraints={"table": {"kind": "any", "bits": 5}})
    assert held.topology.tables[0].bits == (8,)
    with pytest.raises(ConfigError, match="must have at least 9 bits, and ort_cpu gives it 8"):
        _ = bag(both, constraints={"table": {"kind": "any", "bits": 9}}).topology
    first = {c.key: c.options[0] for c in choice_space(made.topology, AnnotateOptions())}
    wide, narrow = (made.planner.plan(made.table.strategy(first | {"bits:table": b})) for b in (8, 4))
    digest = PlanDigest()
    assert digest.of(wide, made.topology, ()) != digest.of(narrow, made.topology, ())
    others = dict.fromkeys((*made.topology.weight_of, *made.topology.group_of), 8)
    costs = [COSTS["stored_bytes"](made.topology, made.graph, made.spec, others | {"table": b}) for b in (8, 4)]
    assert costs[0] - costs[1] == ROWS * COLUMNS / 2
    assert made.agree(narrow, "qdq").differing == 0


def test_the_report_says_what_it_comes_to() -> None:
    made = bag(LIMITS[0])
    (row,) = table_rows(made.graph, made.plan(8))
    real, held = table(), made.plan(8).tables["table"]
    noise = np.square(real.astype(np.float64) - held.values * held.scale[:, None]).sum()
    assert row["sqnr_db"] == pytest.approx(10 * np.log10(np.square(real.astype(np.float64)).sum() / noise), abs=1e-3)
    assert row["float_bytes"] == 4 * ROWS * COLUMNS and row["bytes"] == ROWS * (COLUMNS + 4)
    assert told([row]) is not None and "1 table of rows in 8 bits" in str(told([row]))
    assert told([]) is None


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("bits", 6, r"tables.bits is 6; legal are 8, 4, \[8, 4\] and \[4, 8\]"),
        ("layout", "fused", "legal is offset: true, or layout `beside`"),
        ("numbers", "float64", "tables.numbers is 'float64'.*legal are float32, float16"),
        ("min_bytes", -1, "tables.min_bytes"),
        ("rows", 1, "tables.rows is not a field"),
    ],
)
def test_a_mistake_in_a_hardware_file_is_named(field: str, value: object, said: str) -> None:
    with pytest.raises(HardwareError, match=said):
        hardware("ort_cpu", tables={field: value})


def test_forms_without_such_tables_refuse_them() -> None:
    made = bag(LIMITS[0])
    with pytest.raises(HardwareError, match=r"hardware\.tables=null"):
        write_model(made.graph, made.topology, made.plan(8))


@pytest.mark.parametrize("tables", [{"bits": 8}, {"bits": 4}, {"bits": 8, "offset": True, "layout": "fused"}])
@pytest.mark.program
def test_the_certificate_of_a_run_holds(tmp_path: Path, tables: dict[str, Any]) -> None:
    given = samples(bag(None).graph, 200)
    held = quantpipe.SampleSets(
        calibrate={k: v[:100] for k, v in given.inputs.items()}, evaluate={k: v[100:] for k, v in given.inputs.items()}
    )
    device = hardware_data("ort_cpu") | {"tables": tables | {"min_bytes": 1024}}
    result = quantpipe.quantize(model(table()), held, device, recover="none", folder=tmp_path)
    assert result.report["tables"] and result.report["agreement"]["differing"] == 0
    assert quantpipe.verify(tmp_path).wrong is None
