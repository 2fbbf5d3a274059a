"""Nodes that keep a float function away from its pole stay in float, so that no NaN comes of integers."""

from __future__ import annotations

import numpy as np
import pytest

from quantpipe.evaluate.counting import Counter
from quantpipe.pipeline.finish import _undefined
from tests.ops.line import ArraySamples, Line, Net, line

EPSILON = 1e-6


def guarded(kind: str) -> Net:
    """A dense layer after a logarithm or a division, whose input only a small constant keeps from 0."""
    net = Net(3)
    x = net.node("Relu", net.dense(net.input(None, 12), 12, 16, name="first"), name="relu")
    small = net.constant(np.asarray(EPSILON, np.float32))
    y = net.node("Clip" if kind == "clip" else "Add", x, small, name="guard")
    if kind == "moved":
        y = net.node("Reshape", y, net.constant(np.asarray([0, 4, 4], np.int64)), name="shape")
        y = net.node("Reshape", y, net.constant(np.asarray([0, 16], np.int64)), name="back")
    if kind == "root":
        y = net.node("Div", x, net.node("Sqrt", y, name="root"), name="ratio")
    else:
        y = net.node("Log", y, name="log")
        y = net.node("Sub", y, net.node("ReduceMin", y, axes=[1], name="least"), name="off")
    net.output(net.dense(y, 16, 6, name="second"))
    return net


def made(kind: str, device: str) -> Line:
    return line(guarded(kind), device, samples=ArraySamples({"x": draw()}))


def draw() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((24, 12)).astype(np.float32)


@pytest.mark.parametrize("device", ["vta", "ort_cpu"])
@pytest.mark.parametrize("kind", ["add", "clip", "moved", "root"])
def test_a_guard_of_a_float_function_stays_in_float(kind: str, device: str) -> None:
    found = made(kind, device)
    assert "guard" in found.topology.float_nodes
    plan = found.plan()
    outputs = found.realize(plan, "integer").model
    assert outputs is not None and found.agree(plan, "integer").differing == 0


def test_the_reason_names_the_pole() -> None:
    assert "away from 0" in made("add", "vta").topology.float_nodes["guard"].text


def test_where_the_function_is_a_table_the_sum_is_in_integers() -> None:
    assert "guard" not in made("add", "esp32p4").topology.float_nodes


def test_a_sum_that_no_such_function_reads_is_in_integers() -> None:
    net = Net(3)
    x = net.node("Relu", net.dense(net.input(None, 12), 12, 16, name="first"), name="relu")
    x = net.node("Add", x, net.constant(np.asarray(0.5, np.float32)), name="guard")
    net.output(net.dense(x, 16, 6, name="second"))
    assert "guard" not in line(net, "vta").topology.float_nodes


def test_no_rounding_explains_a_number_in_the_place_of_nan() -> None:
    count = Counter()
    count.integers("t", np.asarray([1.0, np.nan]), np.asarray([1, 3]), excused=True)
    assert (count.differing, count.undefined) == (1, "t")
    other = Counter()
    other.reals("r", np.asarray([np.nan, 1.0], np.float32), np.asarray([np.nan, 1.5], np.float32), excused=True)
    assert (other.differing, other.undefined) == (0, None)


def test_the_error_names_the_remedy() -> None:
    assert "annotate.float_nodes" in _undefined("t") and "NaN in the tensor t" in _undefined("t")
    assert _undefined(None) == ""
