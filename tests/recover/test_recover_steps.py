"""What each step does to a network, and that the ladder throws out the one that hurts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quantpipe.calibrate.estimators import MaxRange
from quantpipe.calibrate.measure import measure
from quantpipe.errors import ConfigError
from quantpipe.graph.execute import Session
from quantpipe.graph.outputs import with_outputs
from quantpipe.graph.view import Graph
from quantpipe.pipeline import stages
from quantpipe.plan import Planner
from quantpipe.recover import (
    STEPS,
    NotApplicable,
    RecoverOptions,
    RecoveryResult,
    State,
    Work,
    rescale_channels,
)
from quantpipe.recover.ranges import squared_error
from quantpipe.recover.rescale.absorb import Absorption, absorbed
from quantpipe.recover.rescale.channel_regions import layer_pairs
from quantpipe.recover.rescale.channel_stats import channel_extremes
from quantpipe.recover.rescale.equalize import Equalization, equalized
from quantpipe.recover.rescale.smooth import smoothed
from quantpipe.scoring.holdout import HoldoutScorer
from quantpipe.types import Profile, Range, Strategy
from tests.ops.line import ArraySamples, Line, Net, line, load, set_threshold
from tests.recover.test_recover_channels import blocks, norm, on, outputs

Array = np.ndarray[Any, Any]


def climbed(made: Line, steps: list[Any], strategy: Strategy | None = None, judged: Any = None) -> RecoveryResult:
    return stages.recover(
        made.problem,
        stages.SearchedStrategy(strategy or made.strategy()),
        made.samples,
        stages.Holdout(judged or made.samples),
        settings=stages.RecoverySettings(RecoverOptions(tuple(steps), kl_target=0.0), 256),
    )


def agrees(made: Line, found: RecoveryResult, strategy: Strategy | None = None, backend: str = "integer") -> None:
    other = on(made, *rescale_channels(made.graph, made.topology, found.overrides.channels))
    plan = Planner(other.graph, other.topology, made.spec, made.schema).plan(
        strategy or made.strategy(), found.overrides
    )
    assert other.agree(plan, backend).differing == 0


def uneven(clamp: str = "Relu") -> Net:
    """Two layers whose rows and columns have ranges far apart, but for one channel all alike in the product."""
    net = Net(11)
    factors = np.asarray([1, 8, 64, 0.125, 16, 2], np.float32)
    first = (net.rng.uniform(0.5, 1, (6, 5)) * np.sign(net.rng.standard_normal((6, 5)))).astype(np.float32)
    second = (net.rng.uniform(0.5, 1, (3, 6)) * np.sign(net.rng.standard_normal((3, 6)))).astype(np.float32)
    bias = net.rng.uniform(-0.5, 0.5, 6).astype(np.float32) * factors
    x = net.node(
        "Gemm", net.input(None, 5), net.constant(first * factors[:, None]), net.constant(bias), name="first", transB=1
    )
    x = net.node(clamp, x, name="clamp")
    net.output(net.node("Gemm", x, net.constant(second / factors), net.floats(3), name="second", transB=1))
    return net


def ranges_of(made: Line, changes: dict[str, Any]) -> tuple[Array, Array]:
    graph, _ = rescale_channels(made.graph, made.topology, changes)
    first, second = (graph.constant(graph.by_name[n].inputs[1]) for n in ("first", "second"))
    return np.abs(first).max(axis=1), np.abs(second).max(axis=0)


def test_equalized_rows_and_columns_have_the_same_range() -> None:
    made = line(uneven(), "vta")
    found, _ = layer_pairs(made.graph, made.topology)
    seen = channel_extremes(made.graph, list(found.values()), made.samples)
    changes = equalized(made.graph, made.topology, found.values(), seen, channel_bounds=True, options=Equalization())
    rows, columns = ranges_of(made, changes)
    ((tensor, change),) = changes.items()
    before, after = ranges_of(made, {})
    free = change.factor > 1.0001 * np.abs(seen[tensor].maximum) / np.abs(seen[tensor].maximum).max()
    assert free.sum() >= 4  # the others grew as far as the tensor's range goes
    np.testing.assert_allclose(rows[free], columns[free], rtol=1e-5)
    np.testing.assert_allclose(change.factor[free], np.sqrt(before / after)[free], rtol=1e-5)
    graph, _ = rescale_channels(made.graph, made.topology, changes)
    scaled = channel_extremes(graph, list(found.values()), made.samples)[tensor]
    assert scaled.maximum.max() <= seen[tensor].maximum.max() * (1 + 1e-6)


def test_factors_that_are_powers_of_two() -> None:
    made = line(uneven(), "vta")
    found, _ = layer_pairs(made.graph, made.topology)
    seen = channel_extremes(made.graph, list(found.values()), made.samples)
    options = Equalization(factors="power_of_two")
    ((tensor, change),) = equalized(
        made.graph, made.topology, found.values(), seen, channel_bounds=True, options=options
    ).items()
    mantissa, _ = np.frexp(change.factor)
    assert np.all(mantissa == 0.5) and np.any(change.factor != 1)
    graph, _ = rescale_channels(made.graph, made.topology, {tensor: change})
    np.testing.assert_array_equal(outputs(graph), outputs(made.graph))


def test_a_clamp_that_cannot_move_is_not_met() -> None:
    """Without bounds per channel: who met the limit keeps its unit, and no one else comes to meet it."""
    limit = 3.0
    made = line(blocks(limit=limit), "ort_cpu")
    found, _ = layer_pairs(made.graph, made.topology)
    seen = channel_extremes(made.graph, list(found.values()), made.samples)
    changes = equalized(
        made.graph, made.topology, found.values(), seen, channel_bounds=False, options=Equalization(margin=0.1)
    )
    bounded = [k for k in found.values() if k.clamp in ("expand_clamp", "depthwise_clamp")]
    assert len(bounded) == 2
    for link in bounded:
        change, most = changes[link.tensor], seen[link.tensor].maximum
        met = most >= 0.9 * limit
        assert 0 < met.sum() < len(met) and np.all(change.factor[met] == 1) and change.limits == (0.0, limit)
        assert np.all(most[~met] / change.factor[~met] <= 0.9 * limit + 1e-6)
    graph, topology = rescale_channels(made.graph, made.topology, changes)
    np.testing.assert_allclose(outputs(graph, 12), outputs(made.graph, 12), rtol=1e-4, atol=1e-5)
    assert all(k.channel_bounds is None for k in topology.kernels)


def test_equalization_helps_where_ranges_are_uneven() -> None:
    made = line(uneven(), "vta")
    found = climbed(made, ["equalize", "gptq", {"name": "equalize", "iterations": 1}])
    first, second, third = found.steps
    assert first["kept"] and first["kl_after"] < 0.1 * first["kl_before"] and first["on"] == "1 of 1 pairs"
    assert second["kl_before"] == first["kl_after"] and not third["kept"]
    agrees(made, found)


def planted() -> Line:
    """Equalization hurts here: every weight is a whole number of steps as it is (scale 1/4, one input that is always 0
    has the large weight), and in other units neither the weights nor the second channel are."""
    net = Net()
    first = np.asarray([[1, 0, 0], [0, 1, 31]], np.float32)
    second = np.asarray([[1, -1], [-0.5, 1], [1, 0.75]], np.float32) * 8
    zeros = (np.zeros(2, np.float32), np.zeros(3, np.float32))
    x = net.node("Gemm", net.input(None, 3), net.constant(first), net.constant(zeros[0]), name="first", transB=1)
    x = net.node("Relu", x)
    net.output(net.node("Gemm", x, net.constant(second), net.constant(zeros[1]), name="second", transB=1))
    graph = load(net)
    values = np.random.default_rng(4).uniform(0, 1, (256, 3)).astype(np.float32)
    values[:, 2] = 0
    return line(graph, "vta", samples=ArraySamples({"x": values}))


def test_equalization_that_hurts_is_thrown_out() -> None:
    made = planted()
    found = climbed(made, ["equalize"])
    (step,) = found.steps
    assert not step["kept"] and step["kl_after"] > step["kl_before"]
    assert not found.overrides.channels and not found.overrides.ranges and not found.metrics


def test_absorption_centres_a_tensor_on_whole_steps() -> None:
    made = line(blocks(), "vta")
    found, _ = layer_pairs(made.graph, made.topology)
    movable = [k for k in found.values() if k.offsets]
    seen = channel_extremes(made.graph, movable, made.samples)
    arguments = (made.graph, movable, seen, made.schema.activations)
    for by_channel in (True, False):
        changes = absorbed(*arguments, spec=made.spec, options=Absorption(by_channel=by_channel), steps={})
        assert {"depthwise", "last"} <= {found[t].producer for t in changes}
        for tensor, change in changes.items():
            low, high = seen[tensor].minimum, seen[tensor].maximum
            centre = (low + high) / 2 if by_channel else np.full(len(low), (low.min() + high.max()) / 2)
            np.testing.assert_allclose(change.offset, centre)
            options = Absorption(by_channel=by_channel)
            step = absorbed(*arguments, spec=made.spec, options=options, steps={tensor: 0.125})[tensor].offset / 0.125
            np.testing.assert_array_equal(step, np.rint(step))
            assert np.all(np.abs(step * 0.125 - centre) <= 0.0625)
        graph, _ = rescale_channels(made.graph, made.topology, changes)
        np.testing.assert_allclose(outputs(graph), outputs(made.graph), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [["equalize", "absorb"], ["gptq", "absorb"], ["absorb", "equalize", "bias"]])
def test_absorption_can_be_realized(steps: list[str]) -> None:
    made = line(blocks(), "vta")
    found = climbed(made, steps)
    agrees(made, found)
    row = next(s for s in found.steps if s["step"] == "absorb")
    assert row["kl_after"] is not None


def test_absorption_takes_back_what_integer_weights_make_of_it() -> None:
    """The quantized reader gives for T' what it gave for T: Ŵ·T' + b' = Ŵ·T + b, with Ŵ the integer weights."""
    made = line(blocks(), "vta")
    work = work_on(made)
    state = STEPS["absorb"].run(work, work.start(), Absorption())
    plan = work.plan(state)
    assert state.overrides.biases
    for tensor, change in state.overrides.channels.items():
        for reader in work.layer_pairs[0][tensor].consumers:
            node = made.graph.by_name[reader]
            weight = plan.weights[node.inputs[1]]
            real = (weight.values * float(weight.scale)).reshape(weight.values.shape[0], -1)
            expected = made.graph.constant(node.inputs[2]).astype(np.float64) + real @ change.offset
            own = state.overrides.channels.get(
                next((t for t, k in work.layer_pairs[0].items() if k.producer == reader), "")
            )
            moved = expected - (own.offset if own is not None else 0.0)
            np.testing.assert_allclose(state.overrides.biases[reader], moved, rtol=1e-5, atol=1e-6)


