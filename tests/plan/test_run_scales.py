"""Dense layers whose input gets a scale from the samples of each run: numbers, forms, checks, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import quantpipe
from quantpipe.annotate.run_scales import dynamic_note
from quantpipe.check.compatibility import check
from quantpipe.check.compatibility import check as fit
from quantpipe.errors import ConfigError, HardwareError
from quantpipe.graph.execute import Session
from quantpipe.graph.session_options import EXACT_PAIRS, carried
from quantpipe.hardware.cost import bops
from quantpipe.hardware.load import load_hardware
from quantpipe.recover.reconstruct.layer import LayerOptions
from quantpipe.recover.reconstruct.layerwise import Effort, recover
from quantpipe.types import DType, QuantPlan
from quantpipe.verify import verify_folder
from tests.ops.line import ArraySamples, Line, Net, hardware, hardware_data, line
from tests.verify.folders import constants, with_constant, write

FORMS = ("qdq", "qoperator", "integer")
Array = NDArray[Any]


def net(width: int = 70) -> Net:
    """Two MatMul that read one tensor, and two Gemm with bias, one of them transposed, with an Elu between them."""
    made = Net(seed=4)
    x = made.input(None, width)

    def product(inputs: int, outputs: int) -> str:
        return made.node("MatMul", x, made.constant(made.rng.standard_normal((inputs, outputs)).astype(np.float32)))

    both = made.node("Add", product(width, 40), product(width, 40))
    second = made.dense(made.node("Elu", both), 40, 33, trans=1, name="second")
    made.output(made.dense(made.node("Elu", second), 33, 5, trans=0, name="third"))
    return made


def samples(rows: int = 24, width: int = 70) -> ArraySamples:
    """Rows of very different sizes, so that one range loses much."""
    rng = np.random.default_rng(1)
    return ArraySamples(
        {"x": (rng.standard_normal((rows, width)) * rng.uniform(0.02, 3, (rows, 1))).astype(np.float32)}
    )


def rows(made: Line) -> Array:
    return np.asarray(next(iter(made.samples.batches(len(made.samples)))).inputs["x"])


def made_of(isa: str = "any", dynamic: tuple[str, ...] = ("*",), **options: Any) -> Line:
    return line(net(), hardware("ort_cpu", isa=isa), samples=samples(), dynamic=dynamic, **options)


def dense(x: Array, plan: QuantPlan, weight: str, bias: Array | float, *, turned: bool = False) -> Array:
    """A layer by the definition of DynamicQuantizeLinear: the extremes of the whole tensor, zero within."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    scale = np.float32((np.float32(high) - np.float32(low)) / np.float32(255))
    zero = np.clip(np.rint(-np.float32(low) / scale), 0, 255)
    stored = np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.int64) - int(zero)
    held = plan.weights[weight]
    values = held.values.astype(np.int64) - held.zero.astype(np.int64).reshape((-1, 1) if turned else (-1,))
    sums = stored @ (values.T if turned else values)
    return sums.astype(np.float32) * (scale * held.scale) + bias


@pytest.mark.parametrize("isa", ["any", "vnni"])
def test_every_form_computes_the_definition(isa: str, tmp_path: Path) -> None:
    made = made_of(isa)
    assert len(made.topology.dynamic) == 4 and not made.topology.kernels
    plan, feeds = made.plan(), rows(made)
    first, other = (n.inputs[1] for n in made.graph.nodes if n.op == "MatMul")
    gemms = {n.name: n.inputs for n in made.graph.nodes if n.op == "Gemm"}
    elu = lambda v: np.where(v > 0, v, np.expm1(v)).astype(np.float32)  # noqa: E731
    bias = {name: made.graph.constant(inputs[2]) for name, inputs in gemms.items()}
    hidden = elu(dense(feeds, plan, first, 0.0) + dense(feeds, plan, other, 0.0))
    hidden = elu(dense(hidden, plan, gemms["second"][1], bias["second"], turned=True))
    wanted = dense(hidden, plan, gemms["third"][1], bias["third"])
    for form in FORMS:
        rendered = made.realize(plan, form)
        (found,) = made.outputs(rendered.model).values()
        # Elu of the runtime may differ in the last bit, and a step of the last input with it
        assert np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max(), form
        agreement = made.agree(plan, form)
        assert agreement.differing == 0 and agreement.elements > 0
        assert verify_folder(write(made, plan, form, tmp_path / form)).wrong is None, form
        ops = [n.op_type for n in rendered.model.graph]
        assert ops.count("MatMulInteger") == 4 and ops.count("DynamicQuantizeLinear") == 3, "an input is rounded once"
        assert carried(rendered.model) == ({} if isa == "any" else EXACT_PAIRS)


def test_integers_of_one_layer_are_the_definition_exactly() -> None:
    made = Net(seed=2)
    made.output(made.dense(made.input(None, 9), 9, 6, trans=1, name="only"))
    given = line(made, samples=samples(16, 9), dynamic=("only",))
    plan, node = given.plan(), given.graph.by_name["only"]
    wanted = dense(rows(given), plan, node.inputs[1], given.graph.constant(node.inputs[2]), turned=True)
    (found,) = given.outputs(given.realize(plan, "qdq").model).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


