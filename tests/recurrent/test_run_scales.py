"""Recurrent layers with input and state scales of each run: numbers, forms, checks, and what is rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import quantpipe
from quantpipe.annotate.run_scales import dynamic_note
from quantpipe.check.compatibility import check
from quantpipe.errors import ConfigError, HardwareError
from quantpipe.explain.sensitivity import QuantizedParts
from quantpipe.graph.execute import Session
from quantpipe.graph.session_options import carried
from quantpipe.hardware.cost import bops, node_cycles
from quantpipe.realize.sidecars import Sidecars
from quantpipe.recover.reconstruct.layer import LayerOptions
from quantpipe.recover.reconstruct.layerwise import Effort, recover
from quantpipe.scoring.chain import PlanDigest
from quantpipe.types import DType, QuantPlan
from quantpipe.verify import verify_folder
from quantpipe.verify.files import array_digest
from tests.ops.line import ArraySamples, Line, Net, hardware, line
from tests.recurrent.nets import SIZE, classifier, layer, with_states
from tests.verify.folders import changed as in_certificate
from tests.verify.folders import constants, with_constant, write

FORMS = ("qdq", "qoperator", "integer")
Array = NDArray[Any]


def loud(count: int) -> Array:
    """Frames `[N, 4, 6]` whose loudness varies, so that one range loses much."""
    rng = np.random.default_rng(0)
    return (rng.standard_normal((count, 4, 6)) * rng.uniform(0.05, 3, (count, 1, 1))).astype(np.float32)


def made_of(direction: str = "forward", isa: str = "any", dynamic: tuple[str, ...] = ("layer",)) -> Line:
    model = classifier("LSTM", direction=direction)
    return line(model, hardware("ort_cpu", isa=isa), samples=ArraySamples({"x": loud(24)}), dynamic=dynamic)


def rounded(x: Array) -> Array:
    """An input or a state as a layer multiplies it, by the extremes of all of its values and zero."""
    low, high = np.float32(min(float(x.min()), 0.0)), np.float32(max(float(x.max()), 0.0))
    scale = np.float32((high - low) / np.float32(255)) or np.float32(1)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    stored = np.clip(np.rint(x / scale) + zero, 0, 255)
    return np.asarray((stored - zero) * np.float64(scale))


def states(x: Array, bias: Array, plan: QuantPlan, way: int) -> Array:
    """The states `[T, N, H]` of one direction, in float64 but for what it multiplies."""
    weight, state = (
        (plan.weights[name].centred()[way] * plan.weights[name].scale.astype(np.float64)[:, None]) for name in "WR"
    )
    size = state.shape[1]
    hidden, cell, found = np.zeros((x.shape[1], size)), np.zeros((x.shape[1], size)), []
    total = bias[: 4 * size] + bias[4 * size :]
    data = rounded(x)
    sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
    for step in data if way == 0 else data[::-1]:
        gates = step @ weight.T + rounded(hidden) @ state.T + total
        inputs, outputs, forget, new = np.split(gates, 4, axis=1)
        cell = sigmoid(forget) * cell + sigmoid(inputs) * np.tanh(new)
        hidden = sigmoid(outputs) * np.tanh(cell)
        found.append(hidden)
    return np.asarray(found if way == 0 else found[::-1])


@pytest.mark.parametrize("isa", ["any", "vnni"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_a_layer_computes_the_definition(direction: str, isa: str) -> None:
    model, feeds = layer("LSTM", direction=direction)
    given = {"X": np.tile(feeds["X"], (1, 3, 1)).transpose(1, 0, 2)}  # samples on the axis of the line's own
    samples = ArraySamples({"x": np.ascontiguousarray(given["X"])})
    net = Net(seed=3)
    held = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    turned = net.node("Transpose", net.input(None, *given["X"].shape[1:]), perm=[1, 0, 2])
    names = [net.constant(held[name], name) for name in "WRB"]
    whole = net.node("LSTM", turned, *names, name="layer", hidden_size=SIZE, direction=direction)
    net.output(net.node("Transpose", whole, perm=[2, 0, 1, 3]))
    made = line(net, hardware("ort_cpu", isa=isa), samples=samples, dynamic=("layer",))
    plan = made.plan()
    (found,) = made.outputs(made.realize(plan, "qdq").model).values()
    x = given["X"].transpose(1, 0, 2)
    ways = range(2 if direction == "bidirectional" else 1)
    wanted = np.stack([states(x, held["B"][way], plan, way) for way in ways], axis=1)  # [T, D, N, H]
    np.testing.assert_allclose(found, wanted.transpose(2, 0, 1, 3), atol=1e-5)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("isa", ["any", "vnni"])
def test_every_form_is_the_searched_model_and_is_verified(direction: str, isa: str, tmp_path: Path) -> None:
    made = made_of(direction, isa, ("*",))
    assert [cell.node for cell in made.topology.cells] == ["layer"] and made.topology.dynamic == ("fc",)
    plan, batches = made.plan(), []
    for form in FORMS:
        rendered = made.realize(plan, form)
        agreement = made.agree(plan, form)
        assert agreement.differing == 0 and agreement.elements > 0
        assert verify_folder(write(made, plan, form, tmp_path / form)).wrong is None, form
        assert [n.op_type for n in rendered.model.graph].count("DynamicQuantizeLSTM") == 1
        batches.append(next(iter(made.outputs(rendered.model).values())))
        assert isa == "vnni" or carried(rendered.model) == {}
    assert all(np.array_equal(batches[0], other) for other in batches)
    (wanted,) = made.outputs().values()
    assert np.sum((batches[0] - wanted) ** 2) < 1e-3 * np.sum(wanted**2)


@pytest.mark.parametrize("isa", ["any", "vnni", "avx2"])
def test_weights_have_all_bits_and_are_exact_on_every_processor(isa: str) -> None:
    """Products of uint8 and uint8 are not added in pairs in 16 bits."""
    made = made_of("bidirectional", isa, ("*",))
    plan = made.plan()
    for name in "WR":
        weight = plan.weights[name]
        assert weight.dtype is DType.UINT8 and weight.values.shape == made.graph.shapes[name]
        real = made.graph.constant(name)
        assert np.abs(weight.centred()).max() == 127
        assert np.abs(weight.centred() * weight.scale[:, None] - real).max() <= 0.51 * weight.scale.max()
    assert not any(row["node"] == "layer" for row in plan.raised)
    assert made.agree(plan, "qdq").differing == 0


def test_lengths_and_first_states_are_passed_on(tmp_path: Path) -> None:
    model, feeds = with_states("LSTM")
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    found = quantpipe.quantize(
        path, feeds, "ort_cpu", recover="none", annotate={"dynamic": ["layer"]}, executor="serial"
    )
    assert found.report["agreement"]["differing"] == 0
    assert {row["output"]: row["sqnr_db"] > 30 for row in found.report["outputs"]} == {
        "last_hidden": True,
        "last_cell": True,
    }


def test_results_do_not_depend_on_the_threads_of_a_session_and_users_are_told(tmp_path: Path) -> None:
    made = made_of()
    realized = made.realize(made.plan(), "qdq").model
    feeds = {"x": loud(24)}
    one, two = (Session(realized, threads=n).run(feeds)["scores"] for n in (1, 2))
    np.testing.assert_array_equal(one, two)
    note = dynamic_note(made.topology)
    assert note is not None and "the layer layer has an input scale" in note and "intra_op_num_threads = 1" in note
    assert note in check(made.graph, made.topology, made.spec, made.schema).notes
    path = tmp_path / "model.onnx"
    onnx.save(classifier("LSTM"), path)
    found = quantpipe.quantize(
        path, {"x": loud(96)}, "ort_cpu", recover="none", annotate={"dynamic": ["*"]},
        folder=tmp_path / "run", executor="serial",
    )  # fmt: skip
    assert found.report["agreement"]["differing"] == 0
    assert any("the states of each thread" in w for w in found.report["warnings"])
    assert "with intra_op_num_threads = 1 and otherwise default" in found.report["deployment"]["sentence"]
    ship = (tmp_path / "run" / "realize" / "SHIP.md").read_text()
    assert "options.intra_op_num_threads = 1\n" in ship and "| `intra_op_num_threads = 1` |" in ship
    still = quantpipe.quantize(path, {"x": loud(96)}, "ort_cpu", recover="none", executor="serial")
    assert "threads" not in still.report["deployment"]["code"] + still.report["deployment"]["sentence"]


@pytest.mark.parametrize("changed", ["W_q", "R_q", "W_scale", "R_scale", "R_zero_point"])
def test_what_is_changed_in_the_file_is_found(changed: str, tmp_path: Path) -> None:
    made = made_of("bidirectional")
    root = write(made, made.plan(), "qdq", tmp_path)
    value = next(v for n, v in constants(root) if n == changed)
    other = value.copy()
    other.flat[3] = other.flat[3] + 1 if other.flat[3] < 100 else other.flat[3] - 1
    with_constant(root, changed, other)
    assert verify_folder(root).wrong is not None
    found = _forged(root, changed, other)
    assert found.startswith("layer: its weights") and ("plan.json" in found or "other" in found)
    assert _forged(root, changed, value) == ""


def _forged(root: Path, name: str, value: Array) -> str:
    """What `verify` finds where the certificate names the changed constant, too."""
    with_constant(root, name, value)
    in_certificate(root, "certificate.json", lambda claims: claims["constants"].update({name: array_digest(value)}))
    return verify_folder(root).wrong or ""


@pytest.mark.parametrize("wrong", ["weights exchanged", "scales exchanged", "another op"])
def test_other_inputs_or_ops_in_the_file_are_found(wrong: str, tmp_path: Path) -> None:
    made = line(*_square(), dynamic=("layer",))
    root = write(made, made.plan(), "qdq", tmp_path)
    path = root / "realize" / "model.onnx"
    model = onnx.load(path)
    node = next(n for n in model.graph.node if n.name == "layer")
    first, second = {"weights exchanged": (1, 2), "scales exchanged": (8, 10), "another op": (1, 1)}[wrong]
    node.input[first], node.input[second] = node.input[second], node.input[first]
    if wrong == "another op":
        node.op_type, node.domain = "LSTM", ""
    onnx.save(model, path)
    assert verify_folder(root).wrong is not None


def _square() -> tuple[Net, Any]:
    """A layer whose two weights have one shape."""
    net = Net(seed=2)
    turned = net.node("Transpose", net.input(None, 4, SIZE), perm=[1, 0, 2])
    held = [net.floats(1, 4 * SIZE, SIZE, name=name) for name in "WR"]
    net.output(
        net.node("Transpose", net.node("LSTM", turned, *held, name="layer", hidden_size=SIZE), perm=[2, 0, 1, 3])
    )
    return net, hardware("ort_cpu")


def test_digests_of_a_plan_hold_these_weights() -> None:
    made = made_of()
    plans = [made.plan(8), made.plan(8), made.plan(7)]
    layer = made.topology.restricted((), {"layer"})
    first, same, other = (PlanDigest().of(plan, layer, ()) for plan in plans)
    assert first == same != other


def test_costs_count_integers() -> None:
    made, still = made_of(), made_of(dynamic=())
    products = 4 * (6 + 8) * 32
    dense = 8 * 5 * 64
    assert bops(made.topology, made.graph, made.spec, made.strategy().bits) == 64 * products + dense
    assert bops(still.topology, still.graph, still.spec, still.strategy().bits) == 1024 * products + dense
    fewer = {**made.strategy().bits, "R": 4}
    assert bops(made.topology, made.graph, made.spec, fewer) == 64 * 4 * 6 * 32 + 32 * 4 * 8 * 32 + dense
    spent = node_cycles(made.topology, made.graph, made.spec, made.strategy().bits)["layer"]
    assert spent == products / 64 + (6 + 8) * 32 / 16, "the rate of int8, and a byte for each weight"


def test_recovery_leaves_these_weights_as_they_are() -> None:
    made = made_of()
    found = recover(made.problem, made.strategy(8), made.samples, LayerOptions(), effort=Effort(2048, 256))
    assert not {"W", "R"}.intersection(found.overrides.weights)
    assert made.agree(made.planner.plan(made.strategy(8), found.overrides), "qdq").differing == 0


def test_other_options_keep_a_layer_in_float_and_come_first() -> None:
    for options in ({"float_nodes": ("layer",)}, {"float_ops": ("LSTM",)}):
        made = line(classifier("LSTM"), dynamic=("*",), **options)  # type: ignore[arg-type]
        assert made.topology.cells == () and made.topology.dynamic == ("fc",)
    only = line(classifier("LSTM"), dynamic=("*",), only_ops=("Gemm",))
    assert [cell.node for cell in only.topology.cells] == ["layer"], "only_ops is about static scales"


@pytest.mark.parametrize("op", ["GRU", "RNN"])
def test_recurrent_layers_that_onnxruntime_lacks_are_named(op: str) -> None:
    with pytest.raises(ConfigError, match=r"'layer' matches no Gemm or MatMul or LSTM of the model"):
        _ = line(classifier(op), dynamic=("layer",)).topology


def test_a_shared_weight_is_no_layers_own() -> None:
    net = Net(seed=2)
    turned = net.node("Transpose", net.input(None, 4, SIZE), perm=[1, 0, 2])
    held = [net.floats(1, 4 * SIZE, SIZE, name=name) for name in "WR"]
    ways = enumerate(("forward", "reverse"))
    both = [net.node("LSTM", turned, *held, name=f"layer{i}", hidden_size=SIZE, direction=way) for i, way in ways]
    net.output(net.node("Transpose", net.node("Add", *both), perm=[2, 0, 1, 3]))
    with pytest.raises(ConfigError, match="'layer0' matches no"):
        _ = line(net, dynamic=("layer0",)).topology


@pytest.mark.parametrize("granularity", ["per_channel", "per_tensor"])
def test_asymmetric_weights_have_one_zero_point(granularity: str, tmp_path: Path) -> None:
    """onnxruntime rejects a zero point for each row."""
    weights = {"symmetric": False, "granularity": [granularity], "bits": 8}
    made = line(classifier("LSTM"), hardware("ort_cpu", weights=weights), samples=ArraySamples({"x": loud(24)}),
                schema="asymmetric", dynamic=("layer",))  # fmt: skip
    plan = made.plan()
    assert all(plan.weights[name].scale.shape == () for name in "WR")
    assert made.agree(plan, "qdq").differing == 0
    assert verify_folder(write(made, plan, "qdq", tmp_path)).wrong is None


@pytest.mark.parametrize("change", ["entry", "op", "bits", "dtype"])
def test_a_changed_entry_of_plan_json_is_found(change: str, tmp_path: Path) -> None:
    made = made_of()
    root = write(made, made.plan(), "qdq", tmp_path)

    def forge(plan: dict[str, Any]) -> None:
        if change == "entry":
            del plan["weighted"]["layer"]
        elif change == "op":
            plan["weighted"]["layer"]["op"] = "GRU"
        else:
            plan["weights"]["W"][change] = {"bits": 4, "dtype": "int8"}[change]

    in_certificate(root, "plan.json", forge)
    assert verify_folder(root).wrong is not None


def test_explain_measures_these_weights_and_a_warning_names_the_layer(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(classifier("LSTM"), path)
    options: dict[str, Any] = {"recover": "none", "annotate": {"dynamic": ["*"]}, "executor": "serial"}
    few = hardware("ort_cpu", weights={"symmetric": True, "granularity": ["per_channel"], "bits": 2})
    found = quantpipe.quantize(path, {"x": loud(96)}, few, **options)
    (lossy,) = (w for w in found.warnings if "most is lost" in w)
    assert "annotate.float_nodes" in lossy and "layer" in lossy and "annotate.min_bits=8" in lossy
    made = line(classifier("LSTM"), few, samples=ArraySamples({"x": loud(24)}), dynamic=("*",))
    parts = QuantizedParts.of(made.graph, made.topology, made.plan(2))
    assert {"W": "layer", "R": "layer", "w": "fc"}.items() <= {n: e.node for n, e in parts.constants.items()}.items()
    assert min(parts.constants[name].noise() for name in ("W", "R", "w")) > 0.01


def test_sidecars_have_no_such_layers() -> None:
    made = made_of()
    with pytest.raises(HardwareError, match=r"layer.*input scales of each run .* legal is annotate.dynamic=\[\]"):
        Sidecars().write(made.graph, made.topology, made.plan(), cast(Any, None))


def test_a_constraint_on_such_a_weight_is_named() -> None:
    constraints = {"W": {"kind": "any", "bits": 4}}
    with pytest.raises(ConfigError, match=r"is read by layer, whose integers annotate.dynamic chooses; legal is none"):
        _ = line(classifier("LSTM"), dynamic=("layer",), constraints=constraints).topology