def work_on(made: Line) -> Work:
    return Work(
        made.graph,
        made.topology,
        made.spec,
        made.schema,
        made.strategy(),
        made.samples,
        MaxRange(),
        "max_range",
        256,
        0,
        lambda count: lambda graph, topology, plan: 0.0,
    )


def test_a_searched_range_stays_as_far_from_the_estimate_as_it_was() -> None:
    made = line(uneven(), "vta")
    work = work_on(made)
    (tensor,) = work.layer_pairs[0]
    key = made.topology.group_of[tensor].key
    plain = STEPS["equalize"].run(work, work.start(), Equalization())
    half = made.strategy().ranges[key]
    moved = Work(
        **{
            **{f: getattr(work, f) for f in work.__dataclass_fields__},
            "strategy": set_threshold(work.strategy, key, Range(half.low / 2, half.high / 2)),
        }
    )
    found = STEPS["equalize"].run(moved, moved.start(), Equalization())
    assert found.overrides.ranges[key].high == pytest.approx(plain.overrides.ranges[key].high / 2)


def test_known_statistics_are_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = line(uneven(), "vta")
    asked: list[str] = []

    def watched(graph: Graph, tensors: Sequence[str], *rest: Any, **options: Any) -> Profile:
        asked.extend(tensors)
        return measure(graph, tensors, *rest, **options)

    monkeypatch.setattr("quantpipe.recover.work.measure", watched)
    work = work_on(made)
    plain = STEPS["equalize"].run(work, work.start(), Equalization())
    assert len(asked) == 2  # the only pair's tensor, in the network as it is and in the changed one
    profile = measure(made.graph, list(made.topology.measured), made.samples, 256)
    asked.clear()
    known = replace(work, profile=profile)
    found = STEPS["equalize"].run(known, known.start(), Equalization())
    assert len(asked) == 1
    assert dict(found.overrides.ranges) == dict(plain.overrides.ranges)


