"""Weights that the clean-up works without: the same graph comes out, and equal weights become one."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from quantpipe.graph import execute
from quantpipe.graph.io import model_proto
from quantpipe.graph.view import Graph
from quantpipe.intake import untouched
from tests.ops.line import Net, load

ROWS, WIDTH = 300, 72


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untouched, "LEAST_BYTES", 0)
    monkeypatch.setattr(execute, "LEAST_BESIDE", 0)


def encoder(tied: bool = False) -> Net:
    """A table, dense layers with weights that the tools could and could not fold, and the table again as the head."""
    net = Net(seed=3)
    table = net.floats(ROWS, WIDTH)
    x = net.node("Gather", table, net.node("Cast", net.input(None, 7), to=7), name="embed")
    wide = net.rng.standard_normal((WIDTH, 4 * WIDTH)).astype(np.float32) * np.float32(0.1)
    for number in range(2):
        weight = net.constant(wide) if tied else net.floats(WIDTH, 4 * WIDTH, scale=0.1)
        y = net.node("MatMul", x, weight, name=f"up{number}")
        y = net.node("Relu", net.node("Add", y, net.floats(4 * WIDTH)), name=f"relu{number}")
        turned = net.node("Transpose", net.floats(WIDTH, 4 * WIDTH, scale=0.1), perm=[1, 0])
        x = net.node("Add", x, net.node("MatMul", y, turned, name=f"down{number}"), name=f"sum{number}")
    net.output(net.node("MatMul", x, net.node("Transpose", table, perm=[1, 0]), name="head"))
    return net


def described(graph: Graph) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(n.name, n.op, n.outputs) for n in graph.nodes]


def test_the_same_graph_comes_out(everything_is_large: None, monkeypatch: pytest.MonkeyPatch) -> None:
    held = load(encoder())
    put_aside = untouched.untouched(ir.from_proto(encoder().proto()))
    assert len(put_aside) == 2, "of the six weights, two stand in front of a matrix product only"
    monkeypatch.undo()
    whole = load(encoder())
    assert not held.notes and described(held) == described(whole)
    weights = [
        {n.name: graph.constant(n.inputs[1]) for n in graph.nodes if graph.is_constant((*n.inputs, "", "")[1])}
        for graph in (held, whole)
    ]
    assert weights[0].keys() == weights[1].keys() and weights[0].keys() >= {"up0", "up1", "down0", "down1"}
    for name, array in weights[0].items():
        np.testing.assert_array_equal(array, weights[1][name], strict=True)


def test_equal_weights_become_one(everything_is_large: None) -> None:
    graph = load(encoder(tied=True))
    assert graph.by_name["up0"].inputs[1] == graph.by_name["up1"].inputs[1]
    assert load(encoder()).by_name["up0"].inputs[1] != load(encoder()).by_name["up1"].inputs[1]


def test_a_session_gets_large_weights_beside_its_model(everything_is_large: None) -> None:
    model = load(encoder()).model
    data, weights = execute._beside(model, execute.SEPARATE)
    assert isinstance(data, bytes) and weights and len(data) < len(model_proto(model).SerializeToString()) / 2
    x = {i.name or "": np.arange(14, dtype=np.float32).reshape(2, 7) for i in model.graph.inputs}
    wanted = execute.Session(model_proto(model).SerializeToString()).run(x)
    for name, found in execute.Session(model).run(x).items():
        np.testing.assert_array_equal(found, wanted[name])


def test_readers_behind_identities_share_their_weight() -> None:
    """PyTorch's exporter writes an Identity for each further layer of a shared weight: no copies come out."""
    net = Net(seed=3)
    x, weight = net.input(None, WIDTH), net.floats(WIDTH, WIDTH, scale=0.1)
    for number in range(3):
        read = weight if number == 0 else net.node("Identity", weight, name=f"again{number}")
        x = net.node("Relu", net.node("MatMul", x, read, name=f"layer{number}"), name=f"relu{number}")
    net.output(net.node("Identity", net.node("Add", x, net.floats(WIDTH)), name="end"))
    graph = load(net)
    assert [n.inputs[1] for n in graph.nodes if n.op in ("MatMul", "Gemm")] == [weight] * 3
    assert not [n for n in graph.nodes if n.op == "Identity"]


def test_an_identity_of_a_constant_may_be_an_output() -> None:
    net = Net(seed=3)
    weight = net.floats(4, 4)
    net.output(net.node("MatMul", net.input(None, 4), weight, name="product"))
    net.output(net.node("Identity", weight, name="table"))
    assert len(load(net).outputs) == 2
