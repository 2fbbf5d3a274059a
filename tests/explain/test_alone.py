"""The error of one number alone, against NumPy and onnxruntime without any of the program's sessions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from quantpipe.explain import sensitivity as alone
from quantpipe.explain.sensitivity import AloneMeasure, QuantizedParts, Wanted, by_cost
from quantpipe.explain.stretches import States, stretches
from quantpipe.graph.switches import with_switches
from quantpipe.graph.view import Graph
from quantpipe.metrics.reference import Compared
from quantpipe.types import DType, Quantizer, Samples
from tests.ops.line import Net, line


def quantizer(tensor: str, scale: float, zero: int) -> Quantizer:
    return Quantizer(tensor, np.asarray(scale, np.float32), zero, DType.UINT8, 8, 0, 255)


@pytest.mark.parametrize(("clip", "rounds"), [(False, False), (True, False), (False, True), (True, True)])
def test_a_switch_changes_one_tensor_and_nothing_else(clip: bool, rounds: bool) -> None:
    net = Net()
    x = net.input(None, 3, 6, 6)
    inner = net.node("Tanh", net.conv(x, 3, 4, 3, 3))
    net.output(net.conv(inner, 4, 2, 1, 1))
    graph = line(net, "ort_cpu").graph
    tensor = next(n.outputs[0] for n in graph.nodes if n.op == "Tanh")
    last = next(n for n in graph.nodes if tensor in n.inputs)
    how = {tensor: quantizer(tensor, 0.004, 60), graph.inputs[0].name: quantizer("x", 0.1, 128)}
    made = with_switches(graph.model, how, [last.inputs[1]])
    before = {n.name for n in graph.model.graph}
    feed = np.random.default_rng(0).normal(size=(2, 3, 6, 6)).astype(np.float32)
    feeds = {graph.inputs[0].name: feed} | {n: np.asarray(False) for n in (*made.clips.values(), *made.rounds.values())}
    feeds |= {made.clips[tensor]: np.asarray(clip), made.rounds[tensor]: np.asarray(rounds)}
    found = ort.InferenceSession(ir.to_proto(made.model).SerializeToString()).run(None, feeds)[0]

    exposed = ir.to_proto(graph.model)
    exposed.graph.output.add(name=tensor)
    value = ort.InferenceSession(exposed.SerializeToString()).run([tensor], {graph.inputs[0].name: feed})[0]
    step = np.float32(0.004)
    held = np.clip(value, -60 * step, 195 * step) if clip else value
    held = np.rint(held / step) * step if rounds else held
    weight, bias = (graph.constant(name) for name in last.inputs[1:3])
    expected = np.einsum("nchw,oc->nohw", held, weight[:, :, 0, 0]) + bias[None, :, None, None]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert before == {n.name for n in graph.model.graph}  # the model itself is as it was


def test_errors_alone_are_those_of_whole_runs() -> None:
    """Behind a cut the rest of the model runs from kept tensors: each loss is that of a run of the whole model."""
    graph, numbers, samples = planned()
    cut, whole = (AloneMeasure(graph, numbers, samples, compared=Compared()) for _ in range(2))
    assert len(cut._parts) > 3
    whole._parts = stretches(graph, whole.reference.names, 0)
    assert len(whole._parts) == 1
    whole._states, whole._place = States(graph, whole._parts, whole._states.at(0)), dict.fromkeys(whole._place, 0)
    wanted = [Wanted(name) for name in (*cut.tensors, *cut.constants)]
    kinds = {one.kind for one in numbers.constants.values()}
    assert kinds == {"weight", "bias"}
    found = cut.measure(wanted)
    for one, here, there in zip(wanted, found, whole.measure(wanted), strict=True):
        assert here.loss == pytest.approx(there.loss, rel=1e-3, abs=1e-9), one.name
    assert cut.passes < 0.75 * whole.passes
    weights = [a.loss for a, one in zip(found, wanted, strict=True) if one.name in numbers.constants]
    assert len(set(weights)) == len(weights) and max(weights) > 1e-6  # each is another error


def test_a_heavy_model_is_screened_on_a_part_of_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of their own give the same losses; what costs most is measured on all samples, the rest on a quarter."""
    graph, numbers, samples = planned()
    graph = replace(graph)
    graph.__dict__["batch_size"] = 2  # of 12 samples, so that there is something to leave out
    light = AloneMeasure(graph, numbers, samples, compared=Compared())
    wanted = [Wanted(name) for name in (*light.tensors, *light.constants)]
    expected = dict(zip([one.name for one in wanted], light.measure(wanted), strict=True))
    monkeypatch.setattr(alone, "HEAVY", 0)
    heavy = AloneMeasure(graph, numbers, samples, compared=Compared())
    for one, cost in zip(wanted, heavy.measure(wanted), strict=True):
        assert cost.loss == pytest.approx(expected[one.name].loss, rel=1e-3, abs=1e-9), one.name
    before = heavy.passes
    found = heavy.first(wanted, 3, lambda done, total, note: None)
    assert heavy.passes - before < 0.6 * before
    order = by_cost(found)
    assert [found[name].samples for name in order] == [12] * 3 + [2] * (len(order) - 3)
    assert all(found[name].loss == pytest.approx(expected[name].loss, rel=1e-3) for name in order[:3])


def planned() -> tuple[Graph, QuantizedParts, Samples]:
    """A net of six convolutions with a shortcut, everything in few bits, and images."""
    net = Net()
    x = net.node("Relu", net.conv(net.input(None, 3, 16, 16), 3, 8, 3, 3))
    for _ in range(4):
        x = net.node("Relu", net.conv(x, 8, 8, 3, 3, pads=[1, 1, 1, 1]))
    x = net.node("Add", x, net.conv(x, 8, 8, 1, 1))
    net.output(net.dense(net.node("Flatten", net.node("GlobalAveragePool", x)), 8, 5))
    made = line(net, "ort_cpu")
    return made.graph, QuantizedParts.of(made.graph, made.topology, made.plan(5)), made.samples


def test_a_constant_can_be_exchanged_for_one_run() -> None:
    net = Net()
    net.output(net.conv(net.input(None, 3, 6, 6), 3, 4, 1, 1))
    graph = line(net, "ort_cpu").graph
    conv = graph.nodes[0]
    made = with_switches(graph.model, {}, [conv.inputs[1]])
    session = ort.InferenceSession(ir.to_proto(made.model).SerializeToString())
    feed = {graph.inputs[0].name: np.ones((1, 3, 6, 6), np.float32)}
    weight = graph.constant(conv.inputs[1])
    (own,), (other,) = session.run(None, feed), session.run(None, {**feed, conv.inputs[1]: np.zeros_like(weight)})
    bias = graph.constant(conv.inputs[2])[None, :, None, None]
    np.testing.assert_allclose(other, np.broadcast_to(bias, other.shape))
    sums = weight.sum((1, 2, 3))[None, :, None, None]
    np.testing.assert_allclose(own - other, np.broadcast_to(sums, own.shape), atol=1e-5)
