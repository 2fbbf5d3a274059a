"""Hooks of the float graph as torch, and its gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quantpipe.graph.view import Graph, Node
from tests.ops.line import Net, load

torch = pytest.importorskip("torch")

from quantpipe.train.network import FloatNetwork  # noqa: E402
from tests.train.test_network import (  # noqa: E402
    ASSETS,
    CPU,
    Recorder,
    assert_near,
    feeds_of,
    graph_of,
    tensors,
)


@pytest.mark.parametrize("name", ["digits", "digits_vit_masked", "digits_detect"])
def test_hooks_see_each_tensor_once_and_every_operand(name: str) -> None:
    graph = graph_of(ASSETS / f"{name}.onnx")
    recorder = Recorder()
    FloatNetwork.of(graph, CPU).run(tensors(feeds_of(graph)), graph.output_names, recorder)
    assert Counter(recorder.tensors) == Counter([*graph.input_names, *graph.producers])
    operands = [(n.name, port, t) for n in graph.nodes for port, t in enumerate(n.inputs) if t]
    assert recorder.reads == [(n, port) for n, port, t in operands if not graph.is_constant(t)]
    floats = [(n, p) for n, p, t in operands if graph.is_constant(t) and graph.constant(t).dtype.kind == "f"]
    assert floats and recorder.constants == floats
    assert recorder.called == [n.name for n in graph.nodes]


class Changes(Recorder):
    """Hooks that double the values of one kind."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__()
        self.what, self.name = what, name

    def made(self, tensor: str, value: Any) -> Any:
        return 2 * value if (self.what, self.name) == ("made", tensor) else value

    def read(self, node: Node, port: int, value: Any) -> Any:
        return 2 * value if (self.what, self.name) == ("read", f"{node.name}:{port}") else value

    def constant(self, node: Node, port: int, value: Any) -> Any:
        return 2 * value if (self.what, self.name) == ("constant", node.inputs[port]) else value

    def call(self, node: Node, operands: list[Any]) -> Any:
        return operands[0] if (self.what, self.name) == ("call", node.name) else None


def small() -> Graph:
    """out = relu(2·x) + clip(x, -1, 3)"""
    net = Net()
    x = net.input(None, 4)
    doubled = net.node("Mul", x, net.constant(np.float32(2), "two"), name="double")
    limits = net.constant(np.float32(-1), "low"), net.constant(np.float32(3), "high")
    sides = net.node("Relu", doubled, name="relu"), net.node("Clip", x, *limits, name="clip")
    net.output(net.node("Add", *sides, name="sum", output="out"))
    return load(net)


X = np.float32([[-5.0, -0.5, 1.0, 10.0]])


@pytest.mark.parametrize(
    ("what", "name", "expected"),
    [
        ("", "", [-1.0, -0.5, 3.0, 23.0]),
        ("made", "x", [-1.0, -1.0, 6.0, 43.0]),
        ("made", "double_out", [-1.0, -0.5, 5.0, 43.0]),
        ("made", "out", [-2.0, -1.0, 6.0, 46.0]),
        ("read", "clip:0", [-1.0, -1.0, 4.0, 23.0]),
        ("read", "double:0", [-1.0, -0.5, 5.0, 43.0]),
        ("read", "sum:1", [-2.0, -1.0, 4.0, 26.0]),
        ("constant", "two", [-1.0, -0.5, 5.0, 43.0]),
        ("constant", "low", [-2.0, -0.5, 3.0, 23.0]),
        ("constant", "high", [-1.0, -0.5, 3.0, 26.0]),
        ("call", "relu", [-11.0, -1.5, 3.0, 23.0]),
    ],
)
def test_a_hook_changes_what_it_is_called_for(what: str, name: str, expected: list[float]) -> None:
    graph = small()
    assert set(graph.by_name) == {"double", "relu", "clip", "sum"} and graph.is_constant("two")
    found = FloatNetwork.of(graph, CPU).run({"x": torch.tensor(X)}, ["out"], Changes(what, name))["out"]
    assert found[0].tolist() == expected