def test_extremes_of_channels_with_and_without_moments() -> None:
    made = line(blocks(), "vta")
    found = list(layer_pairs(made.graph, made.topology)[0].values())
    session = Session(with_outputs(made.graph.model, [link.tensor for link in found]))
    whole = [session.run(b.inputs, [link.tensor for link in found]) for b in made.samples.batches(8)]
    with_moments = channel_extremes(made.graph, found, made.samples)
    without = channel_extremes(made.graph, found, made.samples, moments=False)
    for link in found:
        rows = np.concatenate([np.moveaxis(v[link.tensor], link.axis, 0).reshape(link.channels, -1) for v in whole], 1)
        for seen in (with_moments[link.tensor], without[link.tensor]):
            np.testing.assert_array_equal(seen.minimum, rows.min(axis=1))
            np.testing.assert_array_equal(seen.maximum, rows.max(axis=1))
        assert np.all(np.isnan(without[link.tensor].mean)) and np.all(np.isnan(without[link.tensor].deviation))
        np.testing.assert_allclose(with_moments[link.tensor].mean, rows.mean(axis=1, dtype=np.float64), rtol=1e-6)
        np.testing.assert_allclose(
            with_moments[link.tensor].deviation, rows.std(axis=1, dtype=np.float64), rtol=1e-5, atol=1e-7
        )


