"""Root mean square normalization in the forms that exporters of language models write, and what is not quite that."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.intake.test_rewrites import checked, number, ops
from tests.intake.test_rewrites_layer_norm import EPSILON, WIDTH, mean, root, two_pass
from tests.ops.line import Net


def squares(net: Net, x: str, axis: int = -1) -> str:
    return mean(net, net.node("Pow", x, number(net, 2.0)), axis=axis)


def gained(net: Net, y: str) -> str:
    return net.node("Mul", net.floats(WIDTH), y, name="norm")


def torch_dynamo(net: Net, x: str) -> str:
    """x · torch.rsqrt(x.pow(2).mean(-1) + ε), the gain in front."""
    return gained(net, net.node("Mul", x, net.node("Reciprocal", root(net, squares(net, x)))))


def torch_script(net: Net, x: str) -> str:
    return gained(net, net.node("Mul", x, net.node("Div", number(net, 1.0), root(net, squares(net, x)))))


def divided(net: Net, x: str) -> str:
    return gained(net, net.node("Div", x, root(net, mean(net, net.node("Mul", x, x)))))


def power(net: Net, x: str) -> str:
    inverse = net.node("Pow", net.node("Add", squares(net, x), number(net, EPSILON)), number(net, -0.5))
    return gained(net, net.node("Mul", inverse, x))


def gain_first(net: Net, x: str) -> str:
    """As JAX writes x · (rsqrt(…) · gain)."""
    inverse = net.node("Mul", net.node("Reciprocal", root(net, squares(net, x))), net.floats(WIDTH))
    return net.node("Mul", x, inverse, name="norm")


def without_gain(net: Net, x: str) -> str:
    return net.node("Div", x, root(net, squares(net, x)), name="norm")


def cast_epsilon(net: Net, x: str) -> str:
    """As jax2onnx writes flax: ε in another type, cast like x."""
    epsilon = net.node("CastLike", net.constant(np.float64(EPSILON)), x)
    added = net.node("Add", mean(net, net.node("Mul", x, x)), epsilon)
    return gained(net, net.node("Div", x, net.node("Sqrt", added)))


def net_of(form: Callable[[Net, str], str], opset: int = 17) -> Net:
    net = Net(opset=opset)
    x = net.node("MatMul", net.input(1, 4, 6), net.floats(6, WIDTH))
    net.output(net.node("MatMul", form(net, x), net.floats(WIDTH, 4)))
    return net


@pytest.mark.parametrize("form", [torch_dynamo, torch_script, divided, power, gain_first, cast_epsilon, without_gain])
def test_a_written_out_normalization_is_one_op(form: Callable[[Net, str], str]) -> None:
    graph = checked(net_of(form))
    assert ops(graph) == {"MatMul": 2, "RMSNormalization": 1}
    norm = next(n for n in graph.nodes if n.op == "RMSNormalization")
    assert norm.name == "norm"
    np.testing.assert_allclose(norm.attr("epsilon"), EPSILON, rtol=1e-6)


def another_axis(net: Net, x: str) -> str:
    return gained(net, net.node("Div", x, root(net, squares(net, x, axis=1))))


def of_another(net: Net, x: str) -> str:
    return gained(net, net.node("Div", net.node("Sin", x), root(net, squares(net, x))))


def another_power(net: Net, x: str) -> str:
    return gained(net, net.node("Div", x, root(net, mean(net, net.node("Pow", x, number(net, 4.0))))))


def a_layer_norm(net: Net, x: str) -> str:
    deviation = net.node("Sub", x, mean(net, x))
    return gained(net, net.node("Div", deviation, root(net, two_pass(net, x))))


@pytest.mark.parametrize("form", [another_axis, of_another, another_power, a_layer_norm])
def test_what_is_almost_that_is_left_alone(form: Callable[[Net, str], str]) -> None:
    assert ops(checked(net_of(form)))["RMSNormalization"] == 0
