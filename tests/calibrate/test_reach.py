"""Ranges in front of functions that level off: what lies far out does not stretch them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quantpipe.calibrate.reach import reach_of, within_reach
from quantpipe.types import Range
from tests.ops.line import ArraySamples, Line, Net, line

REACH = 11 * math.log(2.0)


def logits(*readers: str, shown: bool = False) -> Line:
    """Logits with a background far below zero, read by some ops."""
    net = Net(seed=4)
    x = net.node("MatMul", net.input(None, 8), net.floats(8, 6, scale=1.0), name="first")
    x = net.node("Add", x, net.constant(np.array([-90, -60, 0, 1, 2, 0], np.float32)), name="logits")
    moved = net.node("Reshape", x, net.constant(np.array([-1, 2, 3])), name="moved")
    for number, op in enumerate(readers):
        net.output(net.node(op, moved, name=f"read{number}"))
    if shown:
        net.output(moved)
    values = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    return line(net, "tflite_int8", samples=ArraySamples({"x": values}))


def logits_range(made: Line) -> Range:
    """The range of the logits, by the estimator."""
    name = made.graph.by_name["moved"].inputs[0]
    group = next(g for g in made.topology.groups if name in g.tensors)
    return made.strategy().ranges[group.key]


@pytest.mark.parametrize(
    ("readers", "shown", "reach"),
    [
        (["Sigmoid"], False, REACH),
        (["Sigmoid", "Tanh"], False, REACH),
        (["Tanh"], False, REACH / 2),
        (["HardSigmoid"], False, 2.5),
        (["Sigmoid", "Elu"], False, None),
        (["Sigmoid"], True, None),
    ],
)
def test_a_range_ends_where_no_reader_tells_more(readers: list[str], shown: bool, reach: float | None) -> None:
    made = logits(*readers, shown=shown)
    name = made.graph.by_name["moved"].inputs[0]
    group = next(g for g in made.topology.groups if name in g.tensors)
    assert reach_of(made.graph, group) == (None if reach is None else pytest.approx(reach))
    found = logits_range(made)
    assert found.low == pytest.approx(-reach) if reach is not None else found.low < -60


@pytest.mark.parametrize(
    ("found", "reach", "wanted"),
    [
        (Range(-40.0, 3.0), 8.0, Range(-8.0, 3.0)),
        (Range(-4.0, 30.0), 8.0, Range(-4.0, 8.0)),
        (Range(-40.0, 3.0), None, Range(-40.0, 3.0)),
        (Range(9.0, 30.0), 8.0, Range(0.0, 8.0)),
    ],
)
def test_the_part_beyond_is_cut_off(found: Range, reach: float | None, wanted: Range) -> None:
    assert within_reach(found, reach) == wanted


@pytest.mark.parametrize("op", ["Sigmoid", "Tanh"])
def test_what_is_cut_off_is_less_than_a_step(op: str) -> None:
    made = logits(op)
    reach = reach_of(made.graph, next(g for g in made.topology.groups if "moved" in "".join(g.tensors)))
    assert reach is not None
    end = 1 / (1 + math.exp(-reach)) if op == "Sigmoid" else math.tanh(reach)
    step = 2.0 ** (-8 if op == "Sigmoid" else -7)
    assert 1.0 - end < step / 7
