"""Nodes of repeated blocks with the same place are one move."""

from __future__ import annotations

import numpy as np
import pytest

from quantpipe.scoring.precision import PrecisionMove, moves_of, named
from tests.ops.line import Net, load


def blocks(count: int) -> Net:
    """`count` blocks of a dense layer with a residual addition, and one addition of a constant before each layer."""
    net = Net()
    x = net.input(None, 8)
    for number in range(count):
        shifted = net.node("Add", x, net.constant(np.float32([0.5] * 8)), name=f"shift{number}")
        made = net.node("Tanh", net.dense(shifted, 8, 8, name=f"dense{number}"), name=f"tanh{number}")
        x = net.node("Add", shifted, made, name=f"residual{number}")
    net.output(net.dense(x, 8, 3, name="head"))
    return net


@pytest.mark.parametrize("count", [4, 7])
def test_roles_are_those_of_the_blocks(count: int) -> None:
    graph = load(blocks(count))
    moves = moves_of(graph, frozenset(graph.by_name))
    inner = {move.nodes for move in moves}
    assert sorted(name for nodes in inner for name in nodes) == sorted(graph.by_name), "each node is in one role"
    assert any({f"shift{n}" for n in range(2, count - 1)} <= set(nodes) for nodes in inner)
    assert not any(("residual1" in nodes) and ("shift1" in nodes) for nodes in inner), "additions of two kinds"
    assert not any(("head" in nodes) and ("dense1" in nodes) for nodes in inner), "weights of two shapes"


def test_the_share_of_the_multiplications_adds_up() -> None:
    moves = moves_of(load(blocks(3)), frozenset(["dense0", "dense1", "dense2", "head", "tanh1"]))
    assert sum(move.share for move in moves) == pytest.approx(1.0)
    assert [move.heavy for move in moves if "tanh1" in move.nodes] == [False]


def test_many_roles_are_taken_together() -> None:
    net = Net()
    x = net.input(None, 8)
    for number in range(24):  # every layer has weights of its own shape, so no two have the same surroundings
        x = net.node("Tanh", net.dense(x, 8 + number, 9 + number, name=f"dense{number}"), name=f"tanh{number}")
    net.output(x)
    graph = load(net)
    moves = moves_of(graph, frozenset(graph.by_name))
    assert {tuple(sorted({graph.by_name[n].op for n in move.nodes})) for move in moves} == {("Gemm",), ("Tanh",)}
    assert len(moves) == 2


def test_halves_and_names() -> None:
    move = PrecisionMove(("a", "b", "c"), "Add", 0.3)
    first, second = move.halves()
    assert first.nodes == ("a",) and second.nodes == ("b", "c") and second.share == pytest.approx(0.2)
    assert not first.halves()
    assert named(move) == "3 x Add: a to c" and named(first) == "Add a"