def test_inputs_of_varied_sizes_lose_less_one_by_one_and_results_depend_on_the_batch() -> None:
    still, made = made_of(dynamic=()), made_of()
    lost, together = [], []
    for one in (still, made):
        session, given = Session(one.realize(one.plan(), "qdq").model), rows(one)
        (wanted,) = one.outputs().values()
        found = np.concatenate([next(iter(session.run({"x": given[i : i + 1]}).values())) for i in range(len(given))])
        together.append(next(iter(session.run({"x": given}).values())))
        lost.append(float(np.mean(np.sum((found - wanted) ** 2, axis=1) / np.sum(wanted**2, axis=1))))
        assert np.array_equal(found, together[-1]) is (one is still)
    assert lost[1] < 0.5 * lost[0]
    note = dynamic_note(made.topology)
    assert note is not None and "and 3 more have input scales" in note and "batch" in note
    assert dynamic_note(still.topology) is None
    found = fit(made.graph, made.topology, made.spec, made.schema)
    assert note in found.notes


def test_what_is_changed_in_the_file_is_found(tmp_path: Path) -> None:
    made = made_of()
    root = write(made, made.plan(), "qdq", tmp_path)
    weights = [w.tensor for w in made.topology.weights]
    bias = made.graph.by_name["second"].inputs[2]
    names = [n for n, _ in constants(root)]
    for name in (f"{weights[0]}_q", f"{weights[1]}_scale", f"{weights[2]}_q", bias):
        assert name in names, names
        value = next(v for n, v in constants(root) if n == name)
        other = value.copy()
        other.flat[1] = other.flat[1] + 1 if other.flat[1] < 1 else other.flat[1] - 1
        with_constant(root, name, other)
        assert verify_folder(root).wrong is not None, name
        with_constant(root, name, value)
        assert verify_folder(root).wrong is None


@pytest.mark.parametrize("wrong", ["Sub", "scale of another layer", "static"])
def test_other_ops_in_the_file_are_found(wrong: str, tmp_path: Path) -> None:
    made = made_of()
    root = write(made, made.plan(), "qdq", tmp_path)
    path = root / "realize" / "model.onnx"
    model = onnx.load(path)
    nodes = {n.name: n for n in model.graph.node}
    if wrong == "Sub":
        nodes["second/bias"].op_type = "Sub"
    elif wrong == "static":
        nodes["second"].input[2] = nodes["third"].input[2]
    else:
        nodes["second/scale"].input[0] = nodes["third/scale"].input[0]
    onnx.save(model, path)
    assert verify_folder(root).wrong is not None


def test_recovery_keeps_pairs_and_lowers_the_error(tmp_path: Path) -> None:
    made = made_of()
    strategy, wanted = made.strategy(4), made.outputs()

    def lost(plan: QuantPlan) -> float:
        found = made.outputs(made.realize(plan, "qdq").model)
        return sum(float(np.sum((found[n] - wanted[n]) ** 2)) for n in wanted)

    found = recover(made.problem, strategy, made.samples, LayerOptions(), effort=Effort(2048, 256))
    plan = made.planner.plan(strategy, found.overrides)
    assert lost(plan) < lost(made.plan(4))
    full = made.strategy(8)
    found = recover(made.problem, full, made.samples, LayerOptions(), effort=Effort(2048, 256))
    plan = made.planner.plan(full, found.overrides)
    assert {w.dtype for w in plan.weights.values()} == {DType.INT8}, "no pair saturates, so none is stored as uint8"
    assert verify_folder(write(made, plan, "qdq", tmp_path)).wrong is None
    assert made.agree(plan, "qdq").differing == 0


def test_costs_count_integers() -> None:
    made = made_of()
    products = 2 * 70 * 40 + 40 * 33 + 33 * 5
    assert bops(made.topology, made.graph, made.spec, made.strategy().bits) == 64 * products


def test_a_weight_with_another_reader_stays_real() -> None:
    made = Net(seed=6)
    x, weight = made.input(None, 5), made.constant(made.rng.standard_normal((5, 5)).astype(np.float32))
    scaled = made.node("Mul", weight, made.node("ReduceMean", x, keepdims=0))
    shared = made.node("Add", made.node("MatMul", x, weight), made.node("ReduceMax", scaled, keepdims=0))
    made.output(made.dense(shared, 5, 3, trans=1, name="last"))
    assert line(made, dynamic=("*",)).topology.dynamic == ("last",)


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match=r"annotate\.dynamic.*'secnd' matches no Gemm or MatMul.*second"):
        _ = made_of(dynamic=("secnd",)).topology
    with pytest.raises(ConfigError, match="vta runs no op with scales computed in the run; legal are"):
        _ = line(net(), "vta", dynamic=("*",)).topology
    with pytest.raises(HardwareError, match=r"dynamic.*is 'Conv'.*legal are Gemm, MatMul"):
        load_hardware(dict(hardware_data("ort_cpu")) | {"dynamic": ["Conv"]})


def test_a_run_warns_and_is_verified(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "dataset": {"samples": {"calibrate": 16, "search": 16, "evaluate": 16}},
        "annotate": {"dynamic": ["*"]},
    }
    given = next(iter(samples(48).batches(48))).inputs["x"]
    first = quantpipe.quantize(net().proto(), given, "ort_cpu", folder=tmp_path / "a", recover="none", **options)
    assert first.report["agreement"]["differing"] == 0
    assert any("input scales of the samples of each run" in w for w in first.report["warnings"])
    assert verify_folder(tmp_path / "a").wrong is None
    with pytest.raises(HardwareError, match=r"the c form holds integers only, and \d nodes stay in float"):
        quantpipe.quantize(net().proto(), given, "ort_cpu", recover="none", realize="c", **options)


def test_layers_in_blocks_and_layers_by_run_are_counted_apart() -> None:
    spec = hardware("ort_matmul_nbits", dynamic=["Gemm"])
    made = line(net(), spec, samples=samples(), dynamic=("second", "third"))
    notes = check(made.graph, made.topology, spec, made.schema).notes
    assert [n for n in notes if n.startswith("2 nodes multiply float inputs by integer weights in blocks of 32")]
    assert dynamic_note(made.topology) in notes
