"""Layer normalization in the forms that exporters write, and what is not quite that."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.intake.test_rewrites import checked, number, ops
from tests.ops.line import Net

WIDTH, EPSILON = 8, 1e-3


def mean(net: Net, x: str, *, keep: int = 1, axis: int = -1, **names: str) -> str:
    """The axes as an attribute, or as an input where the opset has them there."""
    if net._opset < 18:
        return net.node("ReduceMean", x, axes=[axis], keepdims=keep, **names)
    return net.node("ReduceMean", x, net.constant(np.int64([axis])), keepdims=keep, **names)


def deviation(net: Net, x: str) -> str:
    return net.node("Sub", x, mean(net, x))


def root(net: Net, variance: str) -> str:
    return net.node("Sqrt", net.node("Add", variance, number(net, EPSILON)), output="root")


def two_pass(net: Net, x: str) -> str:
    """mean((x - mean)²), the deviation written once more."""
    d = deviation(net, x)
    return mean(net, net.node("Mul", d, d))


def one_pass(net: Net, x: str, *, keep: int = 1, hold: bool = True, of: str | None = None) -> str:
    """mean(x²) - mean², held at zero."""
    squares = mean(net, net.node("Mul", x, x), keep=keep)
    average = mean(net, of or x, keep=keep)
    less = net.node("Sub", squares, net.node("Mul", average, average), output="variance")
    return net.node("Max", number(net, 0.0), less) if hold else less


def finished(net: Net, y: str, gain: tuple[int, ...] = (WIDTH,)) -> str:
    return net.node("Add", net.node("Mul", y, net.floats(*gain)), net.floats(*gain), name="norm")


def torch_reciprocal(net: Net, x: str) -> str:
    """(x - mean) · torch.rsqrt(variance + ε) in TorchScript exports."""
    return finished(net, net.node("Mul", deviation(net, x), net.node("Reciprocal", root(net, two_pass(net, x)))))


def torch_one_over(net: Net, x: str) -> str:
    """The same as opsets without the op had it."""
    inverse = net.node("Div", number(net, 1.0), root(net, two_pass(net, x)))
    return finished(net, net.node("Mul", inverse, deviation(net, x)))


def torch_power(net: Net, x: str) -> str:
    spread = net.node("Add", number(net, EPSILON), two_pass(net, x))
    return finished(net, net.node("Mul", deviation(net, x), net.node("Pow", spread, number(net, -0.5))))


def torch_gain_first(net: Net, x: str) -> str:
    """Early BERT: gain · (x - mean) / √(variance + ε) + offset."""
    scaled = net.node("Mul", net.floats(WIDTH), deviation(net, x))
    return net.node("Add", net.node("Div", scaled, root(net, two_pass(net, x))), net.floats(WIDTH), name="norm")


def plain(net: Net, x: str) -> str:
    """Without gain and offset, which the layer behind may hold."""
    return net.node("Div", deviation(net, x), root(net, one_pass(net, x, hold=False)), name="norm")


def flax(net: Net, x: str) -> str:
    """flax.linen.LayerNorm: statistics without their axis, which is put back; the factor takes the gain in."""
    column = net.constant(np.int64([0, 0, 1]))
    average = net.node("Reshape", mean(net, x, keep=0), column)
    variance = net.node("Unsqueeze", one_pass(net, x, keep=0), net.constant(np.int64([2])))
    inverse = net.node("Reciprocal", root(net, variance))
    factor = net.node("Mul", inverse, net.floats(1, 1, WIDTH))
    y = net.node("Mul", net.node("Sub", x, average), factor)
    return net.node("Add", y, net.floats(1, 1, WIDTH), name="norm")


def jax_sums(net: Net, x: str) -> str:
    """jnp.mean and jnp.var as lax primitives: sums divided by a number, broadcast with Expand."""

    def average(v: str) -> str:
        total = net.node("ReduceSum", v, net.constant(np.int64([-1])), keepdims=0)
        kept = net.node("Unsqueeze", total, net.constant(np.int64([-1])))
        return net.node("Div", kept, number(net, WIDTH))

    d = net.node("Sub", x, average(x))
    inverse = net.node("Div", number(net, 1.0), root(net, average(net.node("Mul", d, d))))
    wide = net.node("Expand", inverse, net.constant(np.int64([1, 1, WIDTH])))
    return finished(net, net.node("Mul", d, wide), (1, 1, WIDTH))


def keras(net: Net, x: str) -> str:
    """tf.nn.batch_normalization over the last axis: x·factor + (offset - mean·factor)."""
    average = mean(net, x)
    d = net.node("Sub", x, average)
    inverse = net.node("Reciprocal", root(net, mean(net, net.node("Mul", d, d))))
    factor = net.node("Mul", inverse, net.floats(WIDTH))
    shift = net.node("Sub", net.floats(WIDTH), net.node("Mul", average, factor))
    return net.node("Add", net.node("Mul", x, factor), shift, name="norm")


FORMS = (torch_reciprocal, torch_one_over, torch_power, torch_gain_first, plain, flax, jax_sums, keras)


def written(net: Net, form: Callable[[Net, str], str], *more: str) -> Net:
    x = net.node("MatMul", net.input(None, 3, 6), net.floats(6, WIDTH), output="rows")
    net.output(net.node("MatMul", form(net, x), net.floats(WIDTH, 4)), *more)
    return net


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("opset", [13, 18])
def test_a_written_out_layer_normalization_is_one_op(form: Callable[[Net, str], str], opset: int) -> None:
    graph = checked(written(Net(opset=opset), form))
    assert ops(graph) == {"MatMul": 2, "LayerNormalization": 1}
    norm = next(n for n in graph.nodes if n.op == "LayerNormalization")
    np.testing.assert_allclose(norm.attr("epsilon"), EPSILON, rtol=1e-6)


def square_of_another(net: Net, x: str) -> str:
    spread = root(net, one_pass(net, x, hold=False, of=net.node("Sin", x)))
    return finished(net, net.node("Div", deviation(net, x), spread))


def another_axis(net: Net, x: str) -> str:
    other = net.node("Sub", x, mean(net, x, axis=1))
    return finished(net, net.node("Div", other, root(net, two_pass(net, x))))


def another_power(net: Net, x: str) -> str:
    spread = net.node("Add", number(net, EPSILON), two_pass(net, x))
    return finished(net, net.node("Mul", deviation(net, x), net.node("Pow", spread, number(net, -0.25))))


def another_count(net: Net, x: str) -> str:
    """The unbiased variance."""
    d = deviation(net, x)
    total = net.node("ReduceSum", net.node("Mul", d, d), net.constant(np.int64([-1])))
    spread = root(net, net.node("Div", total, number(net, WIDTH - 1)))
    return finished(net, net.node("Div", d, spread))


def root_mean_square(net: Net, x: str) -> str:
    """No mean is taken off: another normalization."""
    return finished(net, net.node("Div", x, root(net, mean(net, net.node("Mul", x, x)))))


def along_another(net: Net, x: str) -> str:
    """Statistics without their axis, met by broadcast along another one: the same numbers in other places."""
    average = mean(net, x, keep=0)
    return finished(net, net.node("Div", net.node("Sub", x, average), root(net, two_pass(net, x))))


@pytest.mark.parametrize(
    "form", [square_of_another, another_axis, another_power, another_count, root_mean_square, along_another]
)
def test_what_is_almost_a_layer_normalization_is_left_alone(form: Callable[[Net, str], str]) -> None:
    net = Net()
    x = net.node("MatMul", net.input(1, WIDTH, 6), net.floats(6, WIDTH))
    net.output(net.node("MatMul", form(net, x), net.floats(WIDTH, 4)))
    assert ops(checked(net))["LayerNormalization"] == 0


@pytest.mark.parametrize("form", [torch_reciprocal, torch_gain_first, flax, keras])
def test_a_root_that_is_an_output_is_left_alone(form: Callable[[Net, str], str]) -> None:
    assert ops(checked(written(Net(), form, "root")))["LayerNormalization"] == 0


def test_a_variance_that_is_read_elsewhere_stays_for_its_reader() -> None:
    found = ops(checked(written(Net(), flax, "variance")))
    assert found["LayerNormalization"] == 1 and found["Sqrt"] == 0 and found["ReduceMean"] == 2
