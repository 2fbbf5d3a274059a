"""Equalization of neighbouring layers, and of channels behind a normalization."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quantpipe.errors import ConfigError
from quantpipe.recover import (
    RecoverOptions,
    rescale_channels,
)
from quantpipe.recover.rescale.channel_regions import layer_pairs
from quantpipe.recover.rescale.channel_stats import channel_extremes
from quantpipe.recover.rescale.equalize import Equalization, equalized
from quantpipe.recover.rescale.smooth import smoothed
from tests.ops.line import ArraySamples, Line, Net, line, load
from tests.recover.test_recover_channels import blocks, norm, outputs
from tests.recover.test_recover_steps import agrees, climbed, uneven

Array = np.ndarray[Any, Any]


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
