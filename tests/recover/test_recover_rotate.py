"""Rotations of streams: where they are possible, that the network computes what it did, that few weights stand out
behind them, and that the ladder measures and keeps them like any other step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quantpipe.calibrate.estimators import MaxRange
from quantpipe.errors import ArtifactError
from quantpipe.pipeline import stages
from quantpipe.plan import NO_OVERRIDES, ChannelChange, Overrides, Planner
from quantpipe.recover import (
    STEPS,
    RecoverOptions,
    RecoveryResult,
    Work,
    overrides_arrays,
    overrides_from_arrays,
    rescale_channels,
)
from quantpipe.recover.rescale.apply_rotation import rotate_weights, stream_weights
from quantpipe.recover.rescale.optimize_rotation import StreamWeight, _slope, crest_factor, optimize_rotation, rotated
from quantpipe.recover.rescale.residual_streams import streams
from quantpipe.recover.rescale.rotate import Rotation, rotations
from tests.ops.line import Line, Net, line
from tests.recover.test_recover_channels import PAD, on, outputs

Array = np.ndarray[Any, Any]


def test_layers_that_see_channels_along_other_axes_have_no_stream() -> None:
    """A convolution makes channels along axis 1, and a matrix product mixes the last axis, of as many places."""
    net = Net(5)
    x = net.conv(net.input(None, 3, 4, 6), 3, 6, 1, 1, name="conv")
    net.output(net.node("MatMul", x, net.floats(6, 6, scale=0.4), name="last"))
    made = line(net)
    found, refused = streams(made.graph, made.topology)
    assert not found and "do not agree about where channels are" in refused["conv"]


def turn(size: int, seed: int) -> Array:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))[0]


def bottlenecks(seed: int = 3, spikes: float = 0.0) -> Net:
    """Two residual blocks around a stream of 6 channels, read by a padded convolution and, behind a pool, by a dense
    layer. `spikes`: weights that stand out, on both sides of the stream."""
    net = Net(seed)

    def conv(x: str, into: int, out: int, *kernel: int, name: str, **attrs: Any) -> str:
        made = net.conv(x, into, out, *kernel, name=name, **attrs)
        weight = net._constants[net._nodes[-1].input[1]]
        for spike in range(int(spikes > 0) * out):
            weight[spike, spike % weight.shape[1]] += spikes
        return made

    def block(x: str, n: int) -> str:
        y = net.node("Relu", conv(x, 6, 8, 3, 3, name=f"expand{n}", **PAD))
        return net.node("Add", conv(y, 8, 6, name=f"project{n}"), x, name=f"add{n}")

    x = net.node("Relu", net.conv(net.input(None, 3, 6, 6), 3, 8, name="stem"))
    x = conv(x, 8, 6, name="entry")
    x = net.node("GlobalAveragePool", block(block(x, 1), 2), name="pool")
    net.output(net.dense(net.node("Flatten", x), 6, 4, name="dense"))
    return net


def dense_stream(seed: int = 4) -> Net:
    """Channels along the last axis, layers without bias, a difference."""
    net = Net(seed)
    x = net.input(None, 5, 4)
    first, second = (net.node("MatMul", x, net.floats(4, 6, scale=0.5), name=n) for n in ("first", "second"))
    y = net.node("Identity", net.node("Sub", first, second, name="difference"))
    y = net.node("Relu", net.node("MatMul", y, net.floats(6, 5, scale=0.5), name="third"))
    net.output(net.node("MatMul", y, net.floats(5, 3, scale=0.5), name="last"))
    return net


def accept_steps(made: Line, steps: list[Any], start: Overrides = NO_OVERRIDES) -> RecoveryResult:
    given = RecoverOptions(tuple(steps), kl_target=0.0)
    return stages.recover(
        made.problem,
        stages.SearchedStrategy(made.strategy(), start),
        made.samples,
        stages.Holdout(made.samples),
        settings=stages.RecoverySettings(given, 256),
    )


def work_on(made: Line) -> Work:
    return Work(
        *(made.graph, made.topology, made.spec, made.schema, made.strategy(), made.samples, MaxRange(), "mse", 256, 0),
        fitted=lambda count: lambda *network: 0.0,
    )


def agrees(made: Line, overrides: Overrides, backend: str) -> None:
    other = on(made, *rescale_channels(made.graph, made.topology, overrides.channels, overrides.rotations))
    plan = Planner(other.graph, other.topology, made.spec, made.schema).plan(made.strategy(), overrides)
    assert other.agree(plan, backend).differing == 0


def test_where_streams_are() -> None:
    made = line(bottlenecks(), "vta")
    found, refused = streams(made.graph, made.topology)
    (stream,) = found.values()
    assert stream.name == made.graph.by_name["entry"].outputs[0] and stream.channels == 6
    assert stream.producers == ("entry", "project1", "project2")
    assert stream.consumers == ("expand1", "expand2", "dense")
    assert len(stream.tensors) == 7  # three layers' results, two sums, the pool's, the flattened one
    assert "Relu" in refused["stem"] and "an output" in refused["dense"]


def test_channels_along_the_last_axis() -> None:
    made = line(dense_stream(), "ort_cpu")
    (stream,) = streams(made.graph, made.topology)[0].values()
    assert (stream.producers, stream.consumers, stream.channels) == (("first", "second"), ("third",), 6)


@pytest.mark.parametrize("hw", ["vta", "ort_cpu", "int4_weights"])
@pytest.mark.parametrize("net", [bottlenecks, dense_stream])
def test_the_network_computes_what_it_did(net: Any, hw: str) -> None:
    made = line(net(), hw)
    (stream,) = streams(made.graph, made.topology)[0].values()
    matrix = turn(stream.channels, 1)
    graph = rotate_weights(made.graph, made.topology, {stream.name: matrix})
    np.testing.assert_allclose(outputs(graph), outputs(made.graph), rtol=1e-4, atol=1e-5)
    weight = made.topology.kernel_of[stream.producers[0]].weight or ""
    assert not np.allclose(graph.constant(weight), made.graph.constant(weight), atol=1e-2)
    assert made.graph.model is not graph.model
    again = rotate_weights(graph, made.topology, {stream.name: matrix.T})
    np.testing.assert_allclose(again.constant(weight), made.graph.constant(weight), rtol=0, atol=1e-6)


def test_what_is_no_stream_says_why() -> None:
    net = Net(5)
    x = net.input(None, 4, 6, 6)
    shared = net.floats(4, 4, 1, 1)
    first = net.node("Conv", x, shared, name="first")
    second = net.node("Conv", first, shared, name="second")
    gated = net.node("Mul", net.conv(second, 4, 4, name="third"), x, name="gate")
    wise = net.conv(net.conv(gated, 4, 4, name="fourth"), 4, 4, 3, 3, group=4, name="depthwise")
    net.output(net.conv(net.node("Clip", wise, net.constant(np.float32(0))), 4, 4, name="last"))
    made = line(net, "vta")
    found, refused = streams(made.graph, made.topology)
    assert not found and "depthwise" not in refused, "a row of its weight sees one channel, so it makes no stream"
    assert "has other users" in refused["first"] and "has other users" in refused["second"]
    assert "gate (Mul)" in refused["third"] and "depthwise (Conv)" in refused["fourth"]
    assert "is an output" in refused["last"]


def test_what_is_tied_to_an_input_is_no_stream() -> None:
    net = Net(6)
    x = net.input(None, 4, 6, 6)
    net.output(net.conv(net.node("Add", net.conv(x, 4, 4, name="made"), x), 4, 2, name="reader"))
    made = line(net, "vta")
    found, refused = streams(made.graph, made.topology)
    assert not found and "an input" in refused["made"]


def test_an_addition_that_stretches_its_operand_is_no_stream() -> None:
    net = Net(7)
    x = net.node("Relu", net.conv(net.input(None, 4, 6, 6), 4, 4, name="stem"))
    small = net.node("GlobalAveragePool", net.conv(x, 4, 1, name="one"))
    net.output(net.conv(net.node("Add", net.conv(x, 4, 4, name="all"), small, name="sum"), 4, 2, name="reader"))
    made = line(net, "ort_cpu")
    found, refused = streams(made.graph, made.topology)
    assert not found and "sum (Add)" in refused["all"]


def test_what_does_not_fit_is_refused() -> None:
    made = line(bottlenecks(), "vta")
    name = made.graph.by_name["entry"].outputs[0]
    for wrong in ({"nothing": np.eye(6)}, {name: np.eye(5)}):
        with pytest.raises(ArtifactError, match="does not fit"):
            rotate_weights(made.graph, made.topology, wrong)
    with pytest.raises(ArtifactError, match="no rotation"):
        rotate_weights(made.graph, made.topology, {name: 1.01 * np.eye(6)})


def test_what_is_stored_is_read_again() -> None:
    made = line(bottlenecks(), "vta")
    name = made.graph.by_name["entry"].outputs[0]
    given = Overrides({}, {}, rotations={name: turn(6, 2)})
    found = overrides_from_arrays(overrides_arrays(given), made.topology, "here")
    assert found.rotations.keys() == {name} and np.array_equal(found.rotations[name], given.rotations[name])


def test_faces_hold_what_shares_a_scale() -> None:
    """Per channel: rows of producers lie across the stream, rows of consumers along it; per tensor: all is one."""
    made = line(bottlenecks(), "ort_cpu")
    (stream,) = streams(made.graph, made.topology)[0].values()
    found = stream_weights(made.graph, made.topology, stream)
    assert [f.values.shape for f in found] == [(1, 8, 6), (1, 8, 6), (1, 8, 6), (8, 9, 6), (8, 9, 6), (4, 1, 6)]
    assert [f.shared for f in found] == [(0, 1)] * 3 + [(1, 2)] * 3
    weight = made.graph.constant(made.topology.kernel_of["expand1"].weight or "")
    np.testing.assert_array_equal(found[3].values, weight.reshape(8, 6, 9).transpose(0, 2, 1))
    whole = line(bottlenecks(), "vta")
    (stream,) = streams(whole.graph, whole.topology)[0].values()
    assert {f.shared for f in stream_weights(whole.graph, whole.topology, stream)} == {(0, 1, 2)}


@pytest.mark.parametrize("shared", [(0, 1), (1, 2), (0, 1, 2)])
def test_crest_by_hand(shared: tuple[int, ...]) -> None:
    values = np.random.default_rng(1).normal(size=(3, 2, 4))
    parts = {
        (0, 1): [values[:, :, c].ravel() for c in range(4)],
        (1, 2): [values[s].ravel() for s in range(3)],
        (0, 1, 2): [values.ravel()],
    }[shared]
    expected = sum(max(abs(float(v)) for v in part) ** 2 * len(part) for part in parts) / float((values**2).sum())
    assert crest_factor([StreamWeight(values, shared)]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shared", [(0, 1), (1, 2), (0, 1, 2)])
def test_the_slope_is_that_of_small_rotations(shared: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    values = rng.normal(size=(3, 4, 5))
    weight, matrix = StreamWeight(values / np.linalg.norm(values), shared), turn(5, 3)
    _, slope = _slope(weight, matrix)
    for i, j in ((0, 1), (2, 4), (1, 3)):
        found = []
        for angle in (1e-5, -1e-5):
            small = np.eye(5)
            small[i, i] = small[j, j] = np.cos(angle)
            small[i, j], small[j, i] = np.sin(angle), -np.sin(angle)
            found.append(_slope(weight, small @ matrix)[0])
        assert (found[0] - found[1]) / 2e-5 == pytest.approx(slope[i, j] - slope[j, i], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_planted_evenness_is_found(seed: int) -> None:
    """Weights of one magnitude, hidden by a rotation: most of what it spoiled comes back. What comes is a rotation."""
    signs = np.where(np.random.default_rng(seed).random((4, 1, 16)) < 0.5, -1.0, 1.0)
    hidden = [StreamWeight(signs @ turn(16, seed), (1, 2))]
    matrix = optimize_rotation(hidden, 16, 200)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(16), atol=1e-12)
    found = crest_factor(rotated(weight, matrix) for weight in hidden)
    assert crest_factor(hidden) > 2.5 and 1.0 <= found < 1.5
    np.testing.assert_array_equal(matrix, optimize_rotation(hidden, 16, 200))


@pytest.mark.sliced(4)
@pytest.mark.parametrize(("hw", "backend"), [("int4_weights", "qdq"), ("vta", "integer")])
@pytest.mark.parametrize("steps", [["rotate"], ["rotate", "gptq_compensated"], ["gptq", "rotate"]])
def test_what_was_rotated_is_what_runs(hw: str, backend: str, steps: list[str]) -> None:
    """Through the steps themselves, whatever the ladder would keep: plan, simulation and realized form."""
    made = line(bottlenecks(spikes=1.5), hw)
    work = work_on(made)
    state = work.start()
    for item in RecoverOptions(tuple(steps)).items():
        state = STEPS[item.name].run(work, state, item.parameters)
    assert state.overrides.rotations and bool(state.overrides.weights) == (len(steps) > 1)
    agrees(made, state.overrides, backend)


def test_ranges_are_those_of_the_rotated_network() -> None:
    """The same estimator on the rotated model, calibrated anew from its file's start."""
    made = line(bottlenecks(spikes=1.5), "int4_weights")
    state = STEPS["rotate"].run(work_on(made), work_on(made).start(), Rotation())
    other = on(made, state.graph, state.topology)
    fresh = other.strategy()
    (stream,) = streams(made.graph, made.topology)[0].values()
    keys = {made.topology.group_of[t].key for t in stream.tensors if t in made.topology.group_of}
    assert keys and state.overrides.ranges.keys() == keys
    for key in keys:
        found = state.overrides.ranges[key]
        assert (found.low, found.high) == pytest.approx((fresh.ranges[key].low, fresh.ranges[key].high), rel=1e-6)


