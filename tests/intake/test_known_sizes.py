"""Sizes that a model takes from a Shape, although its inputs fix them: constants, and so is what is made of them."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from quantpipe.graph.execute import Session
from tests.ops.line import ArraySamples, Net, load

X = np.random.default_rng(2).standard_normal((4, 5, 8)).astype(np.float32)


def scaled(how: str, port: int | None = 8) -> Net:
    """Return x / sqrt(its last size), as exporters of attentions write it."""
    net = Net()
    x = net.input(None, None, port)
    apart = net.node("Reshape", x, net.constant(np.int64([0, 0, 2, -1])), name="apart")
    if how == "slice":
        bounds = [net.constant(np.int64([n])) for n in (-1, 1 << 60)]
        size = net.node("Slice", net.node("Shape", apart, name="axes"), *bounds, name="size")
    elif how == "start":
        size = net.node(
            "Gather", net.node("Shape", apart, name="axes", start=2), net.constant(np.int64(-1)), name="size"
        )
    else:
        size = net.node("Gather", net.node("Shape", apart, name="axes"), net.constant(np.int64(3)), name="size")
    root = net.node("Sqrt", net.node("Cast", size, name="real", to=1), name="root")
    net.output(net.node("Relu", net.node("Div", apart, root, name="scaled"), name="last"))
    return net


@pytest.mark.parametrize("how", ["slice", "gather", "start"])
def test_a_factor_of_a_fixed_size_is_a_constant(how: str) -> None:
    graph = load(scaled(how), lambda raw: ArraySamples({"x": X}))
    assert not {"Shape", "Sqrt", "Cast", "Div"} & {n.op for n in graph.nodes}, [n.op for n in graph.nodes]
    (wanted,) = ort.InferenceSession(scaled(how).proto().SerializeToString()).run(None, {"x": X})
    np.testing.assert_allclose(next(iter(Session(graph.model).run({"x": X}).values())), wanted, rtol=1e-6)


def test_a_free_size_stays_computed() -> None:
    graph = load(scaled("slice", None), lambda raw: ArraySamples({"x": X}))
    assert "Shape" in {n.op for n in graph.nodes}
    for width in (8, 12):
        x = np.ones((2, 3, width), np.float32)
        (wanted,) = ort.InferenceSession(scaled("slice", None).proto().SerializeToString()).run(None, {"x": x})
        np.testing.assert_allclose(next(iter(Session(graph.model).run({"x": x}).values())), wanted, rtol=1e-6)
