"""Recurrent layers written as their steps: the same function as onnxruntime's own kernels and as the expected outputs
of onnx's backend tests, in every direction, with states, lengths, peepholes and functions; then in integers."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.node import _NodeTestCases, gru, lstm, rnn

from quantpipe.api.model import model_file
from quantpipe.errors import ConfigError
from quantpipe.graph.execute import Session
from quantpipe.graph.view import Graph
from quantpipe.hardware.cells import Recurrent, cell_forms, read_recurrent
from quantpipe.intake.load import clean_graph, read_graph
from quantpipe.intake.rewrites.recurrent import CELLS, MOST_STEPS, cells, unrolled
from quantpipe.types import LoopForms
from tests.ops.line import ArraySamples, hardware, line
from tests.recurrent.nets import classifier, layer

Array = np.ndarray[Any, Any]
MODULES = (lstm, gru, rnn)
"""Their import registers the backend's test cases."""
BACKEND = {
    case.name: case
    for case in _NodeTestCases
    if case.name.startswith(("test_lstm", "test_gru", "test_rnn", "test_simple_rnn"))
}


def run(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return list(ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"]).run(None, feeds))


def in_steps(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = ir.from_proto(model)
    for node in list(copy.graph):
        unrolled(copy.graph, node)
    return ir.to_proto(copy)


def same(model: onnx.ModelProto, feeds: dict[str, Array]) -> None:
    steps = in_steps(model)
    assert not {n.op_type for n in steps.graph.node} & set(CELLS)
    for own, found in zip(run(model, feeds), run(steps, feeds), strict=True):
        assert own.shape == found.shape
        np.testing.assert_allclose(found, own, atol=2e-6)


STEPS = LoopForms(tuple(CELLS))
PARTS = ("B", "lengths", "hidden")
GIVEN = [tuple(p for p, on in zip(PARTS, mask, strict=True) if on) for mask in itertools.product((0, 1), repeat=3)]


@pytest.mark.sliced(6)
@pytest.mark.parametrize("given", GIVEN, ids="-".join)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", CELLS)
def test_steps_are_what_the_kernel_computes(op: str, direction: str, given: tuple[str, ...]) -> None:
    same(*layer(op, direction=direction, given=given))


MORE: dict[str, dict[str, Any]] = {
    "both states": {"op": "LSTM", "given": ("hidden", "cell")},
    "cell alone": {"op": "LSTM", "given": ("cell", "lengths")},
    "peepholes": {"op": "LSTM", "given": ("B", "P")},
    "peepholes both ways": {"op": "LSTM", "given": ("B", "P", "cell"), "direction": "bidirectional"},
    "coupled gates": {"op": "LSTM", "input_forget": 1},
    "coupled gates with peepholes": {"op": "LSTM", "given": ("P", "cell"), "input_forget": 1},
    "clip": {"op": "LSTM", "clip": 0.3},
    "clip with peepholes": {"op": "LSTM", "given": ("P",), "clip": 0.3},
    "gru clip": {"op": "GRU", "clip": 0.3},
    "reset behind": {"op": "GRU", "linear_before_reset": 1},
    "reset behind, states": {"op": "GRU", "linear_before_reset": 1, "given": ("B", "hidden", "lengths")},
    "reset behind, no bias": {"op": "GRU", "linear_before_reset": 1, "given": ()},
    "relu": {"op": "RNN", "activations": ["Relu"]},
    "scaled": {"op": "RNN", "activations": ["ScaledTanh"], "activation_alpha": [1.7], "activation_beta": [0.6]},
    "affine": {"op": "RNN", "activations": ["Affine"], "activation_alpha": [0.7], "activation_beta": [0.1]},
    "hard": {"op": "LSTM", "activations": ["HardSigmoid", "Softsign", "Elu"]},
    "other gates": {"op": "GRU", "activations": ["HardSigmoid", "Relu"]},
    "numbers": {
        "op": "LSTM",
        "activations": ["HardSigmoid", "LeakyRelu", "ThresholdedRelu"],
        "activation_alpha": [0.3, 0.05, 0.5],
        "activation_beta": [0.4],
    },
    "two ways, two functions": {"op": "RNN", "direction": "bidirectional", "activations": ["Relu", "Softplus"]},
}


@pytest.mark.parametrize("name", MORE)
def test_steps_have_every_attribute(name: str) -> None:
    same(*layer(**MORE[name]))


@pytest.mark.sliced(2)
@pytest.mark.parametrize("name", sorted(BACKEND))
def test_expected_outputs_of_the_backend_tests(name: str) -> None:
    case = BACKEND[name]
    inputs, outputs = case.data_sets[0]
    ports = [value.name for value in case.model.graph.input]
    arrays = {n: np.asarray(v) for n, v in zip(ports, inputs, strict=True)}
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for value in [v for v in model.graph.input if v.name != ports[0]]:  # weights are inputs there
        model.graph.input.remove(value)
        model.graph.initializer.append(numpy_helper.from_array(arrays[value.name], value.name))
    feeds = {ports[0]: arrays[ports[0]]}
    graph = cleaned(model, feeds, STEPS)
    assert not {n.op for n in graph.nodes} & set(CELLS)
    found = Session(graph.model).run(feeds)
    for port, expected in zip(model.graph.output, outputs, strict=True):
        np.testing.assert_allclose(found[port.name], expected, atol=1e-5)


def cleaned(model: onnx.ModelProto, feeds: dict[str, Array], cells: LoopForms) -> Graph:
    with tempfile.TemporaryDirectory() as folder:
        raw = read_graph(model_file(model, Path(folder)))
        return clean_graph(raw, feeds, isolate=False, cells=cells)


@pytest.mark.parametrize(
    "changed",
    [
        {"steps": None},
        {"steps": MOST_STEPS + 1},
        {"activations": ["Cosine"]},
    ],
    ids=["free length", "too long", "unknown function"],
)
def test_what_stays_a_cell(changed: dict[str, Any]) -> None:
    given: dict[str, Any] = {"steps": 3} | changed
    model, _ = layer("RNN", **given)
    assert [n.op_type for n in in_steps(model).graph.node] == ["RNN"]


def test_zeros_that_exporters_write_out_are_no_state() -> None:
    model, feeds = layer("LSTM", given=("B",))
    held = onnx.helper.make_node("Expand", ["none", "shape"], ["zeros"], name="zeros")
    for name, array in (("none", np.zeros((), np.float32)), ("shape", np.asarray([1, 5, 4], np.int64))):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    model.graph.node[0].input[:] = ["X", "W", "R", "B", "", "zeros", "zeros"]
    model.graph.node.insert(0, held)
    steps = in_steps(model)
    products = sum(n.op_type == "MatMul" for n in steps.graph.node)
    assert products == 1 + 3  # of the input, and of all states but the first
    same(model, feeds)


def test_a_wrong_step_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(step: cells.CellStep, gates: ir.Value, state: cells.CellState) -> cells.CellState:
        made = cells.lstm(step, gates, state)
        return cells.CellState(made.cell, made.hidden)

    monkeypatch.setattr(cells, "WRITERS", {**cells.WRITERS, "LSTM": wrong})
    monkeypatch.setattr("quantpipe.intake.rewrites.recurrent.unroll.WRITERS", {**cells.WRITERS, "LSTM": wrong})
    model, feeds = layer("LSTM")
    graph = cleaned(model, feeds, LoopForms(("LSTM",)))
    assert [n.op for n in graph.nodes] == ["LSTM"]
    assert any("recurrent_layers was undone" in note for note in graph.notes)


def test_devices_decide_unless_told() -> None:
    found = {
        name: cell_forms(hardware(name), Recurrent.AUTO).steps
        for name in ("ort_cpu", "npu_w8a16", "tflite_int8", "vta")
    }
    assert found == {"ort_cpu": (), "npu_w8a16": tuple(CELLS), "tflite_int8": tuple(CELLS), "vta": ()}
    assert cell_forms(hardware("vta"), Recurrent.STEPS) == LoopForms(tuple(CELLS))
    assert cell_forms(hardware("npu_w8a16"), Recurrent.CELLS) == LoopForms()
    with pytest.raises(ConfigError, match=r"model\.recurrent: is 'step'.*steps"):
        read_recurrent("step")


CASES = [
    ("LSTM", "ort_cpu", "qdq", "forward", {}),
    ("GRU", "ort_cpu", "qoperator", "bidirectional", {}),
    ("GRU", "ort_cpu", "integer", "forward", {"linear_before_reset": 1}),
    ("RNN", "ort_cpu", "qdq", "reverse", {}),
    ("LSTM", "npu_w8a16", "integer", "forward", {}),
    ("LSTM", "tflite_int8", "integer", "bidirectional", {}),
    ("GRU", "tflite_int8", "integer", "forward", {"linear_before_reset": 1}),
]


@pytest.mark.sliced(9)
@pytest.mark.parametrize(("op", "device", "form", "direction", "attributes"), CASES)
def test_steps_run_in_integers(op: str, device: str, form: str, direction: str, attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    frames = rng.standard_normal((24, 3, 6)).astype(np.float32)
    graph = cleaned(classifier(op, 3, direction=direction, **attributes), {"x": frames[:4]}, LoopForms((op,)))
    made = line(graph, device, samples=ArraySamples({"x": frames}))
    products = [n.name for n in graph.nodes if n.op in ("MatMul", "Gemm")]
    assert set(products) <= set(made.topology.kernel_of) and len(products) >= 3
    plan = made.plan(16 if device == "npu_w8a16" else 8)
    assert made.agree(plan, form).differing == 0
    wanted, found = made.outputs()["scores"], made.outputs(made.realize(plan, form).model)["scores"]
    noise = np.square(found - wanted).sum() / np.square(wanted).sum()
    assert 10 * np.log10(noise) < (-40 if device == "npu_w8a16" else -20)