def test_a_second_rotation_comes_behind_the_first() -> None:
    made = line(bottlenecks(), "int4_weights")
    (name,) = streams(made.graph, made.topology)[0]
    work, first, second = work_on(made), turn(6, 1), turn(6, 2)
    state = work.rotated(work.rotated(work.start(), {name: first}), {name: second})
    once, _ = rescale_channels(made.graph, made.topology, {}, {name: first})
    twice = rotate_weights(once, made.topology, {name: second})
    np.testing.assert_allclose(state.overrides.rotations[name], second @ first, atol=1e-12)
    weight = made.topology.kernel_of["project1"].weight or ""
    np.testing.assert_allclose(state.graph.constant(weight), twice.constant(weight), rtol=0, atol=1e-6)


def test_a_layer_that_reads_and_makes_the_stream() -> None:
    """x + conv(x): its weight becomes M W Mᵀ, and what the report says is measured on that."""
    net = Net(12)
    x = net.conv(net.node("Relu", net.conv(net.input(None, 3, 5, 5), 3, 8)), 8, 6, name="entry")
    x = net.node("Add", x, net.conv(x, 6, 6, 3, 3, name="both", **PAD))
    net.output(net.conv(x, 6, 4, name="reader"))
    made = line(net, "int4_weights")
    (stream,) = streams(made.graph, made.topology)[0].values()
    assert "both" in stream.producers and "both" in stream.consumers
    matrix = turn(6, 5)
    graph = rotate_weights(made.graph, made.topology, {stream.name: matrix})
    np.testing.assert_allclose(outputs(graph), outputs(made.graph), rtol=1e-4, atol=1e-5)
    weight = made.topology.kernel_of["both"].weight or ""
    wanted = np.einsum("po,oikl,qi->pqkl", matrix, made.graph.constant(weight), matrix)
    np.testing.assert_allclose(graph.constant(weight), wanted, atol=1e-6)
    (turned,) = rotations(made.graph, made.topology, [stream], Rotation()).values()
    after = rotate_weights(made.graph, made.topology, {stream.name: turned.matrix})
    assert turned.crest_factor == (
        pytest.approx(crest_factor(stream_weights(made.graph, made.topology, stream))),
        pytest.approx(crest_factor(stream_weights(after, made.topology, stream))),
    )


