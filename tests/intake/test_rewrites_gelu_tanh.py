"""The tanh form of Gelu as exporters write it, and what is not quite that."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.intake.test_rewrites import checked, number, ops, with_gelu
from tests.ops.line import Net, line

SLOPE, CUBIC = float(np.sqrt(2 / np.pi)), 0.044715


def torchscript(net: Net, x: str) -> str:
    """torch.onnx below opset 20: the cube as two products, constants first, the half last."""
    cube = net.node("Mul", x, net.node("Mul", x, x))
    inner = net.node("Mul", number(net, SLOPE), net.node("Add", x, net.node("Mul", number(net, CUBIC), cube)))
    one = net.node("Add", number(net, 1.0), net.node("Tanh", inner, output="tanh"))
    return net.node("Mul", number(net, 0.5), net.node("Mul", x, one))


def hf_new(net: Net, x: str) -> str:
    """The activation gelu_new of the transformers library (GPT-2), and that of tf2onnx: Pow, constants last."""
    cube = net.node("Mul", net.node("Pow", x, number(net, 3.0)), number(net, CUBIC))
    inner = net.node("Mul", net.node("Add", x, cube), number(net, 0.7978846))
    one = net.node("Add", net.node("Tanh", inner, output="tanh"), number(net, 1.0))
    return net.node("Mul", net.node("Mul", x, number(net, 0.5)), one)


def hf_fast(net: Net, x: str) -> str:
    """The activation gelu_fast: x·0.7978845608·(1 + 0.044715·x·x)."""
    square = net.node("Mul", net.node("Mul", x, number(net, CUBIC)), x)
    inner = net.node("Mul", net.node("Mul", x, number(net, 0.7978845608)), net.node("Add", square, number(net, 1.0)))
    one = net.node("Add", net.node("Tanh", inner, output="tanh"), number(net, 1.0))
    return net.node("Mul", net.node("Mul", x, number(net, 0.5)), one)


def jax(net: Net, x: str) -> str:
    """jax.nn.gelu: x · (0.5 · (1 + tanh(...))), the power with a whole exponent."""
    cube = net.node("Mul", number(net, CUBIC), net.node("Pow", x, net.constant(np.int32(3))))
    inner = net.node("Mul", number(net, SLOPE), net.node("Add", x, cube))
    one = net.node("Add", number(net, 1.0), net.node("Tanh", inner, output="tanh"))
    return net.node("Mul", x, net.node("Mul", number(net, 0.5), one))


def written(form: Callable[[Net, str], str], opset: int = 17) -> Net:
    net = Net(opset=opset)
    x = net.conv(net.input(None, 3, 4, 4), 3, 4, 1, 1)
    net.output(net.conv(form(net, x), 4, 2, 1, 1))
    return net


@pytest.mark.sliced(2)
@pytest.mark.parametrize("form", [torchscript, hf_new, hf_fast, jax])
@pytest.mark.parametrize("opset", [13, 20])
def test_a_written_out_tanh_gelu_is_one_op(form: Callable[[Net, str], str], opset: int) -> None:
    graph = checked(written(form, opset))
    assert ops(graph) == {"Conv": 2, "Gelu": 1}
    assert next(n for n in graph.nodes if n.op == "Gelu").attr("approximate") in ("tanh", b"tanh")


def test_it_runs_as_one_table() -> None:
    made = line(checked(written(torchscript)), with_gelu())
    assert not made.topology.float_nodes
    for form in ("qdq", "qoperator", "integer"):
        assert made.agree(made.plan(), form).differing == 0


@pytest.mark.parametrize("fault", ["slope", "cubic", "square", "another", "half", "one", "read", "output"])
def test_what_is_almost_a_tanh_gelu_is_left_alone(fault: str) -> None:
    net = Net()
    x = net.conv(net.input(None, 3, 4, 4), 3, 4, 1, 1)
    power = net.node("Pow", x, number(net, 2.0 if fault == "square" else 3.0))
    cube = net.node("Mul", power, number(net, 0.05 if fault == "cubic" else CUBIC))
    other = net.node("Sin", x) if fault == "another" else x
    inner = net.node("Mul", net.node("Add", other, cube), number(net, 0.9 if fault == "slope" else SLOPE))
    tanh = net.node("Tanh", inner)
    one = net.node("Add", tanh, number(net, 2.0 if fault == "one" else 1.0))
    y = net.node("Mul", net.node("Mul", x, number(net, 0.25 if fault == "half" else 0.5)), one)
    more = {"read": [net.node("Sin", one)], "output": [tanh]} if fault in ("read", "output") else {}
    net.output(net.conv(y, 4, 2, 1, 1), *more.get(fault, []))
    found = ops(checked(net))
    assert found["Tanh"] == 1 and found["Gelu"] == 0
