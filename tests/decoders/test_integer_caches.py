"""Caches in integers at the ports of a file: its present is the next past, and steps are the prefill."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from quantpipe.app.compose import composed
from quantpipe.errors import DataError, HardwareError
from quantpipe.evaluate.in_steps import steps_and_prefill, steps_warning
from quantpipe.evaluate.inside_models import EvaluatedModel
from quantpipe.evaluate.kernels_in_steps import kernels_in_steps
from quantpipe.graph.execute import Session
from quantpipe.graph.length_limits import KEY, stated_lengths
from quantpipe.graph.stored_ports import stored_ports
from quantpipe.hardware.load import load_hardware
from quantpipe.lowering import Rendered
from quantpipe.oprules.facts import LONGEST_SUM
from quantpipe.realize.open_lengths import length_limits, longest_open_sum
from quantpipe.types import HardwareSpec
from quantpipe.verify.check import verify_folder
from tests.decoders import nets
from tests.decoders.lines import decoder, line, past_of, pieces
from tests.decoders.stepping import STATE, Plain, stated
from tests.ops.line import Line, hardware
from tests.verify.folders import changed, refreshed, write

TYPES = {"npu_w8a16": "int8", "ort_cpu": "uint8", "qnn_htp": "uint8", "ethos_u": "int8", "esp32p4": "int8"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("decoders")


@pytest.fixture(scope="module")
def lines(folder: Path) -> Any:
    """Return a decoder on a device, made once."""
    graphs = {style: decoder(getattr(nets, style)(), folder) for style in ("standard", "runtime")}
    made: dict[tuple[str, str], Line] = {}

    def find(name: str, style: str = "standard", spec: HardwareSpec | None = None) -> Line:
        if spec is not None:
            return line(graphs[style], spec, folder)
        if (name, style) not in made:
            made[name, style] = line(graphs[style], hardware(name), folder)
        return made[name, style]

    return find


def realized(here: Line, form: str | None = None) -> Rendered:
    return here.realize(here.plan(16), form or here.spec.realize)


def proto(model: ir.Model) -> onnx.ModelProto:
    return ir.to_proto(model)


@pytest.mark.parametrize("name", ["npu_w8a16", "qnn_htp"])
def test_an_attention_over_any_number_of_positions_runs_in_integers(name: str, lines: Any) -> None:
    here = lines(name)
    kept = {n.op for n in here.graph.nodes if n.name in here.topology.float_nodes}
    assert {"MatMul", "Softmax"}.isdisjoint(kept)
    products = [n for n in here.graph.nodes if n.op == "MatMul" and not here.graph.is_constant(n.inputs[1])]
    plan = here.plan(16)
    bounds = [plan.kernels[n.name].bound for n in products]
    assert len(bounds) == 2 * nets.LAYERS and bounds[1] >= bounds[0] * LONGEST_SUM // nets.SIZE // 4


def test_the_longest_row_bounds_the_length(lines: Any) -> None:
    """TFLite's Softmax of 8 bits holds fewer terms than the products do."""
    here = lines("npu_w8a16")
    assert longest_open_sum(here.graph, here.plan(16)) == LONGEST_SUM
    spec = hardware("tflite_int8")
    only = {op: tuple(s for s in found if s.is_integer) for op, found in spec.ops.items()}
    here = lines("tflite_int8", spec=replace(spec, ops={op: found for op, found in only.items() if found}))
    assert {"MatMul", "Softmax"}.isdisjoint(n.op for n in here.graph.nodes if n.name in here.topology.float_nodes)
    assert longest_open_sum(here.graph, here.plan(8)) == 4095


def test_longer_inputs_than_sums_hold_are_rejected(lines: Any) -> None:
    here = lines("npu_w8a16")
    (limit,) = length_limits(here.graph, here.plan(16))
    assert sorted(limit.axes)[1:] == [("past_key_values.0.key", 2)] and limit.axes[-1][1] == 1
    assert limit.most == LONGEST_SUM and limit.axes[-1][0] in ("input_ids", "position_ids")
    model = realized(here).model
    model.metadata_props[KEY] = json.dumps([{"axes": limit.axes, "most": 8}])
    session = Session(model)

    def scores(past: int, new: int) -> Any:
        every = nets.feeds(nets.text(1, new), past_of(past))
        return session.run({i.name: every[i.name] for i in here.graph.inputs}, ["logits"])["logits"]

    assert [scores(0, 8).shape[1], scores(5, 3).shape[1]] == [8, 3]
    for past, new in ((0, 9), (5, 4), (8, 1)):
        with pytest.raises(DataError, match=f"a length of 9, .* hold 8 terms; legal is .*{limit.axes[0][0]}"):
            scores(past, new)


def test_sums_of_a_fixed_length_limit_nothing(lines: Any) -> None:
    """Attention of `ort_cpu` adds in float; so its files have no limit."""
    here = lines("ort_cpu")
    assert longest_open_sum(here.graph, here.plan(8)) is None and length_limits(here.graph, here.plan(8)) == ()


