"""The matrix form of an op: rows times matrix is what onnxruntime computes, and `weight` undoes `matrix`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quantpipe.graph.execute import Session
from quantpipe.graph.view import Graph
from quantpipe.oprules import rule_of
from quantpipe.oprules.matrix import MatrixForm
from tests.ops.line import Net, load, normal_samples

Array = np.ndarray[Any, Any]


def parts(net: Net) -> tuple[Graph, Any, MatrixForm, Array]:
    """The graph, its node with weights, the node's form and its weights."""
    graph = load(net)
    (node,) = (n for n in graph.nodes if n.op in ("Conv", "ConvTranspose", "Gemm", "MatMul"))
    rule = rule_of(node)
    assert rule is not None and rule.matrix is not None
    return graph, node, rule.matrix, graph.constant(node.inputs[1])


def check(net: Net, channels: int) -> None:
    """All rows times the matrix are all places of onnxruntime's output, each once; a few rows are some of them."""
    graph, node, form, weight = parts(net)
    feeds = normal_samples(graph, 3).inputs
    x = next(iter(feeds.values()))
    (out,) = Session(graph.model).run(feeds).values()
    places = np.moveaxis(out, channels, -1).reshape(-1, out.shape[channels])
    matrix = form.matrix(node, weight)
    for count in (10**6, 5):
        picked = form.pick(node, graph, x.shape, count, rng=np.random.default_rng(0))
        rows = picked.read(x)
        np.testing.assert_array_equal(picked.read(2 * x), 2 * rows)  # both tensors are read at the same place
        beyond = rows == 0  # what a window reads beside the data
        np.testing.assert_array_equal(picked.read(x + 7, 7), np.where(beyond, 7, rows + 7))
        number = rows.shape[2]
        assert number == min(count, len(places))
        found = np.einsum("gkn,gok->ngo", rows.astype(np.float64), matrix).reshape(number, -1)
        np.testing.assert_allclose(picked.read_output(out).transpose(2, 0, 1).reshape(number, -1), found, atol=1e-4)
        far = np.abs(found[:, None] - places).max(axis=2)
        assert far.min(axis=1).max() < 1e-4
        hits = far.argmin(axis=1)
        hits = hits[places[hits].any(axis=1)]  # where a transposed stride leaves a gap, places are all the same
        assert len(set(hits)) == len(hits) >= number / 3
    np.testing.assert_array_equal(form.weight(node, matrix, weight.shape), weight)


CONVS: dict[str, tuple[int, int, tuple[int, ...], dict[str, Any]]] = {
    "plain": (4, 6, (3, 3), {}),
    "not square": (4, 6, (3, 2), {"pads": [1, 0, 1, 1]}),
    "groups": (4, 6, (3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    "depthwise": (4, 4, (3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    "depthwise, two outputs per channel": (4, 8, (3, 3), {"group": 4}),
    "strides": (4, 6, (3, 3), {"strides": [2, 1], "pads": [1, 1, 1, 1]}),
    "asymmetric pads": (4, 6, (3, 3), {"strides": [2, 2], "pads": [0, 2, 1, 0]}),
    "dilations": (4, 6, (3, 2), {"dilations": [2, 3], "pads": [2, 1, 2, 2]}),
    "same upper": (4, 6, (3, 4), {"auto_pad": "SAME_UPPER", "strides": [2, 1]}),
    "same lower": (4, 6, (3, 4), {"auto_pad": "SAME_LOWER", "strides": [2, 1]}),
    "same, stride beyond kernel": (4, 6, (1, 1), {"auto_pad": "SAME_UPPER", "strides": [3, 2]}),
    "valid": (4, 6, (3, 3), {"auto_pad": "VALID"}),
    "one axis": (4, 6, (3,), {"pads": [2, 0], "strides": [2]}),
    "one axis, groups": (4, 6, (3,), {"group": 2, "dilations": [2]}),
}


@pytest.mark.parametrize("case", CONVS)
def test_convolutions(case: str) -> None:
    into, out, kernel, attrs = CONVS[case]
    net = Net()
    net.output(net.conv(net.input(None, into, *(9, 8)[: len(kernel)]), into, out, *kernel, bias=False, **attrs))
    check(net, 1)


TRANSPOSED: dict[str, tuple[int, int, tuple[int, ...], dict[str, Any]]] = {
    "plain": (4, 6, (3, 3), {}),
    "strides": (4, 6, (4, 3), {"strides": [2, 3], "pads": [1, 0, 1, 2]}),
    "stride beyond kernel": (4, 6, (2, 1), {"strides": [3, 2]}),
    "output padding": (4, 6, (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 0]}),
    "dilations": (4, 6, (3, 2), {"dilations": [2, 3], "strides": [2, 1], "pads": [2, 1, 0, 2]}),
    "groups": (4, 6, (3, 3), {"group": 2, "strides": [2, 1], "pads": [1, 1, 1, 1]}),
    "depthwise": (4, 4, (4, 4), {"group": 4, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "output shape": (4, 6, (3, 3), {"strides": [2, 2], "output_shape": [18, 15]}),
    "same upper": (4, 6, (3, 4), {"auto_pad": "SAME_UPPER", "strides": [2, 1]}),
    "same lower": (4, 6, (3, 4), {"auto_pad": "SAME_LOWER", "strides": [2, 1]}),
    "valid": (4, 6, (3, 3), {"auto_pad": "VALID", "strides": [2, 2]}),
    "one axis": (4, 6, (4,), {"pads": [1, 1], "strides": [2]}),
}


@pytest.mark.parametrize("case", TRANSPOSED)
def test_transposed_convolutions(case: str) -> None:
    into, out, kernel, attrs = TRANSPOSED[case]
    net = Net()
    weight = net.floats(into, out // attrs.get("group", 1), *kernel)
    x = net.input(None, into, *(9, 8)[: len(kernel)])
    net.output(net.node("ConvTranspose", x, weight, kernel_shape=list(kernel), **attrs))
    check(net, 1)


@pytest.mark.parametrize("trans", [0, 1])
def test_gemm(trans: int) -> None:
    net = Net()
    net.output(net.dense(net.input(None, 5), 5, 7, bias=False, trans=trans))
    check(net, 1)


@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 5)])
def test_matmul_of_any_rank(shape: tuple[int, ...]) -> None:
    net = Net()
    net.output(net.node("MatMul", net.input(None, *shape), net.floats(5, 7)))
    check(net, -1)
