"""What each step does to a network, and that the ladder throws out the one that hurts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quantpipe.calibrate.estimators import MaxRange
from quantpipe.calibrate.measure import measure
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
from quantpipe.recover.rescale.equalize import Equalization
from quantpipe.scoring.kept import KeptScorer
from quantpipe.types import Profile, Range, Strategy
from tests.ops.line import Line, Net, line, set_threshold
from tests.recover.test_recover_channels import blocks, on, outputs

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
    outputs_of = KeptScorer.outputs

    def counted(self: KeptScorer, *rest: Any) -> Any:
        calls.append(rest)
        return outputs_of(self, *rest)

    monkeypatch.setattr(KeptScorer, "outputs", counted)
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
