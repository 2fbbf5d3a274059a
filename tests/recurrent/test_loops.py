"""Recurrent layers of any length, written as loops: the function of onnxruntime's own kernels, then with the products
of the state in integers: against NumPy's integers, in every form, and with planted faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from quantpipe.check.compatibility import check
from quantpipe.errors import ConfigError, HardwareError
from quantpipe.evaluate.agreement import compare_with, session_kinds
from quantpipe.evaluate.compared_models import SimulatedModel
from quantpipe.explain.error_attribution import Causes
from quantpipe.graph.execute import Session
from quantpipe.graph.view import Graph
from quantpipe.hardware.cells import Recurrent, cell_forms
from quantpipe.hardware.cost import bops, cycles
from quantpipe.hardware.load import load_hardware
from quantpipe.intake.rewrites.recurrent import CELLS, looped
from quantpipe.metrics.reference import Compared
from quantpipe.oprules.recurrent_loop import products_of
from quantpipe.oprules.work import is_unknown_work, multiply_accumulates
from quantpipe.types import DType, LoopForms
from quantpipe.verify import verify_folder
from tests.intake.test_bodies import scanned
from tests.ops.line import ArraySamples, Line, hardware, hardware_data, line
from tests.recurrent.nets import INPUT, SIZE, classifier, layer, scans
from tests.recurrent.test_steps import GIVEN, MORE, cleaned, run
from tests.verify.folders import refreshed, write

Array = np.ndarray[Any, Any]
LOOPS = LoopForms(loops=tuple(CELLS))


def same(model: onnx.ModelProto, feeds: dict[str, Array], *, cells: bool = False) -> None:
    copy = ir.from_proto(model)
    for node in list(copy.graph):
        looped(copy.graph, node, cells=cells)
    loops = ir.to_proto(copy)
    assert not {n.op_type for n in loops.graph.node} & set(CELLS)
    for own, found in zip(run(model, feeds), run(loops, feeds), strict=True):
        assert own.shape == found.shape
        np.testing.assert_allclose(found, own, atol=2e-6)


@pytest.mark.sliced(6)
@pytest.mark.parametrize("steps", [None, 4])
@pytest.mark.parametrize("given", GIVEN, ids="-".join)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", CELLS)
def test_loops_are_what_the_kernel_computes(op: str, direction: str, given: tuple[str, ...], steps: int | None) -> None:
    same(*layer(op, direction=direction, given=given, steps=steps), cells=direction != "forward")


@pytest.mark.parametrize("name", MORE)
def test_loops_have_every_attribute(name: str) -> None:
    for cells in (False, True):
        same(*layer(**MORE[name], steps=None), cells=cells)


def frames(count: int, steps: int = 5) -> Array:
    return np.random.default_rng(5).standard_normal((count, steps, 6)).astype(np.float32)


@cache
def loop_of(op: str, direction: str = "forward", cells: bool = False, **attributes: Any) -> Graph:
    model = classifier(op, None, direction=direction, **attributes)
    return cleaned(model, {"x": frames(4)}, replace(LOOPS, cells=cells))


def made_on(device: str, op: str, direction: str = "forward", **attributes: Any) -> Line:
    graph = loop_of(op, direction, cells=device == "npu_w8a16", **attributes)
    return line(graph, device, samples=ArraySamples({"x": frames(24)}))


CASES: list[tuple[str, str, str, str, dict[str, Any]]] = [
    ("LSTM", "ort_cpu", "qdq", "bidirectional", {}),
    ("LSTM", "ort_cpu", "integer", "reverse", {}),
    ("GRU", "ort_cpu", "qoperator", "forward", {}),
    ("GRU", "ort_cpu", "integer", "bidirectional", {"linear_before_reset": 1}),
    ("RNN", "ort_cpu", "qdq", "forward", {"activations": ("Relu",)}),
    ("LSTM", "npu_w8a16", "integer", "bidirectional", {}),
    ("GRU", "npu_w8a16", "integer", "forward", {}),
]


@pytest.mark.sliced(3)
@pytest.mark.parametrize(("op", "device", "form", "direction", "attributes"), CASES)
def test_loops_run_in_integers(op: str, device: str, form: str, direction: str, attributes: dict[str, Any]) -> None:
    made = made_on(device, op, direction, **attributes)
    products = [p for site in made.topology.loops for p in site.products]
    ways = 2 if direction == "bidirectional" else 1
    assert len(products) == ways * (2 if op == "GRU" and not attributes else 1)
    plan = made.plan(16 if device == "npu_w8a16" else 8)
    agreement = made.agree(plan, form, everywhere=True)
    assert agreement.differing == 0 and agreement.elements > 0
    realized = made.realize(plan, form).model
    loops = [node for node in realized.graph if node.op_type == "Scan"]
    inside = [n.op_type for loop in loops for n in loop.attributes["body"].value]
    assert inside.count("MatMul" if device == "npu_w8a16" else "MatMulInteger") == len(products)
    wanted, found = made.outputs()["scores"], made.outputs(realized)["scores"]
    noise = np.square(found - wanted).sum() / np.square(wanted).sum()
    assert 10 * np.log10(noise) < -25


def test_any_length_runs() -> None:
    """A loop knows no number of steps: what was calibrated on five runs on one and on forty."""
    made = made_on("ort_cpu", "GRU")
    session, float_session = Session(made.realize(made.plan(), "qdq").model), Session(made.graph.model)
    for steps in (1, 40):
        x = frames(3, steps)
        wanted, found = float_session.run({"x": x})["scores"], session.run({"x": x})["scores"]
        assert np.square(found - wanted).sum() < 0.01 * np.square(wanted).sum()


REAL = {"ort_cpu": hardware("ort_cpu"), "npu_w8a16": hardware("npu_w8a16", recurrent="int16")}
"""Devices whose states are real numbers from step to step."""


@pytest.mark.parametrize(("device", "form"), [("ort_cpu", "qdq"), ("npu_w8a16", "integer")])
def test_a_loop_is_what_integers_of_numpy_say(device: str, form: str) -> None:
    """An LSTM step by step: Σ (q_h - z_h)·q_w in int64, all else in float64, from what enters the loop."""
    made = line(loop_of("LSTM"), REAL[device], samples=ArraySamples({"x": frames(24)}))
    plan, (site,) = made.plan(16 if device == "npu_w8a16" else 8), made.topology.loops
    node = made.graph.by_name[site.node]
    (product,) = plan.loops[site.node]
    realized = made.realize(plan, form).model
    names = [v.name or "" for n in realized.graph if n.op_type == "Scan" for v in n.inputs if v is not None]
    read = Session(_exposed(realized, names[2], site.state)).run({"x": frames(6)})
    gates, states = read[names[2]].astype(np.float64), read[site.state]
    q, weight = plan.quantizers[site.state], plan.weights[product.weight]
    size = states.shape[-1]
    assert node.op == "Scan" and product.bound <= DType.INT32.qmax
    hidden = cell = np.zeros((gates.shape[1], size))
    for step, x in enumerate(gates):
        codes = np.clip(np.rint(hidden.astype(np.float32) / q.scale).astype(np.int64) + q.zero_point, q.qmin, q.qmax)
        sums = (codes - q.zero_point) @ weight.centred().astype(np.int64)
        i, o, f, g = np.split(x + sums * product.scale.astype(np.float64), 4, axis=-1)
        i, o, f = (1 / (1 + np.exp(-v)) for v in (i, o, f))
        cell = f * cell + i * np.tanh(g)
        hidden = o * np.tanh(cell)
        np.testing.assert_allclose(states[step], hidden, atol=2e-5)


def _exposed(model: ir.Model, *names: str) -> ir.Model:
    copy = ir.from_proto(ir.to_proto(model))
    held = {v.name: v for n in copy.graph for v in n.outputs}
    for name in names:
        held[name].type = ir.TensorType(ir.DataType.FLOAT)
        copy.graph.outputs.append(held[name])
    return copy


def test_a_changed_integer_inside_of_a_loop_is_a_difference() -> None:
    made = made_on("ort_cpu", "LSTM")
    plan = made.plan()
    realized = made.realize(plan, "qdq")
    (site,) = made.topology.loops
    held = realized.model.graph.initializers[f"{site.products[0][1]}_q"]
    assert held.const_value is not None
    values = np.array(held.const_value.numpy())
    values[0, 0] ^= 16
    held.const_value = ir.tensor(values)
    simulated = SimulatedModel(made.graph, made.topology, plan, made.simulate(plan), realized=realized)
    kinds = [kind for kind in session_kinds(realized.model) if kind.decides]
    assert compare_with(simulated, realized, made.samples, kinds).differing > 0


def _weight(proto: onnx.ModelProto, state: str, weight: str) -> None:
    _changed(proto, f"{weight}_q", lambda v: v ^ np.int8(1))


def _state_scale(proto: onnx.ModelProto, state: str, weight: str) -> None:
    _changed(proto, f"{state}_scale", lambda v: v * np.float32(2))


def _zero_point(proto: onnx.ModelProto, state: str, weight: str) -> None:
    _changed(proto, f"{state}_zero_point", lambda v: v + np.uint8(1))


def _product_scale(proto: onnx.ModelProto, state: str, weight: str) -> None:
    (name,) = (t.name for t in proto.graph.initializer if t.name.endswith("/product_scale"))
    _changed(proto, name, lambda v: v * np.float32(1.001))


def _unscaled(proto: onnx.ModelProto, state: str, weight: str) -> None:
    body = _body(proto)
    next(n for n in body.node if n.op_type == "Mul" and n.name.endswith("/product/real")).op_type = "Div"


def _real_product(proto: onnx.ModelProto, state: str, weight: str) -> None:
    body = _body(proto)
    next(n for n in body.node if n.op_type == "MatMulInteger").op_type = "MatMul"


def _no_quantizer(proto: onnx.ModelProto, state: str, weight: str) -> None:
    body = _body(proto)
    next(n for n in body.node if n.op_type == "QuantizeLinear").op_type = "Floor"


FAULTS = (_weight, _state_scale, _zero_point, _product_scale, _unscaled, _real_product, _no_quantizer)


def _body(proto: onnx.ModelProto) -> onnx.GraphProto:
    (loop,) = (n for n in proto.graph.node if n.op_type == "Scan")
    found: onnx.GraphProto = next(a.g for a in loop.attribute if a.name == "body")
    return found


def _changed(proto: onnx.ModelProto, name: str, change: Callable[[Array], Array]) -> None:
    (held,) = (t for t in proto.graph.initializer if t.name == name)
    held.CopyFrom(numpy_helper.from_array(np.asarray(change(numpy_helper.to_array(held))), name))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_the_checker_finds_what_is_changed_in_a_loop(fault: Callable[..., None], tmp_path: Path) -> None:
    made = made_on("ort_cpu", "LSTM")
    root = write(made, made.plan(), "qdq", tmp_path / "run")
    assert verify_folder(root).wrong is None
    (site,) = made.topology.loops
    proto = onnx.load(root / "realize" / "model.onnx")
    fault(proto, site.state, site.products[0][1])
    onnx.save(proto, root / "realize" / "model.onnx")
    refreshed(root)
    assert verify_folder(root).wrong is not None


@pytest.mark.sliced(2)
@pytest.mark.parametrize("device", ["ort_cpu", "npu_w8a16"])
def test_the_checker_takes_a_loop(device: str, tmp_path: Path) -> None:
    made = made_on(device, "GRU", "bidirectional")
    root = write(made, made.plan(16 if device == "npu_w8a16" else 8), "integer", tmp_path / "run")
    assert verify_folder(root).wrong is None


@pytest.mark.parametrize("form", ["qdq", "integer"])
def test_the_checker_takes_a_loop_with_other_products(form: str, tmp_path: Path) -> None:
    """Two of three products of its body read no state: they are float arithmetic."""
    proto, x = scanned(), np.random.default_rng(3).standard_normal((24, 6, 4)).astype(np.float32)
    made = line(cleaned(proto, {"x": x[:4]}, LoopForms()), "ort_cpu", samples=ArraySamples({"x": x}))
    (site,) = made.topology.loops
    assert len(site.products) == 1
    root = write(made, made.plan(), form, tmp_path / "run")
    assert verify_folder(root).wrong is None
    file = onnx.load(root / "realize" / "model.onnx")
    _no_quantizer(file, "", "")
    onnx.save(file, root / "realize" / "model.onnx")
    refreshed(root)
    assert "the state does not enter it" in str(verify_folder(root).wrong)


def test_devices_and_users_decide() -> None:
    cells = tuple(CELLS)
    assert cell_forms(hardware("npu_w8a16"), Recurrent.AUTO) == LoopForms(cells, cells, cells=True)
    assert cell_forms(hardware("tflite_int8"), Recurrent.AUTO) == LoopForms(cells, ())
    assert cell_forms(hardware("ort_cpu"), Recurrent.AUTO) == LoopForms()
    assert cell_forms(hardware("ort_cpu"), Recurrent.STEPS) == LoopForms(cells, cells)
    assert cell_forms(hardware("ort_cpu"), Recurrent.LOOPS) == LoopForms((), cells)
    with pytest.raises(ConfigError, match=r"model\.recurrent: is loops, and vta does not say.*hardware\.recurrent"):
        cell_forms(hardware("vta"), Recurrent.LOOPS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("float32", r"recurrent\.inputs is 'float32'.*legal are uint8, int8, int16"),
        ({"inputs": "uint9"}, r"recurrent\.inputs is 'uint9' \(did you mean 'uint8'"),
        ({"cell_state": "int8"}, r"recurrent\.inputs"),
        ({"inputs": "int8", "cell_stat": "int8"}, r"recurrent\.cell_stat .*cell_state"),
    ],
)
def test_what_a_file_may_not_say(given: Any, said: str) -> None:
    with pytest.raises(HardwareError, match=said):
        load_hardware(hardware_data("ort_cpu") | {"recurrent": given})


def test_why_a_loop_stays_in_float() -> None:
    graph, samples = loop_of("LSTM"), ArraySamples({"x": frames(8)})
    made = line(graph, hardware("ort_cpu", recurrent=None), samples=samples)
    (loop,) = (n for n in graph.nodes if n.op == "Scan")
    said = "does not declare recurrent layers in a loop"
    assert not made.topology.loops and said in str(made.topology.float_nodes[loop.name])


def test_a_state_that_others_read_in_another_type_stays_real() -> None:
    model, feeds = layer("LSTM", steps=None, given=("B",))
    model.graph.initializer.append(numpy_helper.from_array(np.ones((SIZE, 5), np.float32), "w"))
    model.graph.node.append(onnx.helper.make_node("MatMul", ["Y", "w"], ["dense"], name="dense"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("dense", onnx.TensorProto.FLOAT, None))
    graph = cleaned(model, feeds, LOOPS)
    (loop,) = (n for n in graph.nodes if n.op == "Scan")
    for inputs, taken in (("int16", True), ("int8", False)):
        made = line(graph, hardware("npu_w8a16", recurrent=inputs), samples=ArraySamples(feeds))
        assert bool(made.topology.loops) == taken
        said = "its state is stored as int16 for others, and its products take int8"
        assert (said in str(made.topology.float_nodes[loop.name])) != taken


@pytest.mark.sliced(9)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("axes", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_loops_of_other_exporters(named: bool, axes: bool, count: int) -> None:
    """Bodies whose nodes have no names, or the names of another body's, and outputs along another axis."""
    x = np.random.default_rng(3).standard_normal((24, 5, INPUT)).astype(np.float32)
    graph = cleaned(scans(named=named, axes=axes, count=count), {"x": x[:4]}, LoopForms())
    made = line(graph, "ort_cpu", samples=ArraySamples({"x": x}))
    assert [len(site.products) for site in made.topology.loops] == [2] * count
    plan = made.plan()
    for form in ("qdq", "integer"):
        agreement = made.agree(plan, form, everywhere=True)
        assert agreement.differing == 0
        wanted, found = made.outputs(), made.outputs(made.realize(plan, form).model)
        for name in wanted:
            assert np.square(wanted[name] - found[name]).sum() < 3e-3 * np.square(wanted[name]).sum()


