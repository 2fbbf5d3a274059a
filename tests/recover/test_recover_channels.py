"""Channels in other units: where that is possible, and that the network computes what it did."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quantpipe.errors import ArtifactError
from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import expose
from quantpipe.graph.view import Graph
from quantpipe.plan import ChannelChange, Overrides
from quantpipe.recover import overrides_arrays, overrides_from_arrays, rescale_channels
from quantpipe.recover.rescale.channel_regions import layer_pairs
from quantpipe.recover.rescale.rescale_channels import compose
from quantpipe.types import Accumulate, Range, Topology
from tests.ops.line import Line, Net, line, normal_samples

PAD = {"pads": [1, 1, 1, 1]}


def blocks(clamp: str = "Clip", limit: float = 1.1) -> Net:
    """Expand, depthwise (padded), project, a linear layer, average pool, dense: every kind of link once."""
    net = Net(3)
    x = net.conv(net.input(None, 3, 8, 8), 3, 6, name="expand")
    x = six(net, x, "expand_clamp", limit) if clamp == "Clip" else net.node("Relu", x, name="expand_clamp")
    x = net.conv(x, 6, 6, 3, 3, group=6, name="depthwise", **PAD)
    x = six(net, x, "depthwise_clamp", limit) if clamp == "Clip" else net.node("Relu", x, name="depthwise_clamp")
    x = net.conv(x, 6, 4, name="project")
    x = net.conv(x, 4, 5, name="last")
    x = net.node("GlobalAveragePool", net.node("Relu", x), name="pool")
    net.output(net.dense(net.node("Flatten", x, name="flat"), 5, 4, name="dense"))
    return net


def six(net: Net, x: str, name: str, limit: float = 1.1) -> str:
    return net.node("Clip", x, net.constant(np.float32(0)), net.constant(np.float32(limit)), name=name)


def on(made: Line, graph: Graph, topology: Topology) -> Line:
    """The line of a changed network: its topology is given, not found."""
    other = Line(graph, made.spec, made.schema, made.samples)
    other.__dict__["topology"] = topology
    return other


def outputs(graph: Graph, count: int = 16) -> np.ndarray[Any, Any]:
    return Session(graph.model).run(normal_samples(graph, count).inputs)[graph.outputs[0].name]


def some_change(channels: int, seed: int, offset: bool) -> ChannelChange:
    rng = np.random.default_rng(seed)
    return ChannelChange(rng.uniform(0.2, 5.0, channels), rng.uniform(-1, 1, channels) * offset)


def test_where_channels_can_change() -> None:
    made = line(blocks(), "vta")
    found, _ = layer_pairs(made.graph, made.topology)
    said = {link.producer: (link.consumers, link.channels, link.offsets, link.clamp_fused) for link in found.values()}
    assert said == {
        "expand": (("depthwise",), 6, False, True),  # zeros around a map are zeros of the old unit
        "depthwise": (("project",), 6, True, True),
        "project": (("last",), 4, True, False),
        "last": (("dense",), 5, True, True),
    }
    assert found[made.graph.by_name["dense"].inputs[0]].tensors[-1] == made.graph.by_name["flat"].outputs[0]


@pytest.mark.parametrize("clamp", ["Clip", "Relu"])
@pytest.mark.parametrize("hw", ["vta", "ort_cpu"])
def test_the_network_computes_what_it_did(clamp: str, hw: str) -> None:
    made = line(blocks(clamp), hw)
    before = outputs(made.graph)
    found, _ = layer_pairs(made.graph, made.topology)
    if hw == "vta":
        changes = {t: some_change(k.channels, n, k.offsets) for n, (t, k) in enumerate(found.items())}
        graph, topology = rescale_channels(made.graph, made.topology, changes)
        np.testing.assert_allclose(outputs(graph), before, rtol=1e-4, atol=1e-5)
        assert {k.node for k in topology.kernels} == {k.node for k in made.topology.kernels}
    for n, (tensor, link) in enumerate(found.items()):  # one at a time, offsets that are the same for all channels
        change = ChannelChange(np.ones(link.channels), np.full(link.channels, 0.25 * (n + 1)))
        if link.offsets:
            graph, _ = rescale_channels(made.graph, made.topology, {tensor: change})
            np.testing.assert_allclose(outputs(graph), before, rtol=1e-4, atol=1e-5)


def test_powers_of_two_change_no_bit() -> None:
    made = line(blocks(), "vta")
    found, _ = layer_pairs(made.graph, made.topology)
    changes = {
        t: ChannelChange(2.0 ** np.random.default_rng(7).integers(-3, 4, k.channels), np.zeros(k.channels))
        for t, k in found.items()
    }
    graph, _ = rescale_channels(made.graph, made.topology, changes)
    np.testing.assert_array_equal(outputs(graph), outputs(made.graph))


def test_two_changes_are_one() -> None:
    first, second = some_change(5, 0, True), some_change(5, 1, True)
    x = np.random.default_rng(2).normal(size=5)
    both = compose(first, second)
    step = ((x - first.offset) / first.factor - second.offset) / second.factor
    np.testing.assert_allclose((x - both.offset) / both.factor, step, rtol=1e-12, atol=1e-12)


def test_a_map_flattened_into_features() -> None:
    """[N, 3, 2, 2] -> [N, 12]: each channel is four features of the dense layer."""
    net = Net(5)
    x = net.node("Relu", net.conv(net.input(None, 2, 2, 2), 2, 3, name="conv"))
    net.output(net.dense(net.node("Flatten", x), 12, 4, name="dense"))
    made = line(net, "vta")
    ((tensor, link),) = layer_pairs(made.graph, made.topology)[0].items()
    assert (link.channels, link.repeats, link.offsets) == (3, 4, True)
    graph, topology = rescale_channels(made.graph, made.topology, {tensor: some_change(3, 1, True)})
    np.testing.assert_allclose(outputs(graph), outputs(made.graph), rtol=1e-4, atol=1e-5)
    (kernel,) = [k for k in topology.kernels if k.node == "conv"]
    assert kernel.channel_bounds is not None and len(kernel.channel_bounds[0]) == 3


def norm(net: Net, x: str, size: int, name: str, gain: str | None = None) -> str:
    gain = gain or net.constant(net.rng.uniform(0.5, 2, size).astype(np.float32))
    return net.node("LayerNormalization", x, gain, net.floats(size, scale=0.3), name=name, axis=-1)


def test_behind_a_normalization() -> None:
    net = Net(6)
    gain = net.constant(np.ones(6, np.float32))  # two normalizations share it
    x = norm(net, net.input(None, 5, 6), 6, "norm", gain)
    heads = [net.node("MatMul", x, net.floats(6, 6, scale=0.4), name=f"head{n}") for n in range(3)]
    y = net.node("Add", net.node("Add", heads[0], heads[1]), heads[2])
    net.output(net.node("MatMul", norm(net, y, 6, "norm2", gain), net.floats(6, 3), name="last"))
    made = line(net, "ort_cpu")
    found, _ = layer_pairs(made.graph, made.topology)
    assert {k.producer: k.consumers for k in found.values()} == {
        "norm": ("head0", "head1", "head2"),
        "norm2": ("last",),
    }
    assert all(k.affine and not k.offsets for k in found.values())  # MatMul has no bias to take them
    graph, topology = rescale_channels(
        made.graph, made.topology, {t: some_change(6, n, False) for n, t in enumerate(found)}
    )
    np.testing.assert_allclose(outputs(graph), outputs(made.graph), rtol=1e-4, atol=1e-5)
    other = on(made, graph, topology)
    assert other.agree(other.plan(), "qdq").differing == 0
    assert topology.weight_of.keys() == made.topology.weight_of.keys()


def test_what_has_no_place_for_a_change_says_why() -> None:
    net = Net(8)
    x = net.input(None, 4, 6, 6)
    shared = net.floats(4, 4, 1, 1)
    first = net.node("Conv", x, shared, name="first")
    second = net.node("Conv", first, shared, name="second")
    third = net.conv(second, 4, 4, name="third")
    fourth = net.conv(net.node("Add", third, second), 4, 4, name="fourth")
    net.output(fourth)
    made = line(net, "vta")
    found, refused = layer_pairs(made.graph, made.topology)
    assert not found
    assert "has other users" in refused["first"] and "has other users" in refused["second"]
    assert "Add" in refused["third"] and "is an output" in refused["fourth"]


@pytest.mark.parametrize("seed", range(3))
def test_bounds_per_channel_are_the_realized_integers(seed: int) -> None:
    """Against plain integers: multiply, add, shift, clamp each channel, in Python."""
    net = Net(seed)
    x = six(net, net.conv(net.input(None, 3, 4, 4), 3, 4, name="conv"), "clamp")
    net.output(net.conv(x, 4, 2, name="reader"))
    made = line(net, "vta")
    (tensor,) = layer_pairs(made.graph, made.topology)[0]
    graph, topology = rescale_channels(made.graph, made.topology, {tensor: some_change(4, seed, True)})
    other = on(made, graph, topology)
    plan = other.plan()
    kernel, data, result = plan.kernels["conv"], plan.quantizers["x"], plan.quantizers[tensor]
    assert isinstance(kernel, Accumulate) and kernel.bias is not None
    assert kernel.output is not None and kernel.output.by_channel is not None
    realized = other.realize(plan, "integer")
    name = realized.integers[tensor]
    found = Session(expose(realized.model, [name])).run(normal_samples(graph).inputs)[name]
    weight, shift = plan.weights[kernel.weight].values.astype(int)[:, :, 0, 0], kernel.output.shift
    low, high = topology.kernel_of["conv"].channel_bounds or ((), ())
    real = normal_samples(graph).inputs["x"]
    for n, y, z in [(0, 0, 0), (1, 2, 3), (5, 3, 1)]:
        q = [min(max(round(float(v) / float(data.scale)), -127), 127) for v in real[n, :, y, z]]
        for c in range(4):
            total = sum(a * int(b) for a, b in zip(q, weight[c], strict=True)) + int(kernel.bias[c])
            stored = (total + (1 << shift >> 1)) >> shift
            least, most = (round(b[c] / float(result.scale)) for b in (low, high))
            assert found[n, c, y, z] == max(min(stored, most, 127), least, -127)
    assert other.agree(plan, "integer").differing == 0


def test_what_does_not_fit_is_refused() -> None:
    made = line(blocks(), "vta")
    good = some_change(4, 0, True)
    tensor = made.graph.by_name["last"].inputs[0]
    for changes in (
        {"nothing": good},
        {tensor: some_change(3, 0, True)},
        {tensor: ChannelChange(-good.factor, good.offset)},
        {made.graph.by_name["depthwise"].inputs[0]: some_change(6, 0, True)},
    ):
        with pytest.raises(ArtifactError, match="channels of"):
            rescale_channels(made.graph, made.topology, changes)


def test_what_is_stored_is_read_again() -> None:
    made = line(blocks(), "vta")
    tensor, weight = made.graph.by_name["last"].inputs[0], made.graph.by_name["last"].inputs[1]
    key = made.topology.group_of[tensor].key
    change = ChannelChange(np.arange(1.0, 5.0), np.arange(4.0), (0.0, 6.0))
    given = Overrides({}, {}, {key: Range(-1.5, 2.0)}, {weight: np.asarray(0.75)}, {tensor: change})
    found = overrides_from_arrays(overrides_arrays(given), made.topology, "here")
    assert found.ranges == given.ranges and found.thresholds[weight] == 0.75
    again = found.channels[tensor]
    assert np.array_equal(again.factor, change.factor) and np.array_equal(again.offset, change.offset)
    assert again.limits == (0.0, 6.0)
    for bad in ({"range/no": np.zeros(2)}, {"threshold/no": np.ones(())}, {"factor/no": np.ones(2)}):
        with pytest.raises(ArtifactError, match="here"):
            overrides_from_arrays(bad, made.topology, "here")


def test_a_changed_graph_is_whole() -> None:
    made = line(blocks(), "vta")
    found, _ = layer_pairs(made.graph, made.topology)
    graph, _ = rescale_channels(
        made.graph, made.topology, {t: some_change(k.channels, 1, k.offsets) for t, k in found.items()}
    )
    assert {n.name for n in made.graph.nodes} <= {n.name for n in graph.nodes}
    assert all(t in graph.shapes for n in graph.nodes for t in (*n.inputs, *n.outputs) if t)
    assert made.graph.nodes != graph.nodes and [o.name for o in made.graph.outputs] == [o.name for o in graph.outputs]