def test_pruned_channels_hold_nothing_up() -> None:
    """Rows and columns of zeros, and a layer of zeros: the rest is made as even as without them."""
    rng = np.random.default_rng(4)
    values, producer = rng.standard_t(2, (8, 1, 12)), rng.standard_t(2, (1, 20, 12))
    values[3], producer[..., 5] = 0.0, 0.0
    around = [
        StreamWeight(values, (1, 2)),
        StreamWeight(producer, (0, 1)),
        StreamWeight(np.zeros((2, 3, 12)), (0, 1, 2)),
    ]
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        matrix = optimize_rotation(around, 12, 60)
    assert crest_factor(rotated(weight, matrix) for weight in around) < 0.6 * crest_factor(around)
    np.testing.assert_array_equal(optimize_rotation(around[2:], 12, 5), np.eye(12))
    assert crest_factor(around[2:]) == 1.0


def test_states_of_a_streaming_model_stay_states() -> None:
    made = line(bottlenecks(), "vta")
    (name,) = streams(made.graph, made.topology)[0]
    graph = replace(made.graph, states=frozenset({"s"}))
    assert rotate_weights(graph, made.topology, {name: turn(6, 1)}).states == {"s"}


def hidden_signs(seed: int) -> Net:
    """Weights of one magnitude on both sides of a stream, which 4 bits hold as they are, hidden by a rotation."""
    rng, matrix, net = np.random.default_rng(seed), turn(16, seed), Net(seed)
    first, second = (np.where(rng.random(shape) < 0.5, -0.2, 0.2) for shape in ((16, 4), (6, 16)))
    x = net.input(None, 4, 6, 6)
    for name, weight in (("producer", matrix @ first), ("reader", second @ matrix.T)):
        x = net.node("Conv", x, net.constant(weight[:, :, None, None].astype(np.float32)), name=name)
    net.output(x)
    return net


