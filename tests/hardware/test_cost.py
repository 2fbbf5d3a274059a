"""The costs, against numbers worked out by hand."""

from __future__ import annotations

from functools import cache

import pytest

from quantpipe.hardware.cost import COSTS, macs, node_cycles
from quantpipe.pipeline.figures import shares_of
from tests.ops.line import Line, Net, line

# x [3, 8, 8] -> Conv 3x3 to 5 channels [5, 6, 6] -> Relu -> flatten [180] -> Gemm to 4; Softmax
CONV_MACS = 5 * 6 * 6 * 3 * 3 * 3
DENSE_MACS = 180 * 4


@cache
def made(spec: str) -> Line:
    net = Net()
    x = net.node("Relu", net.conv(net.input(None, 3, 8, 8), 3, 5, 3, 3, name="conv"), name="relu")
    x = net.node("Flatten", x, name="flat")
    net.output(net.node("Softmax", net.dense(x, 180, 4, name="dense"), name="soft"))
    return line(net, spec)


def bits(made: Line, activations: int, weights: int) -> dict[str, int]:
    found = {t: activations for g in made.topology.groups for t in g.tensors}
    return found | {w.tensor: weights for w in made.topology.weights}


def cost(name: str, made: Line, activations: int = 8, weights: int = 8) -> float:
    return COSTS[name](made.topology, made.graph, made.spec, bits(made, activations, weights))


def test_macs() -> None:
    graph = made("ort_cpu").graph
    assert {n.name: macs(n, graph) for n in graph.nodes} == {
        "conv": CONV_MACS, "relu": 0, "flat": 0, "dense": DENSE_MACS, "soft": 0
    }  # fmt: skip


def test_macs_of_grouped_convolutions() -> None:
    net = Net()
    net.output(net.conv(net.input(None, 6, 7, 7), 6, 6, 3, 3, group=6, name="depthwise"))
    graph = line(net).graph
    assert macs(graph.by_name["depthwise"], graph) == 6 * 5 * 5 * 9


def test_bit_sum_counts_edges() -> None:
    """Quantized edges on ort_cpu: x->conv, conv->flat (behind the swallowed relu), flat->dense, two weights."""
    assert cost("bits", made("ort_cpu"), 8, 5) == 3 * 8 + 2 * 5


def test_weight_bytes() -> None:
    assert cost("weight_bytes", made("ort_cpu"), 8, 4) == (5 * 27 + 180 * 4) / 2


@pytest.mark.parametrize("spec", ["ort_cpu", "vta"])
def test_bops(spec: str) -> None:
    assert cost("bops", made(spec), 8, 4) == (CONV_MACS + DENSE_MACS) * 32


def test_bops_of_float_nodes_are_32_by_32() -> None:
    assert cost("bops", made("hago_sample"), 8, 4) == CONV_MACS * 32 + DENSE_MACS * 1024


def test_cycles_on_onnxruntime() -> None:
    expected = (CONV_MACS + DENSE_MACS) / 64 + (5 * 27 + 180 * 4) / 16
    assert cost("cycles", made("ort_cpu")) == pytest.approx(expected)


def test_cycles_pad_channels_to_blocks() -> None:
    """VTA pads 3 -> 16 and 5 -> 16 channels, 4 -> 16 and 180 -> 192 features.

    36 vectors of the map are narrowed in four steps; the one of the dense layer leaves whole in three.
    """
    conv = CONV_MACS * (16 / 3) * (16 / 5) / 256 + 5 * 27 / 8 + 4 * 36
    dense = DENSE_MACS * (16 / 4) * (192 / 180) / 256 + 720 / 8 + 3
    assert cost("cycles", made("vta")) == pytest.approx(conv + dense)
    net = made("vta")
    parts = node_cycles(net.topology, net.graph, net.spec, bits(net, 8, 8))
    assert {name: part for name, part in parts.items() if part} == pytest.approx({"conv": conv, "dense": dense})
    stored = net.topology.kernel_of["conv"].output
    shares = shares_of(parts, net.topology, net.graph)
    assert shares[stored] == pytest.approx(conv / (conv + dense)) and sum(shares.values()) == pytest.approx(1)


def test_peak_of_activations_on_onnxruntime() -> None:
    """x and the convolution's result together; behind it 180 + 180, and 4 accumulators or reals of 32 bits."""
    assert cost("peak_activation_bytes", made("ort_cpu")) == 3 * 8 * 8 + 5 * 6 * 6
    assert cost("peak_activation_bytes", made("ort_cpu"), 4) == (3 * 8 * 8 + 5 * 6 * 6) / 2
    assert cost("peak_activation_bytes", made("ort_cpu"), 8, 2) == 3 * 8 * 8 + 5 * 6 * 6, "weights do not count"


def test_peak_of_activations_where_accumulators_travel() -> None:
    """hago_sample: conv's int32 result and x; relu's result beside it; then 180 floats twice."""
    assert cost("peak_activation_bytes", made("hago_sample")) == max(192 + 4 * 180, 4 * 180 * 2)


def test_peak_of_activations_keeps_a_residual_alive() -> None:
    net = Net()
    x = net.conv(net.input(None, 4, 6, 6), 4, 4, 1, 1, name="first")
    y = net.conv(net.conv(x, 4, 8, 1, 1, name="wide"), 8, 4, 1, 1, name="back")
    net.output(net.node("Add", x, y, name="add"))
    made = line(net, "ort_cpu")
    found = COSTS["peak_activation_bytes"](made.topology, made.graph, made.spec, bits(made, 8, 8))
    assert found == 4 * 36 + 8 * 36 + 4 * 36, "x waits while the wide tensor becomes the narrow one"


def test_fewer_bits_never_cost_more() -> None:
    for name in COSTS:
        for spec in ("ort_cpu", "vta", "hago_sample"):
            found = [cost(name, made(spec), b, b) for b in (8, 6, 4, 2)]
            assert found == sorted(found, reverse=True), (name, spec)
