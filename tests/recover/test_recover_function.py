"""Whatever steps change channels one after the other, on whatever device: the float model computes what it did on the
samples that they were fitted to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quantpipe.graph.execute import Session, joined, run_batches
from quantpipe.graph.view import Graph
from quantpipe.recover import STEPS, NotApplicable, rescale_channels
from quantpipe.recover.rescale.absorb import Absorption
from quantpipe.recover.rescale.channel_regions import layer_pairs
from quantpipe.recover.rescale.equalize import Equalization
from quantpipe.recover.rescale.smooth import Smoothing
from tests.ops.line import Line, Net, hardware, hardware_data, line
from tests.recover.test_recover_channels import blocks, norm, six
from tests.recover.test_recover_steps import work_on

PER_CHANNEL = Equalization(per_channel=True)
CHAINS: dict[str, list[tuple[str, Any]]] = {
    "equalize": [("equalize", PER_CHANNEL)],
    "absorb": [("absorb", Absorption())],
    "absorb, equalize": [("absorb", Absorption()), ("equalize", PER_CHANNEL)],
    "equalize, absorb": [("equalize", PER_CHANNEL), ("absorb", Absorption(by_channel=False))],
    "smooth, absorb": [("smooth", Smoothing((0.5,))), ("absorb", Absorption())],
    "absorb, smooth, equalize": [
        ("absorb", Absorption()),
        ("smooth", Smoothing((0.5,))),
        ("equalize", PER_CHANNEL),
    ],
}


def head(limit: float = 0.8) -> Net:
    """A clamp that many values meet, an average that hides it, a dense layer."""
    net = Net(21)
    x = six(net, net.conv(net.input(None, 3, 8, 8), 3, 12, 3, 3, name="conv"), "clamp", limit)
    x = net.node("Flatten", net.node("GlobalAveragePool", x, name="pool"))
    net.output(net.dense(x, 12, 5, name="dense"))
    return net


def behind_norm() -> Net:
    """LayerNormalization, a clamp in float, and two dense layers with a Relu between them."""
    net = Net(22)
    x = norm(net, net.input(None, 16), 16, "norm")
    x = net.node("Clip", x, net.constant(np.float32(-0.5)), net.constant(np.float32(0.9)), name="clamp")
    x = net.node("Relu", net.dense(x, 16, 8, name="first"), name="relu")
    net.output(net.dense(x, 8, 4, name="second"))
    return net


def raised() -> Net:
    """Dense layers whose Relus always let a good part of some channels pass."""
    net = Net(23)
    x = net.input(None, 6)
    for name, (into, out) in {"a": (6, 10), "b": (10, 8)}.items():
        bias = net.constant(np.linspace(-1, 9, out, dtype=np.float32))
        x = net.node("Gemm", x, net.floats(out, into, scale=0.3), bias, name=name, transB=1)
        x = net.node("Relu", x, name=f"relu_{name}")
    net.output(net.dense(x, 8, 3, name="c"))
    return net


NETS: dict[str, Callable[[], Net]] = {"blocks": blocks, "head": head, "behind norm": behind_norm, "raised": raised}


def samples_through(graph: Graph, made: Line) -> np.ndarray[Any, Any]:
    name = graph.outputs[0].name
    return np.asarray(joined([out[name] for out in run_batches(Session(graph.model), made.samples, 16, [name])]))


def devices() -> dict[str, Any]:
    """With and without bounds per channel; scales per tensor and per channel; clamps inside layers, outside, and on a
    device that has none with limits of its own."""
    bare = hardware_data("tensorrt")
    bare["fuse"] = []
    bare["ops"] = {op: rows for op, rows in bare["ops"].items() if op != "Clip"}
    return {
        **{name: hardware(name) for name in ("vta", "ort_cpu", "tensorrt", "ascend_acl")},
        "tensorrt, fuses Relu": hardware("tensorrt", fuse=[["Conv", "Relu"], ["Gemm", "Relu"]]),
        "tensorrt, fuses nothing": hardware("tensorrt", fuse=bare["fuse"], ops=bare["ops"]),
    }


@pytest.mark.sliced(36)
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("net", NETS)
def test_steps_one_after_the_other_keep_the_function(net: str, chain: str) -> None:
    told, ran = NETS[net](), 0
    for name, spec in devices().items():
        made = line(told, spec)
        wanted = samples_through(made.graph, made)
        work = work_on(made)
        state = work.start()
        for step, options in CHAINS[chain]:
            try:
                state = STEPS[step].run(work, state, options)
            except NotApplicable:
                continue
            ran += 1
            found = samples_through(state.graph, made)
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4, err_msg=f"{step} on {name}")
            if not spec.channel_bounds:
                assert all(k.channel_bounds is None for k in state.topology.kernels), (step, name)
            work.plan(state)
    if not ran:
        pytest.skip("no step of the chain applies to this net on any device")


def test_a_clamp_is_watched_where_it_stands() -> None:
    made = line(head(), "ort_cpu")
    (link,) = layer_pairs(made.graph, made.topology)[0].values()
    assert link.clamp_output == made.graph.by_name["clamp"].outputs[0] != link.tensor
    seen = work_on(made).extremes(work_on(made).start(), [link], moments=True)
    assert seen[link.clamp_output].maximum.max() == pytest.approx(0.8) and seen[link.tensor].maximum.max() < 0.7


def test_biases_answer_for_integer_weights_with_a_scale_per_channel() -> None:
    """As many input as output channels, one scale for each, and no walk in front: the reader's bias answers for its own
    integer weights, row by row."""
    net = Net(24)
    x = net.node("Relu", net.conv(net.input(None, 3, 8, 8), 3, 6, name="first"), name="clamp")
    net.output(net.conv(x, 6, 6, 3, 3, name="second"))
    made = line(net, "tensorrt")
    work = work_on(made)
    state = STEPS["absorb"].run(work, work.start(), Absorption())
    ((tensor, change),) = state.overrides.channels.items()
    assert work.layer_pairs[0][tensor].consumers == ("second",) and np.any(change.offset)
    node = made.graph.by_name["second"]
    weight = work.plan(state).weights[node.inputs[1]]
    assert weight.scale.shape == (6,)
    expected = made.graph.constant(node.inputs[2]).astype(np.float64)
    for out in range(6):
        own = weight.values[out].astype(np.float64) * float(weight.scale[out])
        expected[out] += sum(own[c].sum() * change.offset[c] for c in range(6))
    np.testing.assert_allclose(state.overrides.biases["second"], expected, rtol=1e-5, atol=1e-6)
    graph, _ = rescale_channels(made.graph, made.topology, state.overrides.channels)
    np.testing.assert_allclose(samples_through(graph, made), samples_through(made.graph, made), rtol=1e-4, atol=1e-4)
