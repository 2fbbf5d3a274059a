"""Masks of minus infinity as exporters write them, and infinities that are no mask."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from quantpipe.graph.execute import Session
from quantpipe.graph.view import Graph
from tests.ops.line import ArraySamples, Net, load

RNG = np.random.default_rng(5)
TRIANGLE = np.triu(np.full((6, 6), -np.inf, np.float32), 1)


def infinite(graph: Graph) -> set[str]:
    """Constants that hold infinities."""
    return {n for n in graph.constant_names() if np.isinf(np.asarray(graph.constant(n), np.float64)).any()}


def attention(how: str, end: str = "Softmax") -> tuple[Net, ArraySamples]:
    """A layer, a mask on its results, and what is made of them."""
    net = Net()
    x = net.input(None, 6, 6)
    scores = net.node("MatMul", x, net.floats(6, 6))
    inputs = {"x": RNG.standard_normal((8, 6, 6)).astype(np.float32)}
    if how == "causal":
        masked = net.node("Add", scores, net.constant(TRIANGLE), name="apply")
    elif how == "where":
        keep = net.node("Greater", net.input(None, 1, 6, name="keep"), net.constant(np.float32(0.5)))
        masked = net.node("Where", keep, scores, net.constant(np.float32(-np.inf)), name="apply")
        inputs["keep"] = np.where(np.arange(6) < 4, 1.0, 0.0).astype(np.float32)[None, None].repeat(8, 0)
    else:  # two masks that are added before they are applied
        both = net.node("Add", net.node("Transpose", net.constant(TRIANGLE.T.copy())), net.constant(TRIANGLE))
        masked = net.node("Add", scores, net.node("Unsqueeze", both, net.constant(np.int64([0]))), name="apply")
    net.output(net.node("MatMul", net.node(end, masked, axis=-1), net.floats(6, 3)) if end == "Softmax" else masked)
    return net, ArraySamples(inputs)


@pytest.mark.parametrize("how", ["causal", "where", "two"])
def test_the_function_is_the_same_and_every_tensor_finite(how: str) -> None:
    net, samples = attention(how)
    graph = load(net, lambda raw: samples)
    assert not infinite(graph)
    feeds = next(iter(samples.batches(8))).inputs
    wanted = ort.InferenceSession(net.proto().SerializeToString()).run(None, dict(feeds))
    found = Session(graph.model).run(feeds)
    for expected, value in zip(wanted, found.values(), strict=True):
        np.testing.assert_array_equal(value, expected)
        assert np.isfinite(value).all()


def test_an_infinity_that_leaves_the_model_stays() -> None:
    net, samples = attention("causal", end="none")
    assert infinite(load(net, lambda raw: samples))


def test_an_infinity_that_something_else_reads_stays() -> None:
    net = Net()
    x = net.input(None, 6, 6)
    masked = net.node("Add", x, net.constant(TRIANGLE))
    net.output(net.node("Softmax", masked, axis=-1), net.node("Cast", net.node("IsInf", masked), to=1))
    graph = load(net)
    assert infinite(graph)
