"""Channels of transformers: streams through normalizations and constants, values through attention, shortcuts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quantpipe.errors import ArtifactError
from quantpipe.graph.view import Graph
from quantpipe.oprules.attention import through_heads
from quantpipe.recover.rescale.apply_rotation import rotate_weights
from quantpipe.recover.rescale.channel_regions import layer_pairs
from quantpipe.recover.rescale.optimize_rotation import StreamWeight, crest_factor, optimize_rotation, rotated
from quantpipe.recover.rescale.rescale_channels import rescale_channels
from quantpipe.recover.rescale.residual_streams import streams
from tests.ops.line import Line, Net, line
from tests.recover.test_recover_channels import norm, on, outputs, some_change
from tests.recover.test_recover_rotate import accept_steps, agrees

TOKENS, WIDTH, HEADS = 4, 6, 2


def turn(size: int, seed: int, keep_mean: bool) -> Any:
    """A rotation; with `keep_mean` one that takes the vector of ones to itself."""
    rng = np.random.default_rng(seed)
    if not keep_mean:
        return np.linalg.qr(rng.standard_normal((size, size)))[0]
    basis = np.linalg.qr(np.column_stack([np.ones(size), rng.standard_normal((size, size - 1))]))[0]
    inner = np.eye(size)
    inner[1:, 1:] = np.linalg.qr(rng.standard_normal((size - 1, size - 1)))[0]
    return basis @ inner @ basis.T


def linear(net: Net, x: str, into: int, out: int, name: str, bias: bool = True) -> str:
    product = net.node("MatMul", x, net.floats(into, out, scale=1 / np.sqrt(into)), name=name)
    return net.node("Add", product, net.floats(out, scale=0.3)) if bias else product


def attention(net: Net, x: str, name: str) -> str:
    """As torch exports it: heads by Reshape and Transpose, scores, Softmax, and back."""

    def heads(y: str, order: list[int]) -> str:
        return net.node("Transpose", net.node("Reshape", y, shape), perm=order)

    shape = net.constant(np.int64([-1, TOKENS, HEADS, WIDTH // HEADS]))
    query, key, value = (linear(net, x, WIDTH, WIDTH, f"{name}_{part}") for part in ("query", "key", "value"))
    scores = net.node("MatMul", heads(query, [0, 2, 1, 3]), heads(key, [0, 2, 3, 1]))
    mixed = net.node("MatMul", net.node("Softmax", scores, axis=-1), heads(value, [0, 2, 1, 3]), name=f"{name}_mixed")
    back = net.node("Reshape", net.node("Transpose", mixed, perm=[0, 2, 1, 3]), net.constant(np.int64([-1, 4, 6])))
    return linear(net, back, WIDTH, WIDTH, f"{name}_out")


def vision() -> Net:
    """A vision transformer of one block: patches by a convolution, a class token, places, and norms in front."""
    net = Net(7)
    zeros = net.constant(np.int64([0]))
    x = net.conv(net.input(None, 3, 6, 2), 3, WIDTH, 2, 2, name="patches", strides=[2, 2])
    x = net.node("Transpose", net.node("Reshape", x, net.constant(np.int64([0, WIDTH, -1]))), perm=[0, 2, 1])
    count = net.node("Unsqueeze", net.node("Gather", net.node("Shape", x), zero := net.constant(np.int64(0))), zeros)
    shape = net.node("Concat", count, net.constant(np.int64([1, WIDTH])), axis=0)
    x = net.node("Concat", net.node("Expand", net.floats(1, 1, WIDTH), shape, name="token"), x, axis=1)
    x = net.node("Add", x, net.floats(1, TOKENS, WIDTH), name="places")
    x = net.node("Add", x, attention(net, norm(net, x, WIDTH, "norm1"), "block"), name="sum1")
    hidden = net.node("Relu", linear(net, norm(net, x, WIDTH, "norm2"), WIDTH, 8, "up"))
    x = net.node("Add", x, linear(net, hidden, 8, WIDTH, "down"), name="sum2")
    x = norm(net, x, WIDTH, "norm3")
    net.output(linear(net, net.node("Gather", x, zero, axis=1, name="first"), WIDTH, 3, "classifier"))
    return net


def encoder() -> Net:
    """A sentence encoder's block: normalizations behind the sums, and a shortcut that reads what the layers read."""
    net = Net(8)
    x = norm(net, net.input(None, TOKENS, WIDTH), WIDTH, "norm0")
    x = norm(net, net.node("Add", attention(net, x, "block"), x, name="sum1"), WIDTH, "norm1")
    hidden = net.node("Relu", linear(net, x, WIDTH, 8, "up"))
    x = net.node("Add", linear(net, hidden, 8, WIDTH, "down"), x, name="sum2")
    net.output(norm(net, x, WIDTH, "norm2"))
    return net


def close(graph: Graph, original: Graph) -> None:
    np.testing.assert_allclose(outputs(graph), outputs(original), rtol=2e-4, atol=2e-5)


@pytest.fixture(scope="module")
def seeing() -> Line:
    return line(vision(), "vta")


@pytest.fixture(scope="module")
def reading() -> Line:
    return line(encoder(), "ort_cpu")


