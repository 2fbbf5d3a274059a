"""Chains of a hard sigmoid and a hard swish as exporters write them, and what is not quite that."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.intake.test_rewrites import checked, number, ops
from tests.ops.line import Net, line


def clip6(net: Net, x: str, offset: float = 3.0) -> str:
    """torch's relu6(x + 3)."""
    moved = net.node("Add", x, number(net, offset))
    return net.node("Clip", moved, number(net, 0.0), number(net, 6.0), output="gate")


def relu_min6(net: Net, x: str) -> str:
    """The same as tf2onnx writes it: Relu, then Min with 6; the constant on the left."""
    return net.node("Min", net.node("Relu", net.node("Add", number(net, 3.0), x)), number(net, 6.0))


def divided(net: Net, x: str) -> str:
    return net.node("Div", clip6(net, x), number(net, 6.0))


def multiplied(net: Net, x: str) -> str:
    return net.node("Mul", number(net, 1 / 6), relu_min6(net, x))


def keras(net: Net, x: str, slope: float = 0.2) -> str:
    """clip(0.2·x + 0.5, 0, 1)."""
    moved = net.node("Add", net.node("Mul", x, number(net, slope)), number(net, 0.5))
    return net.node("Clip", moved, number(net, 0.0), number(net, 1.0))


def front(net: Net) -> str:
    return net.conv(net.input(None, 3, 6, 6), 3, 4, 3, 3)


@pytest.mark.parametrize(("form", "slope"), [(divided, 1 / 6), (multiplied, 1 / 6), (keras, 0.2)])
def test_a_written_out_hard_sigmoid_is_one_op(form: Callable[[Net, str], str], slope: float) -> None:
    net = Net()
    net.output(net.conv(form(net, front(net)), 4, 2, 1, 1))
    graph = checked(net)
    assert ops(graph) == {"Conv": 2, "HardSigmoid": 1}
    found = next(n for n in graph.nodes if n.op == "HardSigmoid")
    np.testing.assert_allclose((found.attr("alpha"), found.attr("beta")), (slope, 0.5), rtol=1e-6)
    made = line(graph)
    assert not made.topology.float_nodes and made.agree(made.plan(), "qdq").differing == 0


def behind_division(net: Net, x: str) -> str:
    return net.node("Mul", x, divided(net, x))


def behind_factor(net: Net, x: str) -> str:
    return net.node("Mul", multiplied(net, x), x)


def before_division(net: Net, x: str) -> str:
    return net.node("Mul", net.node("Mul", relu_min6(net, x), x), number(net, 1 / 6))


def divided_itself(net: Net, x: str) -> str:
    return net.node("Mul", net.node("Div", x, number(net, 6.0)), clip6(net, x))


@pytest.mark.parametrize("form", [behind_division, behind_factor, before_division, divided_itself])
def test_a_written_out_hard_swish_is_one_op(form: Callable[[Net, str], str]) -> None:
    net = Net()
    net.output(net.conv(form(net, front(net)), 4, 2, 1, 1))
    assert ops(checked(net)) == {"Conv": 2, "HardSwish": 1}


def test_a_gate_of_another_tensor_is_a_hard_sigmoid_alone() -> None:
    """Squeeze and excitation: the gate is that of the pooled map."""
    net = Net()
    x = front(net)
    net.output(net.node("Mul", x, divided(net, net.conv(net.node("GlobalAveragePool", x), 4, 4, 1, 1))))
    found = ops(checked(net))
    assert found["HardSigmoid"] == 1 and found["Mul"] == 1 and found["HardSwish"] == found["Clip"] == 0


@pytest.mark.parametrize("fault", ["offset", "divisor", "slope", "read", "output"])
def test_what_is_almost_a_hard_sigmoid_is_left_alone(fault: str) -> None:
    net = Net()
    x = front(net)
    gate = keras(net, x, 0.3) if fault == "slope" else clip6(net, x, 2.0 if fault == "offset" else 3.0)
    y = net.node("Div", gate, number(net, 5.0 if fault == "divisor" else 6.0))
    more = {"read": [net.node("Sin", gate)], "output": [gate]} if fault in ("read", "output") else {}
    net.output(net.conv(y, 4, 2, 1, 1), *more.get(fault, []))
    found = ops(checked(net))
    assert found["HardSigmoid"] == 0 and found["Clip"] == 1


def test_a_swish_whose_product_is_read_elsewhere_is_left_alone() -> None:
    net = Net()
    x = front(net)
    product = net.node("Mul", x, clip6(net, x))
    net.output(net.node("Div", product, number(net, 6.0)), net.node("Sin", product))
    assert ops(checked(net))["HardSwish"] == 0
