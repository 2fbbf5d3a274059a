"""Einsum as the matrix product that it is: equations of attention and of JAX's dense layers, and what is none."""

from __future__ import annotations

import numpy as np
import pytest

from tests.intake.test_rewrites import checked, ops
from tests.ops.line import Net, line

SIZES = {"b": 3, "q": 5, "k": 7, "h": 2, "d": 4, "t": 5, "m": 6}
ACTIVATIONS = ["bqd,bkd->bqk", "bhqd,bhkd->bhqk", "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "bqd,bdk->bkq"]
CONSTANTS = ["btd,dm->btm", "bd,md->bm", "btd,dhm->bthm", "bthm,hmd->btd", "btd,hdm->bhtm", "bhtm,mhd->btd"]


def net_of(equation: str, weight: bool) -> Net:
    left, right = equation.split("->")[0].split(",")
    net = Net(seed=len(equation))
    x = net.node("Relu", net.input(None, *(SIZES[a] for a in left[1:])), name="front")
    shape = [SIZES[a] for a in right]
    y = net.floats(*shape) if weight else net.node("Abs", net.input(None, *shape[1:], name="other"))
    net.output(net.node("Einsum", x, y, name="product", equation=equation))
    return net


@pytest.mark.parametrize("equation", ACTIVATIONS)
def test_of_two_activations(equation: str) -> None:
    graph = checked(net_of(equation, weight=False))
    assert "Einsum" not in ops(graph) and graph.by_name["product"].op == "MatMul"


@pytest.mark.parametrize("equation", CONSTANTS)
def test_with_a_constant(equation: str) -> None:
    graph = checked(net_of(equation, weight=True))
    assert "Einsum" not in ops(graph)
    made = line(graph)
    assert made.topology.kernel_of["product"].op in ("MatMul", "Gemm")
    assert made.agree(made.plan(8), "qdq").differing == 0


@pytest.mark.parametrize("equation", ["btd,btd->btd", "btd,bd->bt", "btd,dm->bm", "btd,bth->bt"])
def test_what_is_no_matrix_product_stays(equation: str) -> None:
    assert "Einsum" in ops(checked(net_of(equation, weight="m" in equation)))


def test_the_equation_without_a_result_stays() -> None:
    net = Net(seed=1)
    net.output(net.node("Einsum", net.input(None, 4), net.constant(np.ones((4, 3), np.float32)), equation="ij,jk"))
    assert "Einsum" in ops(checked(net))