def test_each_state_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = line(uneven(), "vta")
    calls: list[object] = []
    outputs_of = HoldoutScorer.outputs

    def counted(self: HoldoutScorer, *rest: Any) -> Any:
        calls.append(rest)
        return outputs_of(self, *rest)

    monkeypatch.setattr(HoldoutScorer, "outputs", counted)
    found = climbed(made, ["equalize", "gptq_compensated"])
    assert len(calls) == 3 and any(row["kept"] for row in found.steps)
    assert found.metrics["kl"] == min([row["kl_after"] for row in found.steps if row["kept"]])


def test_a_range_that_is_wrong_is_mended() -> None:
    made = line(blocks(), "vta")
    good = made.strategy()
    key = made.topology.group_of[made.graph.by_name["last"].inputs[0]].key
    eighth = good.ranges[key]
    bad = set_threshold(good, key, Range(eighth.low / 4, eighth.high / 4))
    found = climbed(made, [{"name": "ranges", "evaluations": 10}, {"name": "ranges", "evaluations": 10}], bad)
    assert found.steps[0]["kept"] and found.overrides.ranges[key].threshold > bad.ranges[key].threshold
    assert not found.overrides.weights and not found.overrides.channels
    agrees(made, found, bad)


def test_the_error_of_a_range_is_that_of_its_values() -> None:
    """Against the values themselves; a histogram knows them to half a bin."""
    made = line(blocks(), "vta")
    tensor = made.graph.by_name["last"].inputs[0]
    stats = measure(made.graph, [tensor], made.samples, 256).tensors[tensor]
    x = Session(with_outputs(made.graph.model, [tensor])).run(next(iter(made.samples.batches(999))).inputs)[tensor]
    scale = 2.0**-5
    expected = float(np.sum((np.clip(np.rint(x.astype(np.float64) / scale), -127, 127) * scale - x) ** 2))
    group = made.topology.group_of[tensor]
    found = squared_error(stats, Range(-3.9, 3.9), 8, group.dtype, schema=made.schema.activations)
    assert found == pytest.approx(expected, rel=0.05)


def outliers() -> Line:
    """A normalization with two channels of outliers in front of three heads."""
    net = Net(9)
    gain = np.ones(16, np.float32)
    gain[[3, 7]] = 60.0
    x = norm(net, net.input(None, 6, 16), 16, "norm", net.constant(gain))
    heads = [net.node("MatMul", x, net.floats(16, 8, scale=0.2), name=f"head{n}") for n in range(2)]
    net.output(net.node("Add", *heads))
    graph = load(net)
    values = np.random.default_rng(3).standard_normal((32, 6, 16)).astype(np.float32)
    return line(graph, "ort_cpu", samples=ArraySamples({"x": values}))


