"""States that go from step to step in stored integers: beside integers of NumPy, in every form, with planted faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from quantpipe.errors import HardwareError
from quantpipe.evaluate.agreement import compare_with, session_kinds
from quantpipe.evaluate.compared_models import SimulatedModel
from quantpipe.graph.execute import Session
from quantpipe.graph.view import Graph
from quantpipe.hardware.cells import Recurrent, cell_forms
from quantpipe.hardware.load import load_hardware
from quantpipe.intake.rewrites.recurrent import CELLS
from quantpipe.types import DType, HardwareSpec, LoopForms
from quantpipe.verify import verify_folder
from tests.ops.line import ArraySamples, Line, hardware, hardware_data, line
from tests.recurrent.nets import INPUT, classifier, scans, two_states, with_states
from tests.recurrent.test_loops import _body, _exposed, frames
from tests.recurrent.test_steps import cleaned
from tests.verify.folders import refreshed, write

Array = np.ndarray[Any, Any]
LOOPS = LoopForms(loops=tuple(CELLS), cells=True)


def device(inputs: str, state: str) -> HardwareSpec:
    name = "npu_w8a16" if inputs == "int16" else "ort_cpu"
    return hardware(name, recurrent={"inputs": inputs, "cell_state": state})


def made_on(op: str, inputs: str, state: str, direction: str = "forward", **attributes: Any) -> Line:
    graph = cleaned(classifier(op, None, direction=direction, **attributes), {"x": frames(4)}, LOOPS)
    return line(graph, device(inputs, state), samples=ArraySamples({"x": frames(24)}))


def states_of(made: Line) -> list[str]:
    return [t for site in made.topology.loops for t in site.carried]


@pytest.mark.sliced(6)
@pytest.mark.parametrize("op", CELLS)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize(
    ("inputs", "state", "form"),
    [("uint8", "int16", "qdq"), ("uint8", "uint8", "integer"), ("int16", "int16", "integer")],
)
def test_states_are_stored(op: str, direction: str, inputs: str, state: str, form: str) -> None:
    made = made_on(op, inputs, state, direction)
    ways = 2 if direction == "bidirectional" else 1
    assert len(states_of(made)) == ways * (2 if op == "LSTM" else 1)
    plan = made.plan(16)
    cells = [q.dtype for q in (plan.quantizers[t] for s in made.topology.loops for t in s.carried if t != s.state)]
    assert cells == [DType(state)] * len(cells)
    own = [g.max_bits for g in made.topology.groups if g.key in states_of(made) and not g.key.endswith("/steps")]
    assert own == [DType(state).bits] * len(cells)
    agreement = made.agree(plan, form, everywhere=True)
    assert agreement.differing == 0 and agreement.elements > 0
    wanted, found = made.outputs()["scores"], made.outputs(made.realize(plan, form).model)["scores"]
    assert 10 * np.log10(np.square(wanted).sum() / np.square(found - wanted).sum()) > 20


@pytest.mark.parametrize(("inputs", "state"), [("uint8", "int16"), ("int16", "int16"), ("int8", "int8")])
def test_a_loop_is_what_integers_of_numpy_say(inputs: str, state: str) -> None:
    """An LSTM step by step whose steps hand on integers: what is shown are codes times a scale, to the last bit."""
    made = made_on("LSTM", inputs, state)
    plan, (site,) = made.plan(16), made.topology.loops
    assert site.carried[0] == site.state
    hidden_q, cell_q = (plan.quantizers[t] for t in site.carried)
    (product,) = plan.loops[site.node]
    realized = made.realize(plan, "integer").model
    (loop,) = (n for n in realized.graph if n.op_type == "Scan")
    gates_name = loop.inputs[2].name or ""
    read = Session(_exposed(realized, gates_name, *site.carried)).run({"x": frames(6)})
    weight = plan.weights[product.weight].centred().astype(np.int64)
    codes = [np.zeros((6, 8), np.int64)] * 2
    for step, x in enumerate(read[gates_name].astype(np.float64)):
        sums = codes[0] @ weight
        i, o, f, g = np.split(x + sums * product.scale.astype(np.float64), 4, axis=-1)
        i, o, f = (1 / (1 + np.exp(-v)) for v in (i, o, f))
        cell = f * (codes[1] * float(cell_q.scale)) + i * np.tanh(g)
        shown = [read[t][step] for t in site.carried]
        codes = [np.rint(v / q.scale).astype(np.int64) for v, q in zip(shown, (hidden_q, cell_q), strict=True)]
        for v, q, own in zip(shown, (hidden_q, cell_q), codes, strict=True):
            assert np.array_equal(own.astype(np.float32) * q.scale, v)
            assert own.min() >= q.low and own.max() <= q.high
        near = np.clip(cell / float(cell_q.scale), cell_q.low, cell_q.high)
        assert np.abs(codes[1] - near).max() <= 0.5 + 0.02 * (cell_q.bits > 8)
        hidden = o * np.tanh(codes[1] * float(cell_q.scale))
        near = np.clip(hidden / float(hidden_q.scale), hidden_q.low, hidden_q.high)
        assert np.abs(codes[0] - near).max() <= 0.5 + 0.02 * (hidden_q.bits > 8)


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_first_states_and_samples_that_end(op: str) -> None:
    """A first state is stored as those of steps are, and so is the last one that a layer tells."""
    model, feeds = with_states(op)
    graph = cleaned(model, {name: values[:4] for name, values in feeds.items()}, LOOPS)
    made = line(graph, device("int16", "int16"), samples=ArraySamples(feeds))
    plan, (site,) = made.plan(16), made.topology.loops
    assert made.agree(plan, "integer", everywhere=True).differing == 0
    realized = made.realize(plan, "integer").model
    stored = {n.name for n in realized.graph if n.op_type == "QuantizeLinear" and "first" in (n.name or "")}
    assert len(stored) == len(site.carried)
    found, wanted = made.outputs(realized), made.outputs()
    for name, own in found.items():
        assert np.square(own - wanted[name]).sum() < 4e-3 * np.square(wanted[name]).sum()
    last = graph.by_name[site.node].outputs[: len(site.carried)]
    handed_out = made.outputs(_exposed(realized, *last))
    for name, tensor in zip(last, site.carried, strict=True):
        q = plan.quantizers[tensor]
        codes = np.rint(handed_out[name] / q.scale).astype(np.float32)
        assert np.array_equal(codes * q.scale, handed_out[name])


def _cell_scale(model: ir.Model, tensor: str) -> None:
    held = model.graph.initializers[f"{tensor}_scale"]
    held.const_value = ir.tensor(np.asarray(held.const_value.numpy() * np.float32(1.001)))  # type: ignore[union-attr]


def _another_zero(model: ir.Model, tensor: str) -> None:
    """Codes are read with another zero point than they were written with."""
    body = next(n for n in model.graph if n.op_type == "Scan").attributes["body"].as_graph()
    held = model.graph.initializers[f"{tensor}_zero_point"].const_value
    other = ir.Value(name="another", const_value=ir.tensor(np.asarray(held.numpy() + 1, held.numpy().dtype)))  # type: ignore[union-attr]
    model.graph.initializers["another"] = other
    next(n for n in body if n.name == f"{tensor}/real").replace_input_with(2, other)


@pytest.mark.parametrize("fault", [_cell_scale, _another_zero], ids=lambda f: f.__name__)
def test_a_changed_store_is_a_difference(fault: Callable[..., None]) -> None:
    made = made_on("LSTM", "uint8", "uint8")
    plan = made.plan(8)
    realized = made.realize(plan, "qdq")
    (cell,) = states_of(made)[1:]
    model = ir.from_proto(ir.to_proto(realized.model))
    fault(model, cell)
    simulated = SimulatedModel(made.graph, made.topology, plan, made.simulate(plan), realized=realized)
    kinds = [kind for kind in session_kinds(realized.model) if kind.decides]
    assert compare_with(simulated, replace(realized, model=model), made.samples, kinds).differing > 0


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_the_checker_finds_a_first_state_that_is_not_stored(op: str, tmp_path: Path) -> None:
    model, feeds = with_states(op)
    graph = cleaned(model, {name: values[:4] for name, values in feeds.items()}, LOOPS)
    made = line(graph, device("int16", "int16"), samples=ArraySamples(feeds))
    root = write(made, made.plan(16), "integer", tmp_path / "run")
    assert verify_folder(root).wrong is None
    proto = onnx.load(root / "realize" / "model.onnx")
    (loop,) = (n for n in proto.graph.node if n.op_type == "Scan")
    makers = {out: n for n in proto.graph.node for out in n.output}
    at = makers[loop.input[0]]
    while at.op_type != "QuantizeLinear":
        at = makers[at.input[0]]
    loop.input[0] = at.input[0]
    onnx.save(proto, root / "realize" / "model.onnx")
    refreshed(root)
    assert "first_hidden_out: it is not stored by QuantizeLinear" in str(verify_folder(root).wrong)


def _scale(proto: onnx.ModelProto, tensor: str) -> None:
    (held,) = (t for t in proto.graph.initializer if t.name == f"{tensor}_scale")
    held.CopyFrom(onnx.numpy_helper.from_array(np.asarray(onnx.numpy_helper.to_array(held) * 2), held.name))


def _not_quantized(proto: onnx.ModelProto, tensor: str) -> None:
    next(n for n in _body(proto).node if n.name == f"{tensor}/quantize").op_type = "Floor"


def _past_the_store(proto: onnx.ModelProto, tensor: str) -> None:
    body = _body(proto)
    stored = next(n for n in body.node if n.name == f"{tensor}/quantize")
    real = {n.name: n.output[0] for n in body.node}[f"{tensor}/real"]
    reader = next(n for n in body.node if n.op_type == "Tanh" and real in n.input)
    reader.input[0] = stored.input[0]


def _hands_on_another(proto: onnx.ModelProto, tensor: str) -> None:
    """The next step gets what was made, of a node of its own."""
    body = _body(proto)
    stored = next(n for n in body.node if n.name == f"{tensor}/quantize")
    maker = next(n for n in body.node if stored.input[0] in n.output)
    copy = onnx.helper.make_node(maker.op_type, list(maker.input), ["unstored"], name="unstored")
    body.node.append(copy)
    body.output[1].name = "unstored"


@pytest.mark.parametrize(
    "fault", [_scale, _not_quantized, _past_the_store, _hands_on_another], ids=lambda f: f.__name__
)
def test_the_checker_finds_what_is_changed(fault: Callable[..., None], tmp_path: Path) -> None:
    made = made_on("LSTM", "uint8", "int16")
    root = write(made, made.plan(16), "qdq", tmp_path / "run")
    assert verify_folder(root).wrong is None
    (cell,) = states_of(made)[1:]
    proto = onnx.load(root / "realize" / "model.onnx")
    fault(proto, cell)
    onnx.save(proto, root / "realize" / "model.onnx")
    refreshed(root)
    assert verify_folder(root).wrong is not None


@pytest.mark.program
def test_the_checker_takes_fewer_bits(tmp_path: Path) -> None:
    made = made_on("LSTM", "int16", "int16", "bidirectional")
    plan = made.plan((16, 12, 8), seed=2)
    assert made.agree(plan, "integer", everywhere=True).differing == 0
    root = write(made, plan, "integer", tmp_path / "run")
    assert verify_folder(root).wrong is None
    proto = onnx.load(root / "realize" / "model.onnx")
    held = next(t for t in proto.graph.initializer if t.name.endswith("cells_carried_high"))
    held.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(held) + 1, held.name))
    onnx.save(proto, root / "realize" / "model.onnx")
    refreshed(root)
    assert "bounded by" in str(verify_folder(root).wrong)


def test_loops_of_others_that_show_no_cell() -> None:
    """What a body carries beside its state and shows nowhere cannot be measured: the loop stays real, and says so."""
    x = np.random.default_rng(3).standard_normal((24, 5, INPUT)).astype(np.float32)
    graph = cleaned(scans(named=True, axes=False), {"x": x[:4]}, LoopForms())
    made = line(graph, device("uint8", "int16"), samples=ArraySamples({"x": x}))
    assert [site.carried for site in made.topology.loops] == [(made.topology.loops[0].state,)]
    assert made.agree(made.plan(), "qdq", everywhere=True).differing == 0
    hidden = made_of_lstm_without_cells()
    made = line(hidden, device("uint8", "int16"), samples=ArraySamples({"x": frames(8)}))
    (loop,) = (n for n in hidden.nodes if n.op == "Scan")
    assert not made.topology.loops and "no output shows" in str(made.topology.float_nodes[loop.name])


@pytest.mark.parametrize(("second", "stored"), [("after", True), ("too", False)])
def test_loops_of_others_with_a_second_state(second: str, stored: bool) -> None:
    """One that is the first one again is stored with it; one that no step makes has no range, and stays real."""
    x = np.random.default_rng(3).standard_normal((24, 5, INPUT)).astype(np.float32)
    graph = cleaned(two_states(second), {"x": x[:4]}, LoopForms())
    made = line(graph, device("uint8", "int16"), samples=ArraySamples({"x": x}))
    assert [len(site.carried) for site in made.topology.loops] == [1] * stored
    assert made.agree(made.plan(), "qdq", everywhere=True).differing == 0


def made_of_lstm_without_cells() -> Graph:
    return cleaned(classifier("LSTM", None), {"x": frames(4)}, LoopForms(loops=tuple(CELLS)))


def test_a_file_says_how_states_go() -> None:
    assert cell_forms(hardware("npu_w8a16"), Recurrent.AUTO).cells
    assert not cell_forms(hardware("ort_cpu"), Recurrent.LOOPS).cells
    real = load_hardware(hardware_data("ort_cpu") | {"recurrent": {"inputs": "uint8", "cell_state": "float32"}})
    assert real.recurrent == hardware("ort_cpu").recurrent
    with pytest.raises(HardwareError, match=r"recurrent\.cell_state is 'int61' \(did you mean 'int16'"):
        load_hardware(hardware_data("ort_cpu") | {"recurrent": {"inputs": "uint8", "cell_state": "int61"}})