def test_a_stream_passes_normalizations_and_constants(seeing: Line) -> None:
    (stream,) = streams(seeing.graph, seeing.topology)[0].values()
    assert stream.producers == ("patches", "block_out", "down")
    assert set(stream.consumers) == {"block_query", "block_key", "block_value", "up", "classifier"}
    assert [name for name, _ in stream.norms] == ["norm1", "norm2", "norm3"] and stream.centred
    assert {node for node, _ in stream.constants} == {"places", "token"}


def test_a_rotation_that_keeps_the_mean_leaves_the_function(seeing: Line) -> None:
    (name,) = streams(seeing.graph, seeing.topology)[0]
    graph = rotate_weights(seeing.graph, seeing.topology, {name: turn(WIDTH, 3, keep_mean=True)})
    close(graph, seeing.graph)
    gains = [graph.constant(n.inputs[1]) for n in graph.nodes if n.op == "LayerNormalization"]
    assert len(gains) == 3 and all(np.all(gain == 1) for gain in gains)
    assert not np.allclose(graph.constant(graph.by_name["places"].inputs[1]), 0)


def test_a_rotation_that_moves_the_mean_is_refused(seeing: Line) -> None:
    (name,) = streams(seeing.graph, seeing.topology)[0]
    with pytest.raises(ArtifactError, match="moves their mean"):
        rotate_weights(seeing.graph, seeing.topology, {name: turn(WIDTH, 3, keep_mean=False)})


@pytest.mark.parametrize("channels", [5, 12])
def test_a_rotation_is_found_that_keeps_the_mean(channels: int) -> None:
    spiky = np.random.default_rng(channels).standard_normal((1, 24, channels)) ** 3
    weights = [StreamWeight(spiky, (0, 1, 2))]
    matrix = optimize_rotation(weights, channels, 40, centred=True)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-9)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(channels), atol=1e-9)
    assert crest_factor([rotated(weights[0], matrix)]) < 0.8 * crest_factor(weights)


def test_without_a_bias_to_take_the_offset_there_is_no_stream() -> None:
    net = Net(9)
    x = linear(net, net.input(None, TOKENS, WIDTH), WIDTH, WIDTH, "first")
    net.output(linear(net, norm(net, x, WIDTH, "norm"), WIDTH, 3, "last", bias=False))
    made = line(net, "ort_cpu")
    found, refused = streams(made.graph, made.topology)
    assert not found and "no bias for its offset" in refused["first"]


def test_the_values_of_an_attention_are_followed_through_its_heads(seeing: Line) -> None:
    found = layer_pairs(seeing.graph, seeing.topology)[0].values()
    (link,) = [link for link in found if link.attended]
    assert (link.producer, link.consumers, link.axis, link.offsets) == ("block_value", ("block_out",), -1, False)
    graph, _ = rescale_channels(seeing.graph, seeing.topology, {link.tensor: some_change(WIDTH, 1, False)})
    close(graph, seeing.graph)
    query = seeing.graph.by_name["block_query"].outputs[0]
    assert through_heads(seeing.graph, query) == (), "its channels are summed over"


def test_behind_a_shortcut_a_copy_of_the_normalization_changes(reading: Line) -> None:
    found = {link.producer: link for link in layer_pairs(reading.graph, reading.topology)[0].values() if link.affine}
    assert set(found) == {"norm0", "norm1"} and all(link.view and link.offsets for link in found.values())
    changes = {link.tensor: some_change(WIDTH, n, True) for n, link in enumerate(found.values())}
    graph, topology = rescale_channels(reading.graph, reading.topology, changes)
    close(graph, reading.graph)
    assert sum(n.op == "LayerNormalization" for n in graph.nodes) == 5
    untouched = graph.by_name["norm0"].inputs[1]
    np.testing.assert_array_equal(graph.constant(untouched), reading.graph.constant(untouched))
    made = on(reading, graph, topology)
    assert made.agree(made.plan(), "qdq").differing == 0


@pytest.mark.sliced(8)
@pytest.mark.parametrize("steps", [["smooth"], ["smooth", "gptq_compensated"]])
@pytest.mark.parametrize(("net", "hw", "form"), [(encoder, "ort_cpu", "qdq"), (vision, "vta", "integer")])
def test_what_was_smoothed_is_what_runs(net: Any, hw: str, form: str, steps: list[str]) -> None:
    made = line(net(), hw)
    agrees(made, accept_steps(made, steps).overrides, form)


@pytest.mark.sliced(2)
@pytest.mark.parametrize("net", [encoder, vision])
def test_everything_at_once_is_what_runs(net: Any) -> None:
    """A rotation, and then changes of all pairs of layers, with the ranges that the float model had."""
    made = line(net(), "ort_cpu")
    turned = {name: turn(s.channels, 5, s.centred) for name, s in streams(made.graph, made.topology)[0].items()}
    found = [link for link in layer_pairs(made.graph, made.topology)[0].values() if link.affine or link.attended]
    changes = {link.tensor: some_change(link.channels, n, link.offsets) for n, link in enumerate(found)}
    graph, topology = rescale_channels(made.graph, made.topology, changes, turned)
    close(graph, made.graph)
    other = on(made, graph, topology)
    assert other.agree(other.plan(), "qdq").differing == 0