def test_scales_migrate_behind_a_normalization() -> None:
    made = outliers()
    found, _ = layer_pairs(made.graph, made.topology)
    seen = channel_extremes(made.graph, list(found.values()), made.samples)
    ((tensor, change),) = smoothed(made.graph, made.topology, found.values(), seen, alpha=0.5).items()
    peak = np.maximum(np.abs(seen[tensor].minimum), np.abs(seen[tensor].maximum))
    weights = [made.graph.constant(made.graph.by_name[f"head{n}"].inputs[1]) for n in range(2)]
    ratio = np.sqrt(peak / np.abs(np.concatenate(weights, axis=1)).max(axis=1))
    np.testing.assert_allclose(change.factor / change.factor[0], ratio / ratio[0], rtol=1e-5)
    result = climbed(made, ["smooth"])
    (step,) = result.steps
    assert step["kept"] and step["kl_after"] < 0.5 * step["kl_before"] and "alpha 0." in step["on"]
    agrees(made, result, backend="qdq")


def test_scales_per_channel_leave_nothing_to_equalize() -> None:
    made = line(uneven(), "ort_cpu")
    steps = [{"name": "equalize", "per_channel": which} for which in (False, True)]
    first, second = climbed(made, steps).steps
    assert "scale per channel" in first["reason"] and second["kl_after"] is not None


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        (np.where(np.arange(8) == 3, 1000.0, 1.0), True),
        (np.where(np.arange(8) % 2, 200.0, 1.0), True),  # the median is 100, and half of the channels have no steps
        (np.geomspace(1, 200, 8), True),
        (np.where(np.arange(8) == 3, 2.0, 1.0), False),
    ],
)
def test_channels_far_apart_are_equalized_beside_scales_per_channel(sizes: Array, found: bool) -> None:
    """The tensor between has one scale still: a channel many times as large as others leaves these no steps."""
    net = Net(seed=6)
    x = net.input(None, 3, 6, 6)
    first = net.constant((net.rng.standard_normal((8, 3, 1, 1)) * sizes[:, None, None, None]).astype(np.float32))
    second = net.constant((net.rng.standard_normal((8, 8, 1, 1)) / sizes[None, :, None, None]).astype(np.float32))
    x = net.node("Relu", net.node("Conv", x, first, kernel_shape=[1, 1], name="first"))
    x = net.node("Conv", x, second, kernel_shape=[1, 1], name="second")
    net.output(net.dense(net.node("Flatten", net.node("GlobalAveragePool", x)), 8, 4))
    made = line(net, "ort_cpu")
    result = climbed(made, ["equalize"])
    (step,) = result.steps
    if found:
        assert step["kept"] and step["kl_after"] < 0.1 * step["kl_before"] and step["on"] == "1 of 1 pairs"
        agrees(made, result, backend="qdq")
    else:
        assert not step["kept"] and "costs its channels 12 dB" in step["reason"]


def test_weights_of_four_bits_are_equalized_whatever_their_ranges() -> None:
    net = Net(seed=6)
    x = net.node("Relu", net.conv(net.input(None, 3, 6, 6), 3, 8, 3, 1))
    net.output(net.dense(net.node("Flatten", net.node("GlobalAveragePool", net.conv(x, 8, 8, 3, 1))), 8, 4))
    (step,) = climbed(line(net, "int4_weights"), ["equalize"]).steps
    assert step["kl_after"] is not None


def test_a_word_that_is_none_of_equalizes_own_is_refused() -> None:
    with pytest.raises(ConfigError, match="per_channel: is 'maybe'; legal are true, false, auto"):
        RecoverOptions(({"name": "equalize", "per_channel": "maybe"},))


def test_what_cannot_apply_says_why() -> None:
    net = Net()
    net.output(net.conv(net.input(None, 2, 4, 4), 2, 2, name="only"))
    found = climbed(line(net, "vta"), ["equalize", "absorb", "smooth", "ranges"])
    assert all(not s["kept"] and s["kl_after"] is None and s["reason"] for s in found.steps)
    said = [s["reason"] for s in found.steps]
    assert "only" in said[0] and "output of the model" in said[0]
    with pytest.raises(NotApplicable, match="no layer"):
        made = line(net, "vta")
        STEPS["smooth"].run(work_on(made), State(made.graph, made.topology), None)
