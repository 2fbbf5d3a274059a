"""Products and sums with constants before and after layers: folded where the function stays, left alone elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantpipe.intake import cleanup
from quantpipe.intake.rewrites.batch_norms import batch_norms, has_folded_bias
from tests.intake.test_rewrites import checked, ops
from tests.ops.line import Net, load

GAIN, SHIFT = np.float32([1.5]), np.float32([-0.25])


@pytest.fixture
def no_second_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a note be made where folding changes the outputs."""

    def broken(model: object) -> None:
        raise RuntimeError("switched off")

    monkeypatch.setattr(cleanup, "_fold_products", broken)


def vector(size: int, spread: float = 1.3) -> np.ndarray[Any, Any]:
    return np.linspace(1.0, spread, size, dtype=np.float32).reshape(size, 1, 1)


@pytest.mark.parametrize("gain", [GAIN, vector(4), vector(4, 1000.0), np.float32(-2.0), vector(4)[None]])
@pytest.mark.parametrize("layer", ["Conv", "ConvTranspose", "grouped", "grouped transpose", "without bias"])
def test_gain_and_shift_after_a_layer_are_its_numbers(layer: str, gain: np.ndarray[Any, Any]) -> None:
    net = Net(seed=3)
    x = net.input(None, 4, 5, 5)
    groups = 2 if "grouped" in layer else 1
    turned = "ranspose" in layer
    weight = net.floats(4, 4 // groups, 3, 3)
    bias = [] if layer == "without bias" else [net.floats(4)]
    x = net.node("ConvTranspose" if turned else "Conv", x, weight, *bias, group=groups, pads=[1, 1, 1, 1])
    x = net.node("Add", net.node("Mul", net.constant(gain), x), net.constant(SHIFT))
    net.output(net.node("Relu", x))
    assert sum(ops(checked(net)).values()) == 2


@pytest.mark.parametrize("turned", [0, 1])
def test_gain_and_shift_after_a_dense_layer(turned: int) -> None:
    net = Net(seed=4)
    x = net.node("Gemm", net.input(None, 6), net.floats(*((3, 6) if turned else (6, 3))), net.floats(3), transB=turned)
    x = net.node("Mul", net.node("Add", x, net.constant(np.float32([1, 2, 3]))), net.constant(np.float32([3, 2, 1])))
    net.output(x)
    assert ops(checked(net)) == {"Gemm": 1}


@pytest.mark.usefixtures("no_second_way")
@pytest.mark.parametrize("gain", [GAIN, vector(4), np.float32(-2.0)])
@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_gain_and_shift_before_a_layer(groups: int, pad: int, gain: np.ndarray[Any, Any]) -> None:
    """A shift stays where the layer pads: the padding would lack it."""
    net = Net(seed=5)
    x = net.node("Relu", net.input(None, 4, 5, 5))
    x = net.node("Add", net.node("Mul", x, net.constant(gain)), net.constant(SHIFT))
    net.output(net.node("Conv", x, net.floats(4, 4 // groups, 3, 3), group=groups, pads=[pad] * 4))
    found = ops(checked(net))
    assert (found["Mul"], found["Add"]) == (0, pad)


@pytest.mark.usefixtures("no_second_way")
def test_automatic_padding_counts_as_padding() -> None:
    net = Net(seed=6)
    x = net.node("Add", net.node("Relu", net.input(None, 4, 5, 5)), net.constant(SHIFT))
    net.output(net.node("Conv", x, net.floats(4, 4, 3, 3), auto_pad="SAME_UPPER", strides=[1, 1]))
    assert ops(checked(net))["Add"] == 1


def test_gains_far_apart_stay_before_a_layer() -> None:
    """They would take most of the range of a weight with one scale."""
    net = Net(seed=7)
    x = net.node("Mul", net.node("Relu", net.input(None, 4, 5, 5)), net.constant(vector(4, 3.0)))
    net.output(net.conv(x, 4, 4, 3, 3))
    assert ops(checked(net))["Mul"] == 1


def test_a_constant_that_repeats_its_operand_stays() -> None:
    net = Net(seed=8)
    x = net.node("Mul", net.node("Relu", net.input(None, 1, 5, 5)), net.constant(vector(4)))
    net.output(net.conv(x, 4, 4, 3, 3))
    assert ops(checked(net))["Mul"] == 1


@pytest.mark.parametrize("also", ["read", "given out"])
def test_a_result_with_a_second_reader_stays(also: str) -> None:
    net = Net(seed=9)
    x = net.conv(net.input(None, 4, 5, 5), 4, 4, 3, 3)
    y = net.node("Mul", x, net.constant(GAIN))
    net.output(net.node("Sigmoid", x) if also == "read" else x)
    net.output(net.node("Relu", y))
    assert ops(checked(net))["Mul"] == 1


@pytest.mark.parametrize("shape", [(1, 5), (5, 5), (4, 5, 5)])
def test_a_constant_per_place_stays(shape: tuple[int, ...]) -> None:
    net = Net(seed=10)
    x = net.conv(net.input(None, 4, 5, 5), 4, 4, 3, 3, pads=[1, 1, 1, 1])
    net.output(net.node("Mul", x, net.floats(*shape)))
    assert ops(checked(net))["Mul"] == 1


def test_sums_stay_where_folding_them_changes_the_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are folded all the same, and no note is made."""
    plain = cleanup._fold_constants

    def rough(model: Any) -> Any:
        found = plain(model)
        for value in found.graph.initializers.values():
            if value.name and value.name.endswith("_bias"):
                raise RuntimeError("planted")
        return found

    net = Net(seed=11)
    x = net.conv(net.input(None, 4, 5, 5), 4, 4, 3, 3, bias=False)
    net.output(net.node("Add", net.node("Mul", x, net.constant(GAIN)), net.constant(SHIFT)))
    monkeypatch.setattr(cleanup, "_fold_constants", rough)
    graph = load(net)
    assert ops(graph) == {"Conv": 1, "Add": 1} and not graph.notes


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_chain_of_constants_around_layers_keeps_the_function(data: st.DataObject) -> None:
    draw = data.draw
    net, channels = Net(seed=draw(st.integers(0, 99))), 4
    x = net.input(None, channels, 6, 6)
    for _ in range(draw(st.integers(2, 6))):
        kind = draw(st.sampled_from(["Mul", "Add", "Conv", "Relu", "ConvTranspose"]))
        if kind == "Relu":
            x = net.node("Relu", x)
        elif kind in ("Mul", "Add"):
            size = draw(st.sampled_from([(1,), (channels, 1, 1), (1, channels, 1, 1), ()]))
            numbers = net.constant(np.asarray(draw(st.floats(0.5, 2.0)) * np.ones(size), np.float32))
            x = net.node(kind, *draw(st.permutations([x, numbers])))
        else:
            groups, pad = draw(st.sampled_from([1, 2, 4])), draw(st.integers(0, 1))
            weight = net.floats(channels, channels // groups, 1 + 2 * pad, 1 + 2 * pad)
            bias = [net.floats(channels)] if draw(st.booleans()) else []
            x = net.node(kind, x, weight, *bias, group=groups, pads=[pad] * 4)
    net.output(net.node("Sigmoid", x))
    checked(net)


@pytest.mark.parametrize("shifted", [False, True])
def test_a_constant_before_a_convolution_changes_the_bias_that_folding_gives(shifted: bool) -> None:
    """Training that runs a normalization anew leaves such a convolution as it is."""
    net = Net(seed=12)
    x = net.node("Relu", net.input(None, 4, 5, 5))
    x = net.node("Add", x, net.constant(SHIFT)) if shifted else x
    x = net.conv(x, 4, 4, 1, 1)
    x = net.node("BatchNormalization", x, *(net.floats(4) for _ in range(3)), net.constant(np.float32([1, 2, 3, 4])))
    net.output(x)
    proto = net.proto()
    (name, numbers), *_ = batch_norms(ir.from_proto(proto)).items()
    graph = load(proto)
    assert ops(graph) == {"Relu": 1, "Conv": 1}
    assert has_folded_bias(graph, name, numbers) is not shifted


@pytest.mark.parametrize("low", [-1e4, np.finfo(np.float32).min])
def test_a_mask_stays_a_sum(low: float) -> None:
    """As a bias it would leave the weights no steps."""
    net = Net(seed=13)
    x = net.conv(net.input(None, 4, 5, 5), 4, 4, 3, 3)
    x = net.node("Add", net.node("Tanh", x), net.constant(np.float32([0, low, 0, 0]).reshape(4, 1, 1)))
    net.output(net.conv(x, 4, 4, 1, 1))
    assert ops(load(net))["Add"] == 1


@pytest.mark.parametrize("before", [False, True])
def test_a_weight_with_two_readers_stays_one(before: bool) -> None:
    """As a table of words that also makes the scores."""
    net = Net(seed=14)
    table = net.floats(6, 4)
    words = net.node("Gather", table, net.node("Cast", net.input(None), to=7))
    x = net.node("Mul", net.node("Tanh", words), net.constant(np.float32(0.5))) if before else net.node("Tanh", words)
    x = net.node("Gemm", x, table, transB=1)
    net.output(x if before else net.node("Mul", x, net.constant(np.float32(0.5))))
    graph = load(net)
    assert (
        ops(graph)["Mul"] == 1
        and [v.shape for v in graph.model.graph.initializers.values()].count(ir.Shape([6, 4])) == 1
    )


def test_weights_that_a_file_defines_keep_their_integers() -> None:
    """A file with integer weights alone stores no tensor."""
    net = Net(seed=15)
    numbers, scale = net.constant(np.int8(net.rng.integers(-127, 128, (4, 4, 3, 3)))), net.constant(np.float32(0.01))
    x = net.node("Mul", net.node("Relu", net.input(None, 4, 5, 5)), net.constant(GAIN))
    net.output(net.node("Conv", x, net.node("DequantizeLinear", numbers, scale)))
    assert ops(load(net))["Mul"] == 1