def test_gradients_reach_what_hooks_put_in() -> None:
    """The gradient of a sum: inputs of the Clip above its limit go to the limit."""

    class Learned(Recorder):
        high = torch.tensor(3.0, requires_grad=True)

        def constant(self, node: Node, port: int, value: Any) -> Any:
            return self.high if node.inputs[port] == "high" else value

    hooks, x = Learned(), torch.tensor(X, requires_grad=True)
    FloatNetwork.of(small(), CPU).run({"x": x}, ["out"], hooks)["out"].sum().backward()
    assert x.grad.tolist() == [[0.0, 1.0, 3.0, 2.0]] and hooks.high.grad == 1.0


def test_a_hook_can_compute_a_node_from_other_operands() -> None:
    """As a convolution that runs with its normalization: another weight, no bias, the table's attributes."""
    graph = graph_of(ASSETS / "digits.onnx")
    network = FloatNetwork.of(graph, CPU)

    class Folded(Recorder):
        def call(self, node: Node, operands: list[Any]) -> Any:
            if node.op != "Conv":
                return None
            self.called.append(node.name)
            data, weight, bias = operands
            return 4 * network.compute(node, [data, weight / 4]) + bias.reshape(-1, 1, 1)

    feeds, hooks = tensors(feeds_of(graph)), Folded()
    found, expected = network.run(feeds, ["logits"], hooks), network.run(feeds, ["logits"])
    assert any(graph.by_name[name].attr("group", 1) > 1 for name in hooks.called)
    assert_near(found, {"logits": expected["logits"].numpy()})


# --- gradients --------------------------------------------------------------------------------------------------------


def _conv(net: Net) -> str:
    x = net.conv(net.input(None, 3, 5, 6), 3, 4, 3, 2, pads=[1, 0, 2, 1], strides=[2, 1])
    return net.node("AveragePool", net.node("Sigmoid", x), kernel_shape=[2, 2], pads=[1, 0, 0, 1])


def _up(net: Net) -> str:
    x = net.node(
        "ConvTranspose", net.input(None, 3, 3, 2), net.floats(3, 2, 3, 3), strides=[2, 2], output_padding=[1, 0]
    )
    sizes = net.constant(np.float32([1, 1, 1.5, 2]))
    return net.node("MaxPool", net.node("Resize", x, "", sizes, mode="linear"), kernel_shape=[3, 2], strides=[2, 2])


def _attention(net: Net) -> str:
    x = net.node("LayerNormalization", net.input(None, 4, 6), net.floats(6), net.floats(6))
    key = net.node("Transpose", net.node("MatMul", x, net.floats(6, 6)), perm=[0, 2, 1])
    rows = net.node("Softmax", net.node("MatMul", x, key), axis=-1)
    return net.node("Elu", net.node("MatMul", rows, x))


def _moves(net: Net) -> str:
    x = net.input(None, 4, 6)
    parts = [net.node("Gather", x, net.constant(np.int64([2, -1, 2])), axis=1)]
    ends = [net.constant(np.int64([n])) for n in (3, -99, 1, -2)]
    parts.append(net.node("Slice", x, *ends))
    parts.append(net.node("Pad", x, net.constant(np.int64([0, 1, 0, 0, 2, 0])), mode="reflect"))
    return net.node("LpNormalization", net.node("Tanh", net.node("Concat", *parts, axis=1)), axis=1)


@pytest.mark.parametrize("build", [_conv, _up, _attention, _moves])
def test_gradients_are_those_of_finite_differences(build: Callable[[Net], str]) -> None:
    net = Net(seed=8)
    net.output(build(net))
    graph = load(net)
    network, name = FloatNetwork.of(graph, CPU), next(iter(graph.input_names))
    shape = (2, *(d for d in graph.inputs[0].shape[1:] if d))
    x = torch.tensor(np.random.default_rng(1).standard_normal(shape), requires_grad=True)
    output = graph.outputs[0].name
    assert network.run({name: x}, [output])[output].dtype is torch.float64
    assert torch.autograd.gradcheck(lambda value: network.run({name: value}, [output])[output], (x,))