def test_what_a_loop_multiplies_is_counted() -> None:
    graph = cleaned(*layer("LSTM", steps=None), LOOPS)
    (loop,) = (n for n in graph.nodes if n.op == "Scan")
    assert products_of(loop, graph) is not None and not is_unknown_work(loop, graph)
    steps, samples = graph.shapes[loop.outputs[-1]][:2]
    assert multiply_accumulates(loop, graph) == steps * samples * SIZE * 4 * SIZE


@pytest.mark.parametrize("kept", ["cells", "steps"])
def test_layers_are_timed_beside_the_users_own(kept: str) -> None:
    forms = LoopForms() if kept == "cells" else LoopForms(tuple(CELLS), tuple(CELLS))
    graph = cleaned(classifier("LSTM", 3), {"x": frames(4, 3)}, forms)
    assert any(node.op_type == "LSTM" for node in graph.timed.graph)
    assert (graph.as_given is None) == (kept == "cells")


def test_products_in_loops_count_as_integers() -> None:
    graph = loop_of("LSTM", cells=True)
    made = line(graph, hardware("npu_w8a16"), samples=ArraySamples({"x": frames(8)}))
    real = line(graph, hardware("npu_w8a16", recurrent=None), samples=ArraySamples({"x": frames(8)}))
    share = [check(graph, m.topology, m.spec, m.schema).mac_share for m in (made, real)]
    assert share[0] == 1.0 and share[1] < 1.0
    bits = {t: 16 for g in made.topology.groups for t in g.tensors} | {w.tensor: 8 for w in made.topology.weights}
    for cost in (bops, cycles):
        assert cost(made.topology, graph, made.spec, bits) < cost(real.topology, graph, real.spec, bits)


def test_what_a_loop_costs_is_explained() -> None:
    """The weight inside of a loop is among the causes, with its own loss."""
    made = made_on("ort_cpu", "LSTM")
    plan = made.plan((8, 4), seed=1)
    causes = Causes(made.graph, made.topology, plan, made.samples, compared=Compared())
    found = causes.rows(3, lambda *a: None)
    (site,) = made.topology.loops
    assert {site.products[0][1], site.state} <= {row["tensor"] for row in found}
