"""The measurement against onnxruntime and NumPy on whole arrays: passes, batches, threads, bad values, interruption."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from quantpipe.calibrate import measure as module
from quantpipe.calibrate.measure import Detail, measure
from quantpipe.calibrate.passes import channel_axis, execution_order, lacking, per_channel_tensors, plan_passes
from quantpipe.errors import ConfigError, DataError
from quantpipe.graph.io import model_bytes
from quantpipe.graph.normalize import expose
from quantpipe.graph.outputs import with_extremes, with_outputs
from quantpipe.graph.view import Graph
from quantpipe.types import Profile, TensorStats
from tests.ops.line import ArraySamples, Net, load, normal_samples

COUNT = 21  # not a multiple of any batch size


def small_net(opset: int = 17) -> Net:
    net = Net(opset=opset)
    a = net.node("Relu", net.conv(net.input(None, 3, 8, 8), 3, 6, 3, 3), output="relu")
    b = net.node("Sigmoid", net.conv(a, 6, 4), output="gate")
    pooled = net.node("Flatten", net.node("GlobalAveragePool", b), output="flat")
    net.output(net.dense(pooled, 4, 5))
    return net


@pytest.fixture(scope="module")
def graph() -> Graph:
    return load(small_net())


@pytest.fixture(scope="module")
def samples(graph: Graph) -> ArraySamples:
    return normal_samples(graph, COUNT)


def all_tensors(graph: Graph) -> list[str]:
    return [i.name for i in graph.inputs] + [t for n in graph.nodes for t in n.outputs]


def whole(graph: Graph, samples: ArraySamples) -> dict[str, NDArray[Any]]:
    """Every tensor over all samples at once, by onnxruntime as it is."""
    names = [t for t in all_tensors(graph) if t not in samples.inputs]
    session = ort.InferenceSession(model_bytes(expose(graph.model, names)), providers=["CPUExecutionProvider"])
    return {**samples.inputs, **dict(zip(names, session.run(names, dict(samples.inputs)), strict=True))}


def same(a: TensorStats, b: TensorStats) -> bool:
    numbers = ("count", "minimum", "maximum", "mean", "variance", "batch_minimum", "batch_maximum", "limit")
    return all(np.array_equal(getattr(a, n), getattr(b, n), equal_nan=True) for n in numbers) and all(
        np.array_equal(getattr(a, n), getattr(b, n)) for n in ("histogram", "batch_extremes")
    )


def check(graph: Graph, samples: ArraySamples, profile: Profile, moments: bool = True) -> None:
    values = whole(graph, samples)
    for name, stats in profile.tensors.items():
        array = values[name].astype(np.float64)
        near = {"rel": 1e-5, "abs": 1e-6}
        assert stats.count == array.size and stats.full is moments
        assert stats.minimum == pytest.approx(array.min(), **near)
        assert stats.maximum == pytest.approx(array.max(), **near)
        batches = [array[i : i + graph.batch_size] for i in range(0, COUNT, graph.batch_size)]
        expected = [[b.min(), b.max()] for b in batches]
        assert stats.batch_extremes == pytest.approx(np.asarray(expected), **near)
        assert [stats.batch_minimum, stats.batch_maximum] == pytest.approx(np.mean(expected, axis=0), **near)
        if moments:
            assert stats.mean == pytest.approx(array.mean(), **near)
            assert stats.variance == pytest.approx(array.var(), rel=1e-4)
            assert stats.histogram.sum() == array.size
        else:
            assert np.isnan(stats.mean) and np.isnan(stats.variance) and len(stats.histogram) == 0


@pytest.fixture
def small_batches(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> int:
    """Statistic batches of 8, so that there are several."""
    monkeypatch.setitem(graph.__dict__, "batch_size", 8)
    return 8


@pytest.mark.parametrize("extremes_only", [False, True])
@pytest.mark.parametrize("memory_mb", [1024, 0])
def test_statistics_are_those_of_all_samples_at_once(
    graph: Graph, samples: ArraySamples, small_batches: int, memory_mb: int, extremes_only: bool
) -> None:
    tensors = all_tensors(graph)
    profile = measure(graph, tensors, samples, memory_mb, detail=Detail(extremes_only=extremes_only))
    assert list(profile.tensors) == tensors and profile.samples == COUNT
    check(graph, samples, profile, moments=not extremes_only)


def test_no_room_means_one_pass_per_tensor_and_one_sample_per_run(graph: Graph, small_batches: int) -> None:
    tensors = all_tensors(graph)
    passes = plan_passes(graph, tensors[::-1], 0)
    assert [p.size for p in passes] == [1] * len(passes)
    assert [list(p.tensors) for p in passes] == [[t] for t in tensors]
    (one,) = plan_passes(graph, tensors, 1024)
    assert one.size == 8 and list(one.tensors) == tensors


def test_groups_stay_within_the_memory(graph: Graph, small_batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {t: (1, 300_000) if t != "flat" else (1, 700_000) for t in graph.shapes}
    monkeypatch.setitem(graph.__dict__, "shapes", shapes)  # 2.4 MB a tensor with the runtime's copy, one of 5.6
    for memory in (3, 5, 8, 40):
        passes = plan_passes(graph, all_tensors(graph), memory, ["relu"])
        assert sorted(t for p in passes for t in p.tensors) == sorted(all_tensors(graph))
        assert [p.tensors for p in passes if p.reduced] == [("relu",)]
        for one in passes:
            held = sum(8 * shapes[t][1] for t in one.tensors if t not in ("x",)) * one.size
            assert held <= memory << 20 or len(one.tensors) == 1


def test_the_fixed_batch_of_a_model_is_kept() -> None:
    net = small_net()
    net.fix_batch(3)
    fixed = load(net)
    assert {p.size for memory in (0, 1024) for p in plan_passes(fixed, all_tensors(fixed), memory)} == {3}
    samples = normal_samples(fixed, COUNT)
    for extremes_only in (False, True):
        profile = measure(fixed, ["relu"], samples, 0, detail=Detail(extremes_only=extremes_only))
        values = np.concatenate([whole(fixed, _cut(samples, i, 3))["relu"] for i in range(0, COUNT, 3)])
        assert profile.tensors["relu"].maximum == values.max() and profile.tensors["relu"].count == values.size


def _cut(samples: ArraySamples, start: int, count: int) -> ArraySamples:
    return ArraySamples({k: v[start : start + count] for k, v in samples.inputs.items()})


def test_the_number_of_threads_changes_no_bit(
    graph: Graph, samples: ArraySamples, small_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(module, "available_cores", lambda count=threads: count)
        found.append(measure(graph, all_tensors(graph), samples, 1024).tensors)
    assert all(same(found[0][t], other[t]) for other in found[1:] for t in found[0])


@pytest.mark.parametrize("opset", [11, 13, 17, 18, 21])
def test_reductions_in_the_graph_at_every_opset(opset: int) -> None:
    graph = load(small_net(opset))
    samples = normal_samples(graph, 4)
    ranks = {t: len(graph.shapes[t]) for t in all_tensors(graph)}
    assert set(ranks.values()) >= {2, 4}
    model, names = with_extremes(graph.model, ranks)
    session = ort.InferenceSession(model_bytes(model), providers=["CPUExecutionProvider"])
    found = dict(zip([o.name for o in session.get_outputs()], session.run(None, dict(samples.inputs)), strict=True))
    for tensor, array in whole(graph, samples).items():
        of = names[tensor]
        assert (found[of.minima].min(), found[of.maxima].max()) == pytest.approx((array.min(), array.max()), rel=1e-5)
        assert found[of.sums].sum() == pytest.approx(array.sum(), rel=1e-3, abs=1e-3)
        assert found[of.count] == array.size


def test_a_pass_runs_only_what_leads_to_its_tensors(graph: Graph) -> None:
    model = with_outputs(graph.model, ["relu"])
    assert len(model.graph) == 2 and [o.name for o in model.graph.outputs] == ["relu"]
    assert len(graph.model.graph) == len(graph.nodes), "the original is as it was"


def dividing_net() -> Net:
    net = Net()
    ratio = net.node("Div", net.constant(np.ones(1, np.float32)), net.input(None, 3, 4, 4), output="ratio")
    root = net.node("Sqrt", ratio, output="root")
    net.output(net.conv(root, 3, 2))
    return net


@pytest.mark.parametrize("extremes_only", [False, True])
@pytest.mark.parametrize("bad", [0.0, -1.0, np.float32(-0.0)])
def test_values_that_are_not_finite_are_named_where_they_begin(extremes_only: bool, bad: float) -> None:
    graph = load(dividing_net(), lambda raw: ArraySamples({"x": np.ones((4, 3, 4, 4), np.float32)}))
    array = np.random.default_rng(0).uniform(0.5, 2.0, (COUNT, 3, 4, 4)).astype(np.float32)
    array[17, 1, 2, 3] = bad
    tensors = all_tensors(graph)[::-1]
    origin = "root" if bad == -1.0 else "ratio"  # 1/0 is infinite, the root of -1 is NaN
    with pytest.raises(DataError, match=f"the tensor {origin} holds 1 values .* sample 17 of {COUNT}"):
        measure(graph, tensors, ArraySamples({"x": array}), 1024, detail=Detail(extremes_only=extremes_only))


def test_extremes_survive_a_sum_that_overflows() -> None:
    net = Net()
    net.output(net.conv(net.node("Identity", net.input(None, 3, 4, 4)), 3, 2))
    graph = load(net)
    array = np.full((5, 3, 4, 4), 2e38, np.float32)
    array[3, 0, 0, 0] = -3e38
    stats = measure(graph, ["x"], ArraySamples({"x": array}), 1024, detail=Detail(extremes_only=True)).tensors["x"]
    assert (stats.minimum, stats.maximum, stats.count) == (array.min(), array.max(), array.size)


@pytest.mark.parametrize("extremes_only", [False, True])
@pytest.mark.parametrize("constant", [0.0, 2.5, -1.0])
def test_constant_tensors_and_tensors_of_zeros(extremes_only: bool, constant: float) -> None:
    net = Net()
    x = net.input(None, 3, 4, 4)
    made = net.node(
        "Add", net.node("Mul", x, net.constant(np.zeros(1, np.float32))), net.constant(np.float32(constant))
    )
    net.output(net.conv(net.node("Identity", made, output="flatline"), 3, 2, 3, 3, pads=[1, 1, 1, 1]))
    graph = load(net)
    tensor = next(t for t in all_tensors(graph)[1:] if np.all(graph.shapes[t] == graph.shapes["x"]))
    stats = measure(
        graph, all_tensors(graph), normal_samples(graph, 9), 1024, detail=Detail(extremes_only=extremes_only)
    ).tensors
    found = [s for t, s in stats.items() if s.minimum == s.maximum == constant]
    assert found and tensor in stats
    assert all(s.limit == (abs(constant) or 1.0) for s in found)


def test_channels_are_those_of_numpy(graph: Graph, samples: ArraySamples, small_batches: int) -> None:
    values = whole(graph, samples)
    profile = measure(graph, ["relu", "gate", "flat"], samples, 0, detail=Detail(by_channel=["relu", "flat"]))
    assert profile.tensors["gate"].channels is None
    for name in ("relu", "flat"):
        channels = profile.tensors[name].channels
        assert channels is not None and channels.axis == 1
        rows = np.moveaxis(values[name].astype(np.float64), 1, 0).reshape(values[name].shape[1], -1)
        expected = [rows.min(axis=1), rows.max(axis=1), rows.mean(axis=1), rows.var(axis=1)]
        np.testing.assert_allclose(channels.table.T, expected, rtol=1e-5, atol=1e-6)
    only = measure(
        graph, ["relu", "gate"], samples, 1024, detail=Detail(extremes_only=True, by_channel=["relu"])
    ).tensors
    assert only["relu"].full and only["relu"].channels is not None and not only["gate"].full


def test_the_channel_axis_is_that_of_the_op_that_made_them() -> None:
    net = Net()
    x = net.input(None, 5, 8)
    dense = net.node("MatMul", x, net.floats(8, 6), output="dense")
    shifted = net.node("Add", dense, net.floats(5, 6), output="shifted")
    net.output(net.node("Transpose", net.node("Relu", shifted, output="up"), perm=[0, 2, 1], output="turned"))
    graph = load(net)
    assert [channel_axis(graph, t) for t in ("x", "dense", "shifted", "up")] == [1, 2, 2, 2]


def test_patterns_and_what_is_lacking(graph: Graph, samples: ArraySamples) -> None:
    tensors = ["relu", "gate", "flat"]
    assert per_channel_tensors(tensors, ["r*", "flat"]) == {"relu", "flat"}
    with pytest.raises(ConfigError, match=r"calibrate.per_channel: 'nix' matches none of the 3"):
        per_channel_tensors(tensors, ["r*", "nix"])
    full = measure(graph, ["relu"], samples, 1024).tensors
    extremes = measure(graph, ["gate"], samples, 1024, detail=Detail(extremes_only=True)).tensors
    known: Mapping[str, TensorStats] = {**full, **extremes}
    assert lacking(graph, known, tensors) == ["gate", "flat"]
    assert lacking(graph, known, tensors, extremes_only=True) == ["flat"]
    assert lacking(graph, known, tensors, True, by_channel=["relu"]) == ["relu", "flat"]


def test_tensors_are_watched_in_the_order_of_execution(graph: Graph) -> None:
    tensors = all_tensors(graph)
    assert execution_order(graph, [*tensors[::-1], tensors[0]]) == tensors


class Shown:
    """A progress bar."""

    def __init__(self) -> None:
        self.done: list[int] = []

    def __call__(self, done: int, total: int, note: str) -> None:
        self.done.append(done)


class Stopping:
    """A checkpoint in memory; the write number `stop` is the last thing before an interruption."""

    def __init__(self, stop: int) -> None:
        self.left, self.state = stop, None
        self.writes = 0

    def read(self) -> Any:
        return self.state

    def write(self, state: Any) -> None:
        self.state = {key: np.array(array) for key, array in state.items()}
        self.writes += 1
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.sliced(2)
@pytest.mark.parametrize("extremes_only", [False, True])
def test_an_interrupted_measurement_goes_on_bit_for_bit(
    graph: Graph, samples: ArraySamples, small_batches: int, monkeypatch: pytest.MonkeyPatch, extremes_only: bool
) -> None:
    """After each group, and (with a clock that always says it is time) after each batch inside a group."""
    tensors = all_tensors(graph)
    detail = Detail(extremes_only=extremes_only, by_channel=["gate"])
    expected = measure(graph, tensors, samples, 0, detail=detail).tensors
    monkeypatch.setattr(module, "CHECKPOINT_SECONDS", 0.0)
    every = Stopping(-1)
    measure(graph, tensors, samples, 0, checkpoint=every, detail=detail)
    assert every.writes == len(plan_passes(graph, tensors, 0)) * 4 - 1, (
        "3 batches and the end of each pass but the last"
    )
    for stop in range(1, every.writes + 1, 3):
        first = Stopping(stop)
        with pytest.raises(KeyboardInterrupt):
            measure(graph, tensors, samples, 0, checkpoint=first, detail=detail)
        shown = Shown()
        resumed = measure(graph, tensors, samples, 0, progress=shown, checkpoint=first, detail=detail)
        assert all(same(resumed.tensors[t], expected[t]) for t in tensors)
        kept = stop // 4 * COUNT + min(8 * (stop % 4), COUNT)
        assert [*shown.done, len(plan_passes(graph, tensors, 0)) * COUNT + 1][0] == kept + 1, (
            "nothing that was kept is run again"
        )
        channels, before = resumed.tensors["gate"].channels, expected["gate"].channels
        assert channels is not None and before is not None
        np.testing.assert_array_equal(channels.table, before.table)


def test_no_samples(graph: Graph) -> None:
    with pytest.raises(DataError, match="no calibration samples"):
        measure(graph, ["relu"], ArraySamples({"x": np.zeros((0, 3, 8, 8), np.float32)}), 1024)


def test_what_a_sub_graph_reads_stays_in_a_pass() -> None:
    net = Net()
    x = net.input(None, 3, 4, 4)
    kept = net.conv(net.node("Relu", x, output="up"), 3, 2, name="inner")
    branches = {}
    for key, op in (("then_branch", "Relu"), ("else_branch", "Neg")):
        result = helper.make_tensor_value_info(key, TensorProto.FLOAT, None)
        branches[key] = helper.make_graph([helper.make_node(op, [kept], [key])], key, [], [result])
    yes = net.constant(np.asarray(True))
    chosen = net.node("If", yes, output="chosen", **branches)
    net.output(net.node("Abs", chosen, output="end"))
    raw = onnx_ir.from_proto(net.proto())
    values = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)
    expected = ort.InferenceSession(model_bytes(raw), providers=["CPUExecutionProvider"]).run(None, {"x": values})[0]
    model = with_outputs(raw, ["chosen"])
    assert "end" not in {o.name for n in model.graph for o in n.outputs}
    (found,) = ort.InferenceSession(model_bytes(model), providers=["CPUExecutionProvider"]).run(None, {"x": values})
    np.testing.assert_array_equal(found, expected)


def test_a_measurement_that_is_not_timed(graph: Graph, samples: ArraySamples, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = measure(graph, all_tensors(graph), samples, 64)
    monkeypatch.delattr("quantpipe.calibrate.measure.float_pass_seconds")
    found = measure(graph, all_tensors(graph), samples, 64, detail=Detail(timed=False))
    assert found.float_pass_seconds == 0.0 < timed.float_pass_seconds
    assert all(same(found.tensors[t], timed.tensors[t]) for t in timed.tensors)


def test_extremes_make_no_histograms(graph: Graph, samples: ArraySamples, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = all_tensors(graph)
    full = measure(graph, tensors, samples, 64)
    monkeypatch.delattr("quantpipe.calibrate.measure.StatsCollector")
    found = measure(graph, tensors, samples, 64, detail=Detail(extremes_only=True))
    for tensor in tensors:
        assert found.tensors[tensor].minimum == full.tensors[tensor].minimum
        assert found.tensors[tensor].maximum == full.tensors[tensor].maximum