@pytest.mark.parametrize("seed", range(4))
def test_it_helps_where_a_rotation_hides_even_weights(seed: int) -> None:
    (row,) = accept_steps(line(hidden_signs(seed), "int4_weights"), ["rotate"]).steps
    assert row["kept"] and row["kl_after"] < row["kl_before"] / 2, row


def test_channels_in_other_units_come_behind_it() -> None:
    net = Net(9)
    x = net.conv(net.input(None, 3, 4, 4), 3, 6, name="producer")
    net.output(net.conv(x, 6, 4, name="reader"))
    made = line(net, "vta")
    (name,) = streams(made.graph, made.topology)[0]
    change = ChannelChange(np.full(6, 2.0), np.zeros(6))
    (row,) = accept_steps(made, ["rotate"], start=Overrides({}, {}, channels={name: change})).steps
    assert not row["kept"] and "already rescaled" in row["reason"]
    both = rescale_channels(made.graph, made.topology, {name: change}, {name: turn(6, 1)})
    np.testing.assert_allclose(outputs(both[0]), outputs(made.graph), rtol=1e-4, atol=1e-5)


def test_without_a_stream_it_says_why() -> None:
    net = Net(10)
    x = net.node("Relu", net.conv(net.input(None, 3, 4, 4), 3, 6, name="producer"))
    net.output(net.conv(x, 6, 4, name="reader"))
    (row,) = accept_steps(line(net, "vta"), ["rotate"]).steps
    assert not row["kept"] and "producer: " in row["reason"] and "Relu" in row["reason"]
