"""Calibrators of layers: what they see, in which order, what becomes of their decisions, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from quantpipe import extend, testing
from quantpipe.app.thresholds import rules_of
from quantpipe.calibrate.decided import DecidedEstimator, refuse_as_rule
from quantpipe.calibrate.estimators import MSE, OutputError, output_error
from quantpipe.calibrate.measure import measure
from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.errors import ConfigError
from quantpipe.extend import ExactGrid, Extension, Layer, LayerDecision, Views
from quantpipe.graph.execute import Session
from quantpipe.graph.outputs import with_outputs
from quantpipe.recover.layer_units import Calibrated, Choosing, walked
from quantpipe.recover.layer_views import calibrate_layers
from quantpipe.types import QuantPlan, Range
from tests.ops.line import ArraySamples, Line, Net, hardware, line

Array = NDArray[Any]
COUNT = 64


def planted(outlier: float = 40.0) -> tuple[Net, ArraySamples]:
    """A dense layer whose first input is far larger than the others, and is multiplied by all but nothing."""
    net, rng = Net(seed=1), np.random.default_rng(2)
    x = net.input(None, 12)
    weight = rng.standard_normal((12, 6)).astype(np.float32)
    weight[0] *= 1e-4
    net.output(net.node("MatMul", net.node("Relu", net.node("MatMul", x, net.constant(weight))), net.floats(6, 4)))
    values = rng.standard_normal((COUNT, 12)).astype(np.float32)
    values[:, 0] *= outlier
    return net, ArraySamples({"x": values})


def two_layers() -> tuple[Net, ArraySamples]:
    net = Net(seed=3)
    x = net.input(None, 3, 6, 6)
    front = net.node("Relu", net.conv(x, 3, 4, 3, 3, pads=[1, 1, 1, 1]))
    joined = net.node("Add", net.conv(front, 4, 4, 1, 1), front)
    net.output(net.dense(net.node("Flatten", net.node("GlobalAveragePool", joined)), 4, 3, trans=1))
    return net, ArraySamples({"x": np.random.default_rng(4).standard_normal((COUNT, 3, 6, 6)).astype(np.float32)})


def calibrated(
    made: Line, calibrator: Callable[[Layer], LayerDecision | None] | None, memory_mb: int = 64
) -> tuple[DecidedEstimator, ThresholdTable, Calibrated]:
    decided = DecidedEstimator(MSE())
    profile = measure(made.graph, made.topology.measured, made.samples, 1024)
    table = ThresholdTable(made.graph, made.topology, made.schema, profile, estimator=decided, weight_method="mse")
    found = calibrate_layers(
        made.problem, table, made.strategy(8), made.samples, choosing=Choosing(calibrator), memory_mb=memory_mb
    )
    return decided, table, found


def plan_of(made: Line, table: ThresholdTable, bits: int = 8) -> QuantPlan:
    keys = [*(g.key for g in made.topology.groups), *(w.tensor for w in made.topology.weights)]
    return made.planner.plan(table.strategy({f"bits:{key}": bits for key in keys}))


def error(made: Line, plan: QuantPlan) -> float:
    wanted, found = made.outputs(), made.outputs(made.realize(plan, "qdq").model)
    return sum(float(np.sum((wanted[n] - found[n]) ** 2)) for n in wanted)


@pytest.mark.parametrize("outlier", [10.0, 40.0])
def test_output_error_beats_mse_on_a_planted_layer(outlier: float) -> None:
    net, samples = planted(outlier)
    made = line(net, samples=samples)
    decided, table, found = calibrated(made, OutputError().layer)
    assert made.graph.inputs[0].name in found.ranges
    ours = plan_of(made, table)
    decided.ranges.clear()
    decided.weights.clear()
    theirs = plan_of(made, table)
    assert error(made, ours) < 0.07 * error(made, theirs)
    assert made.agree(ours, "qdq").differing == 0


def test_decisions_hold_at_their_bits_and_by_their_factor_at_others() -> None:
    net, samples = planted()
    made = line(net, samples=samples, min_bits=2)
    decided, table, _ = calibrated(made, OutputError().layer)
    group = next(g for g in made.topology.groups if g.key in decided.ranges)
    bits, own = decided.ranges[group.key]
    before = {b: MSE()(table._stats[group.sources[0]], b, made.schema.activations) for b in (bits, 5)}
    assert table.group_range(group, bits) == own
    assert table.group_range(group, 5).high == pytest.approx(before[5].high * own.threshold / before[bits].threshold)
    assert table.group_range(group, bits, whole=True).threshold > own.threshold


def test_memory_and_batches_change_no_decision() -> None:
    net, samples = planted()
    made = line(net, samples=samples)
    first, second = (calibrated(made, OutputError().layer, memory_mb)[0] for memory_mb in (64, 0))
    assert first.ranges == second.ranges and first.ranges


class Recorder:
    """Keeps all views of every layer; decides nothing."""

    def __init__(self) -> None:
        self.layers: dict[str, list[Views]] = {}
        self.open: dict[str, tuple[str, ...]] = {}

    def __call__(self, layer: Layer) -> LayerDecision | None:
        self.layers[layer.node] = list(layer.batches())
        self.open[layer.node] = layer.open
        return None


def joined(views: list[Views], part: str, tensor: str) -> Array:
    return np.concatenate([getattr(v, part)[tensor] for v in views])


def test_the_four_views_are_those_of_the_two_models() -> None:
    net, samples = two_layers()
    made, recorder = line(net, samples=samples), Recorder()
    _, table, _ = calibrated(made, recorder)
    tensors = [t for n in made.graph.nodes for t in n.outputs]
    batches = [dict(batch.inputs) for batch in walked(made.graph, samples)]
    inputs = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    real = {**inputs, **Session(with_outputs(made.graph.model, tensors)).run(inputs)}
    strategy = made.strategy(8)
    for kernel in made.topology.kernels:
        if kernel.node not in recorder.layers:
            continue
        views = recorder.layers[kernel.node]
        for operand in kernel.operands:
            group = made.topology.group_of[operand.tensor]
            assert np.allclose(joined(views, "float_inputs", operand.tensor), real[operand.tensor], atol=1e-5)
            found = joined(views, "quantized_inputs", operand.tensor)
            range_ = table.group_range(group, strategy.bits[group.key])
            steps = found / ((range_.high - range_.low) / 255)  # uint8, asymmetric
            assert np.abs(steps - np.rint(steps)).max() < 1e-3 and len(np.unique(np.rint(steps))) <= 256
        assert np.allclose(joined(views, "float_outputs", kernel.output), real[kernel.output], atol=1e-4)
    last = made.topology.kernels[-1]
    views = recorder.layers[last.node]
    weight = made.planner.weight(last.weight or "", 8, table.weight_thresholds(last.weight or "", 8))
    dense = made.graph.by_name[last.node]
    by_hand = joined(views, "quantized_inputs", last.operands[0].tensor) @ (
        weight.values * weight.scale[:, np.newaxis]
    ).T + made.graph.constant(dense.inputs[2])
    assert np.allclose(joined(views, "quantized_outputs", last.output), by_hand, atol=1e-4)


def test_a_third_of_the_samples_is_walked_evenly_spread() -> None:
    net, samples = two_layers()
    graph = line(net, samples=samples).graph
    for count, wanted in ((10, 10), (32, 32), (64, 32), (300, 100)):
        shown = ArraySamples({"x": np.arange(count)})
        found = np.concatenate([batch.inputs["x"] for batch in walked(graph, shown)])
        assert wanted - 16 < len(found) <= wanted
        assert np.diff(found).max() <= 16 * 3 + 1 and found[0] == 0 and found[-1] >= count * 0.8


def test_what_a_function_makes_of_views_is_what_it_makes_of_those_that_are_compared() -> None:
    net, samples = two_layers()
    seen = []

    def both(layer: Layer) -> LayerDecision | None:
        tensor = layer.inputs[0]
        decisions = [None, LayerDecision({tensor: Range(-0.5, 0.5)} if tensor in layer.open else {})]

        def error(tried: tuple[Views, ...]) -> list[float]:
            return [
                float(np.abs(v.quantized_outputs[o] - v.float_outputs[o]).sum()) for v in tried for o in layer.outputs
            ]

        measured = layer.measure(decisions, error, 0.5)
        assert measured == [error(tried) for tried in layer.compare(decisions, 0.5)]
        seen.append(len(measured))
        return None

    calibrated(line(net, samples=samples), both)
    assert len(seen) > 1 and min(seen) > 1


def test_views_can_only_be_looked_at() -> None:
    net, samples = two_layers()

    def spoil(layer: Layer) -> LayerDecision | None:
        for views in layer.batches():
            for arrays in (views.float_inputs, views.quantized_inputs, views.float_outputs, views.quantized_outputs):
                for array in arrays.values():
                    with pytest.raises(ValueError, match="read-only"):
                        array += 1
        return None

    calibrated(line(net, samples=samples), spoil)


def test_later_layers_see_earlier_decisions_and_each_range_is_open_once() -> None:
    net, samples = two_layers()
    made, recorder = line(net, samples=samples), Recorder()
    calibrated(made, recorder)
    opened = [t for open_ in recorder.open.values() for t in open_]
    assert len(opened) == len(set(opened)) and made.graph.inputs[0].name == opened[0]

    def tight(layer: Layer) -> LayerDecision | None:
        first = made.graph.inputs[0].name in layer.open
        recorder(layer)
        return LayerDecision({made.graph.inputs[0].name: Range(-0.01, 0.01)}) if first else None

    before = joined(recorder.layers[made.topology.kernels[-1].node], "quantized_outputs", made.graph.outputs[0].name)
    decided, _, found = calibrated(made, tight)
    after = joined(recorder.layers[made.topology.kernels[-1].node], "quantized_outputs", made.graph.outputs[0].name)
    assert np.std(after, axis=0).max() < 0.1 * np.std(before, axis=0).max()
    assert list(found.ranges) == list(decided.ranges) == [made.topology.group_of[made.graph.inputs[0].name].key]


def test_exact_numbers_are_those_of_the_plan() -> None:
    net, samples = planted()
    made = line(net, hardware("ort_cpu", isa="vnni"), samples=samples)  # with `any`, pairs may need another scale
    scale = np.float32(0.03)

    def exact(layer: Layer) -> LayerDecision:
        channels = None if layer.thresholds is None else len(layer.thresholds)
        weight = None if channels is None else ExactGrid(np.linspace(0.01, 0.02, channels).astype(np.float32))
        return LayerDecision({t: ExactGrid(scale, 100) for t in layer.open}, weight)

    _, table, found = calibrated(made, exact)
    plan = plan_of(made, table)
    assert found.ranges and len(found.weights) == 2
    for key in found.ranges:
        assert plan.quantizers[key].scale == scale and plan.quantizers[key].zero_point == 100
    for name in found.weights:
        weight = plan.weights[name]
        assert np.array_equal(weight.scale, np.linspace(0.01, 0.02, len(weight.scale)).astype(np.float32))


class Counting(OutputError):
    """Counts the samples that a layer is run on, the two runs that need no calibrator included."""

    seen: ClassVar[list[float]] = []

    def layer(self, layer: Layer) -> LayerDecision | None:
        total = 0

        class Counted:
            def __getattr__(self, name: str) -> Any:
                return getattr(layer, name)

            def batches(self, decision: LayerDecision | None = None, share: float = 1.0) -> Any:
                nonlocal total
                for views in layer.batches(decision, share):
                    total += len(next(iter(views.float_outputs.values())))
                    yield views

        found = super().layer(Counted())
        self.seen.append(2 + total / COUNT)
        return found


def test_four_passes_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_error, "LEAST_ELEMENTS", 1)  # of these nets it is all that they have
    Counting.seen.clear()
    for made in (line(planted()[0], samples=planted()[1]), line(two_layers()[0], samples=two_layers()[1])):
        calibrated(made, Counting().layer)
    assert len(Counting.seen) >= 5 and max(Counting.seen) <= 4


BAD: dict[str, tuple[Any, str]] = {
    "raises": (lambda layer: 1 / 0, "its calibrator raised ZeroDivisionError at "),
    "type": (lambda layer: {"ranges": {}}, "gives a dict; legal are a LayerDecision and None"),
    "tensor": (lambda layer: LayerDecision({"z": Range(-1, 1)}), "decides on 'z'; open there are "),
    "range": (lambda layer: LayerDecision(dict.fromkeys(layer.open, 3.0)), "3.0; legal are a finite Range and an Ex"),
    "nan": (lambda layer: LayerDecision(dict.fromkeys(layer.open, Range(0, float("nan")))), "legal are a finite Range"),
    "exact": (lambda layer: LayerDecision(dict.fromkeys(layer.open, ExactGrid(0.1, 999))), "cannot have"),
    "shape": (lambda layer: LayerDecision(weight=np.ones(77)), "thresholds of (77,); legal are finite ones of (6,)"),
}


@pytest.mark.parametrize("mistake", BAD)
def test_mistakes_name_the_package_in_one_paragraph(mistake: str) -> None:
    calibrator, message = BAD[mistake]
    net, samples = planted()
    extension = Extension(calibrators={"MatM*": calibrator})
    with testing.installed(extension, "my_npu"), pytest.raises(ConfigError) as caught:
        calibrated(line(net, samples=samples), None)
    text = str(caught.value)
    assert message in text and "the plug-in package my_npu" in text and "\n" not in text and caught.value.exit_code == 2


def test_a_packages_calibrator_decides_before_the_options_and_is_tested_by_the_kit() -> None:
    net, samples = planted()
    made = line(net, samples=samples)

    def narrow(layer: Layer) -> LayerDecision:
        return LayerDecision({t: Range(0.5 * r.low, 0.5 * r.high) for t, r in layer.ranges.items() if t in layer.open})

    extension = Extension(calibrators={"MatMul": narrow})
    with testing.installed(extension, "my_npu"):
        assert extend.has_calibrators()
        _, _, found = calibrated(made, OutputError().layer)
    assert not extend.has_calibrators()
    assert set(found.ranges.values()) == {"my_npu"} and not found.weights
    checked = testing.check_model(net.proto(), "ort_cpu", extension, package="my_npu")
    assert len(checked.kernels) == 2 and checked.elements > 0
    with pytest.raises(ConfigError, match="no kernel of an op that its calibrators are for"):
        testing.check_model(net.proto(), "ort_cpu", Extension(calibrators={"Conv": narrow}), package="my_npu")
    with pytest.raises(ConfigError, match="its calibrator of Conv is a int; legal is a callable"):
        extend.install_object("my_npu", "", Extension(calibrators={"Conv": 3}))  # type: ignore[dict-item]


def test_a_layer_calibrator_is_no_estimator_of_a_rule_or_of_itself() -> None:
    with pytest.raises(ConfigError, match="decides on whole layers; legal is threshold=output_error"):
        refuse_as_rule(rules_of([{"tensors": "x", "use": "output_error"}], ()))
    with pytest.raises(ConfigError, match="cannot be output_error itself"):
        OutputError(OutputError())
    with pytest.raises(ConfigError, match="passes is 0; legal are numbers above 0"):
        OutputError(passes=0)


@pytest.mark.sliced(2)
@pytest.mark.parametrize("memory_mb", [0, 64])
def test_whoever_looks_at_some_views_or_at_two_at_once_sees_the_same(memory_mb: int) -> None:
    """Batches run side by side: those that nobody waits for must not be in the way of the next ones."""
    net, samples = two_layers()
    made, asked = line(net, samples=samples), []

    def impatient(layer: Layer) -> None:
        for _ in range(3):
            next(iter(layer.batches()))
        tight = LayerDecision({t: Range(-0.1, 0.1) for t in layer.open})
        for plain, other in zip(layer.batches(), layer.batches(tight), strict=True):
            for tensor, wanted in plain.float_outputs.items():
                assert np.array_equal(other.float_outputs[tensor], wanted)
        asked.append(layer.node)
        alone = list(layer.batches())
        both = list(layer.compare([None, tight]))
        for single, (first, second) in zip(alone, both, strict=True):
            for tensor in single.quantized_outputs:
                assert np.array_equal(single.quantized_outputs[tensor], first.quantized_outputs[tensor])
                assert not layer.open or not np.array_equal(
                    first.quantized_outputs[tensor], second.quantized_outputs[tensor]
                )

    calibrated(made, impatient, memory_mb)
    assert len(asked) == len(made.topology.kernels)
