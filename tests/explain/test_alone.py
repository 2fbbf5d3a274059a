"""The error of one number alone, against NumPy and onnxruntime without any of the program's sessions."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from quantpipe.graph.switches import with_switches
from quantpipe.types import DType, Quantizer
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