@pytest.mark.parametrize("entry", ["no list", "[3]", '[{"axes": [["input_ids", 7]], "most": 1}]', '[{"axes": 3}]'])
def test_an_entry_of_another_form_limits_nothing(entry: str) -> None:
    model = ir.from_proto(nets.standard())
    model.metadata_props[KEY] = entry
    assert stated_lengths(model) == ()


def test_a_softmax_that_counts_hidden_elements_takes_no_rows_of_open_length(lines: Any) -> None:
    spec = hardware("npu_w8a16")
    only = {**spec.ops, "Softmax": spec.ops["Softmax"][:1]}
    kept = lines("npu_w8a16", spec=replace(spec, ops=only)).topology.float_nodes
    assert any("counts elements that a mask hides" in reason.text for reason in kept.values())


@pytest.mark.sliced(5)
@pytest.mark.parametrize("name", TYPES)
def test_a_present_is_the_next_past(name: str, lines: Any) -> None:
    here = lines(name)
    plan = here.plan(16)
    written = here.realize(plan, here.spec.realize)
    assert here.agree(plan, here.spec.realize).differing == 0
    model = proto(written.model)
    rows = stated(model)
    assert {row["input"]: row["output"] for row in rows} == {past: present for present, past in STATE.items()}
    assert {row["stored"] for row in rows} == {TYPES[name]}
    assert [row["holds"] for row in rows] == ["keys", "values"] * nets.LAYERS
    for row in rows:
        quantizers = plan.quantizers[row["input"]], plan.quantizers[row["output"]]
        assert len({(float(q.scale), q.zero_point, q.qmin, q.qmax) for q in quantizers}) == 1
        assert (float(quantizers[0].scale), quantizers[0].zero_point) == (row["scale"], row["zero_point"])
        assert quantizers[0].bits <= 8
    ports = {p.name: p.type.tensor_type.elem_type for p in (*model.graph.input, *model.graph.output)}
    kind = TensorProto.DataType.Value(TYPES[name].upper())
    assert {ports[port] for pair in STATE.items() for port in pair} == {kind}


@pytest.mark.sliced(4)
@pytest.mark.parametrize("style", ["standard", "runtime"])
@pytest.mark.parametrize("name", TYPES)
def test_steps_are_the_prefill_in_plain_onnxruntime(name: str, style: str, lines: Any) -> None:
    """Eight steps from an empty cache and one run of the same tokens, without quantpipe."""
    plain = Plain(proto(realized(lines(name, style)).model))
    tokens = nets.text(1, 8, seed=5)
    logits, cache = plain.run(tokens)
    stepped, last = plain.in_steps(tokens)
    assert {name: array.dtype.name for name, array in last.items()} == dict.fromkeys(STATE.values(), TYPES[name])
    differing = sum(int((cache[port] != last[port]).sum()) for port in cache)
    assert differing == 0
    np.testing.assert_allclose(stepped, logits, rtol=1e-4, atol=1e-4)  # floats behind float nodes


def test_without_a_cache_in_the_hardware_file_ports_are_floats(lines: Any) -> None:
    spec = replace(hardware("npu_w8a16"), cache=None)
    here = lines("npu_w8a16", spec=spec)
    model = proto(realized(here).model)
    assert not stated(model) and not here.topology.caches and not here.topology.real_caches
    assert {p.type.tensor_type.elem_type for p in model.graph.input if "past" in p.name} == {TensorProto.FLOAT}


def test_a_device_without_the_joining_op_keeps_the_cache_in_float(lines: Any) -> None:
    spec = hardware("npu_w8a16")
    spec = replace(spec, ops={op: rows for op, rows in spec.ops.items() if op != "Concat"})
    here = lines("npu_w8a16", spec=spec)
    assert not here.topology.caches
    assert set(here.topology.real_caches) == set(STATE.values())
    assert all("Concat" in why and "does not declare Concat" in why for why in here.topology.real_caches.values())
    assert not stated(proto(realized(here).model))


def test_sessions_of_quantpipe_take_floats_and_give_floats(lines: Any) -> None:
    here = lines("npu_w8a16")
    written = realized(here)
    session = Session(written.model)
    tokens = nets.text(1, 4)
    given = {n: a for n, a in nets.feeds(tokens).items() if n in session.inputs}
    real, whole = session.run(given), session.run(given, stored=True)
    for port in stored_ports(written.model):
        assert real[port.output].dtype == np.float32 and whole[port.output].dtype == np.int8
        np.testing.assert_array_equal(port.encoded(real[port.output]), whole[port.output])
    again = nets.feeds(tokens, {past: real[present] for present, past in STATE.items()})
    exact = nets.feeds(tokens, {past: whole[present] for present, past in STATE.items()})
    names = session.inputs
    first, second = (session.run({n: f[n] for n in names}, stored=True) for f in (again, exact))
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])


