"""Which axis holds the channels: of a map, of a sequence of vectors, of a normalization; pairs of layers that meet."""

from __future__ import annotations

import numpy as np
import pytest

from quantpipe.graph.execute import Session
from quantpipe.graph.outputs import with_outputs
from quantpipe.recover import rescale_channels
from quantpipe.recover.rescale.channel_regions import layer_pairs
from quantpipe.recover.rescale.channel_stats import channel_extremes
from tests.ops.line import Line, Net, line, normal_samples
from tests.recover.test_recover_channels import norm, on, outputs, some_change


def same_function(made: Line, *, offsets: bool = True) -> None:
    """Every link of the network changed at once leaves the function as it was, and the integers are those planned."""
    found, _ = layer_pairs(made.graph, made.topology)
    assert found
    changes = {t: some_change(k.channels, n, k.offsets and offsets) for n, (t, k) in enumerate(found.items())}
    graph, topology = rescale_channels(made.graph, made.topology, changes)
    np.testing.assert_allclose(outputs(graph), outputs(made.graph), rtol=1e-4, atol=1e-5)
    other = on(made, graph, topology)
    assert other.agree(other.plan(), "integer" if made.spec.name == "vta" else "qdq").differing == 0


@pytest.mark.parametrize("length", [3, 5, 12])
@pytest.mark.parametrize("clamp", ["Relu", "Clip"])
def test_a_convolution_along_time_has_its_channels_second(clamp: str, length: int) -> None:
    net = Net(1)
    x = net.node("Conv", net.input(None, 2, length), net.floats(5, 2, 1), net.floats(5), name="first")
    bounds = (net.constant(np.float32(0)), net.constant(np.float32(1.5))) if clamp == "Clip" else ()
    x = net.node(clamp, x, *bounds, name="clamp")
    net.output(net.node("Conv", x, net.floats(3, 5, 3), net.floats(3), name="second"))
    made = line(net, "vta")
    found, _ = layer_pairs(made.graph, made.topology)
    (link,) = found.values()
    assert (link.axis, link.channels) == (1, 5)
    extremes = channel_extremes(made.graph, [link], made.samples, moments=False)[link.tensor]
    seen = Session(with_outputs(made.graph.model, [link.tensor])).run(normal_samples(made.graph).inputs)[link.tensor]
    np.testing.assert_array_equal(extremes.minimum, seen.min(axis=(0, 2)))
    np.testing.assert_array_equal(extremes.maximum, seen.max(axis=(0, 2)))
    same_function(made)


def test_a_dense_layer_over_a_sequence_has_its_channels_last() -> None:
    net = Net(2)
    x = net.node("MatMul", net.input(None, 5, 4), net.floats(4, 6), name="first")
    net.output(net.node("MatMul", net.node("Relu", x), net.floats(6, 3), name="second"))
    made = line(net, "ort_cpu")
    (link,) = layer_pairs(made.graph, made.topology)[0].values()
    assert (link.axis, link.channels) == (2, 6)
    same_function(made)


def test_rows_laid_flat_keep_their_channels_last() -> None:
    """Behind a normalization [N, T, C] and behind a dense layer [N·T, C]: the channels lie last in each tensor."""
    net = Net(7)
    x = net.node(
        "LayerNormalization", net.input(None, 5, 4), net.floats(4, scale=0.2), net.floats(4), name="norm", axis=-1
    )
    x = net.node("Add", net.node("MatMul", x, net.floats(4, 6), name="up"), net.floats(6))
    net.output(net.node("Add", net.node("MatMul", net.node("Relu", x), net.floats(6, 3), name="down"), net.floats(3)))
    made = line(net, "vta")
    found = {link.producer: link for link in layer_pairs(made.graph, made.topology)[0].values()}
    assert {producer: link.channels for producer, link in found.items()} == {"norm": 4, "up": 6}
    assert found["norm"].axis == -1 and made.graph.by_name["up"].op == "Gemm"
    extremes = channel_extremes(made.graph, [found["norm"]], made.samples, moments=False)[found["norm"].tensor]
    assert extremes.minimum.shape == (4,)
    same_function(made)


def test_a_sequence_flattened_mixes_its_channels() -> None:
    """[N, T, C] -> [N, T·C]: feature t·C + c is not feature c·T + t, which a map's channels would become."""
    net = Net(3)
    x = net.node("MatMul", net.input(None, 4, 4), net.floats(4, 4), name="first")
    net.output(net.dense(net.node("Flatten", net.node("Relu", x), name="flat"), 16, 3, name="dense"))
    made = line(net, "ort_cpu")
    found, refused = layer_pairs(made.graph, made.topology)
    assert not found and "flat" in refused["first"]


@pytest.mark.parametrize("size", [5, 6])
def test_a_pool_over_a_sequence_mixes_its_channels(size: int) -> None:
    """MaxPool takes the second axis for the channels, and pools over the last."""
    net = Net(4)
    x = net.node("MatMul", net.input(None, 6, 4), net.floats(4, size + 1), name="first")
    x = net.node("MaxPool", net.node("Relu", x), kernel_shape=[2], name="pool")
    net.output(net.node("MatMul", x, net.floats(size, 3), name="second"))
    made = line(net, "ort_cpu")
    assert not layer_pairs(made.graph, made.topology)[0]


@pytest.mark.parametrize("width", [6, 5])
def test_a_matrix_behind_a_map_reads_another_axis(width: int) -> None:
    net = Net(5)
    x = net.conv(net.input(None, 3, 4, width), 3, 6, 1, 1, name="first")
    net.output(net.node("MatMul", net.node("Relu", x), net.floats(width, 3), name="second"))
    made = line(net, "ort_cpu")
    found, refused = layer_pairs(made.graph, made.topology)
    assert not found and "second" in refused["first"]


@pytest.mark.parametrize("height", [6, 4])
def test_a_layer_normalization_of_a_map_is_over_its_last_axis(height: int) -> None:
    net = Net(6)
    x = norm(net, net.input(None, height, 5, 6), 6, "norm")
    net.output(net.node("MatMul", x, net.floats(6, 3), name="head"))
    made = line(net, "ort_cpu")
    (link,) = layer_pairs(made.graph, made.topology)[0].values()
    assert (link.axis, link.channels) == (3, 6)
    same_function(made, offsets=False)


@pytest.mark.parametrize("length", [4, 7])
def test_an_instance_normalization_along_time_has_its_channels_second(length: int) -> None:
    net = Net(7)
    x = net.node("InstanceNormalization", net.input(None, 4, length), net.floats(4), net.floats(4), name="norm")
    net.output(net.node("Conv", x, net.floats(3, 4, 1), net.floats(3), name="head"))
    made = line(net, "ort_cpu")
    (link,) = layer_pairs(made.graph, made.topology)[0].values()
    assert (link.axis, link.channels) == (1, 4)
    same_function(made)


@pytest.mark.parametrize("op", ["PRelu", "LeakyRelu"])
def test_slopes_keep_what_is_scaled(op: str) -> None:
    """f(a·x) = a·f(x) for a > 0; with an offset there is no such rule."""
    net = Net(8)
    x = net.conv(net.input(None, 2, 6, 6), 2, 4, 3, 3, name="first")
    x = net.node(op, x, *([net.floats(4, 1, 1)] if op == "PRelu" else []), name="slopes")
    net.output(net.conv(net.node("MaxPool", x, kernel_shape=[2, 2]), 4, 3, name="second"))
    made = line(net, "ort_cpu")
    (link,) = layer_pairs(made.graph, made.topology)[0].values()
    assert (link.producer, link.consumers, link.offsets) == ("first", ("second",), False)
    same_function(made)


def test_a_tensor_of_slopes_is_no_data() -> None:
    net = Net(9)
    data = net.input(None, 4, 4, 4)
    slopes = net.conv(data, 4, 4, name="slopes")
    net.output(net.conv(net.node("PRelu", data, slopes, name="prelu"), 4, 3, name="second"))
    made = line(net, "ort_cpu")
    found, refused = layer_pairs(made.graph, made.topology)
    assert not found and "prelu" in refused["slopes"]