def shifted(model: onnx.ModelProto) -> None:
    """Count the positions of steps one too high."""
    for node in model.graph.node:
        node.input[:] = ["places" if name == "position_ids" else name for name in node.input]
    nodes = [
        helper.make_node("Shape", [next(iter(STATE.values()))], ["f.axes"], name="f1", start=2, end=3),
        helper.make_node("Min", ["f.axes", "f.one"], ["f.added"], name="f2"),
        helper.make_node("Sub", ["position_ids", "f.added"], ["places"], name="f3"),
    ]
    model.graph.initializer.append(helper.make_tensor("f.one", TensorProto.INT64, [1], [1]))
    for node in reversed(nodes):
        model.graph.node.insert(0, node)


def rescaled(model: onnx.ModelProto) -> None:
    """Read a past at twice its scale."""
    past = "past_key_values.1.key"
    for node in model.graph.node:
        node.input[:] = ["f.half" if name == past and node.op_type != "Shape" else name for name in node.input]
    model.graph.initializer.append(helper.make_tensor("f.two", TensorProto.INT8, [1], [2]))
    model.graph.node.insert(0, helper.make_node("Div", [past, "f.two"], ["f.half"], name="f1"))


SWAPPED = {"present.0.key": "past_key_values.0.value", "present.0.value": "past_key_values.0.key"}


@pytest.mark.parametrize(
    ("plant", "swapped", "output"),
    [
        (None, {}, None),
        (shifted, {}, "present.0.key"),
        (rescaled, {}, "present.1.key"),
        (None, SWAPPED, "present.0.value"),
    ],
    ids=["no fault", "position off by one", "scale of the cache changed", "K and V swapped"],
)
def test_planted_faults_are_found(
    plant: Any, swapped: dict[str, str], output: str | None, lines: Any, folder: Path
) -> None:
    here = lines("npu_w8a16")
    written = realized(here)
    model = proto(written.model)
    if plant is not None:
        plant(model)
    changed = replace(written, model=ir.from_proto(model))
    samples = pieces(here.graph, folder, 1).evaluate
    samples._state = {**samples._state, **swapped}
    found = steps_and_prefill(Session(changed.model), samples)
    assert found is not None and found["steps"] == 8
    inside = kernels_in_steps(EvaluatedModel(here.graph, here.topology, here.plan(8), changed), samples)
    assert inside is not None
    found["kernels"] = inside
    rows = {row["output"]: row["differing"] for row in found["outputs"]}
    if output is None:
        assert not found["differing"] and not inside["differing"] and inside["equal"] > 80
        return
    assert rows[output] > 0 and inside["differing"]
    warning = steps_warning(found)
    assert warning is not None and output in warning and inside["differing"][0] in warning


def rescaled_note(root: Path) -> None:
    """State another scale of a cache in the file."""

    def change(rows: list[dict[str, Any]]) -> None:
        rows[0]["scale"] *= 2

    _with_rows(root, change)


def unstated(root: Path) -> None:
    """State no cache in the file."""
    _with_rows(root, lambda rows: rows.clear())


def apart(root: Path) -> None:
    """Give a present another scale than its past in plan.json."""
    changed(root, "plan.json", lambda plan: plan["quantizers"]["present.0.key"].update(scale=0.5))


def swapped(root: Path) -> None:
    """Read the values of a layer as its keys."""
    model = onnx.load(root / "realize" / "model.onnx")
    pair = {f"past_key_values.0.{a}": f"past_key_values.0.{b}" for a, b in (("key", "value"), ("value", "key"))}
    for node in model.graph.node:
        node.input[:] = [pair.get(name, name) for name in node.input]
    onnx.save(model, root / "realize" / "model.onnx")
    refreshed(root)


def divided(root: Path) -> None:
    """Read half of each integer of a past."""
    model = onnx.load(root / "realize" / "model.onnx")
    rescaled(model)
    onnx.save(model, root / "realize" / "model.onnx")
    refreshed(root)


def _with_rows(root: Path, change: Any) -> None:
    model = onnx.load(root / "realize" / "model.onnx")
    entry = next(p for p in model.metadata_props if p.key == "quantpipe.caches")
    rows = json.loads(entry.value)
    change(rows)
    entry.value = json.dumps(rows)
    onnx.save(model, root / "realize" / "model.onnx")
    refreshed(root)


@pytest.mark.program
@pytest.mark.parametrize("plant", [None, rescaled_note, unstated, apart, swapped, divided])
def test_the_certificate_holds_and_forgeries_do_not(plant: Any, lines: Any, tmp_path: Path) -> None:
    here = lines("npu_w8a16")
    root = write(here, here.plan(16), "integer", tmp_path)
    if plant is not None:
        plant(root)
    verdict = verify_folder(root)
    assert (verdict.wrong is None) is (plant is None), str(verdict)


def test_a_section_of_a_device_may_be_left_out_from_python() -> None:
    found, _ = composed({}, {"hardware": {"option": "ort_cpu", "cache": None}})
    assert load_hardware(found["hardware"]).cache is None
    with pytest.raises(HardwareError, match="ops must be a mapping"):
        load_hardware(composed({}, {"hardware": {"option": "ort_cpu", "ops": None}})[0]["hardware"])
