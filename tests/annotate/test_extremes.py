"""Extremes of a tensor at its scale, and ops of few bits that keep a whole model at few bits."""

from __future__ import annotations

import numpy as np
import pytest

from quantpipe.annotate.bits import held_back
from tests.ops.line import ArraySamples, Line, Net, line


def heavy(count: int = 24) -> ArraySamples:
    """Samples with rare large values, which a clipping range leaves out."""
    found = np.random.default_rng(0).standard_normal((count, 4, 12, 12))
    return ArraySamples({"x": (np.sign(found) * np.abs(found) ** 1.8).astype(np.float32)})


def net(op: str) -> Net:
    made = Net(3, opset=18)
    front = made.conv(made.input(None, 4, 12, 12), 4, 6, 3, 3, pads=[1, 1, 1, 1], name="front")
    made.output(made.dense(made.node(op, front, made.constant(np.asarray([2, 3])), keepdims=0, name="end"), 6, 5))
    return made


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_the_range_holds_what_a_reduction_selects(op: str) -> None:
    """Few elements are beyond 99 % of a tensor, and all results of ReduceMax may be."""
    made = line(net(op), "esp32p4", samples=heavy())
    (group,) = [g for g in made.topology.groups if made.graph.by_name["end"].outputs[0] in g.tensors]
    assert set(group.sources) == {made.graph.by_name[name].outputs[0] for name in ("front", "end")}
    assert set(group.sources) <= set(made.topology.measured)


def table(op: str) -> Line:
    made = Net(2)
    x = made.node(op, made.dense(made.input(None, 8), 8, 8, name="first"), name="table")
    made.output(made.dense(x, 8, 4, name="last"))
    return line(made, "esp32p4")


def test_ops_of_few_bits_are_named_where_they_keep_all_tensors_there() -> None:
    made = table("Sigmoid")
    said = held_back(made.graph, made.topology, made.spec)
    assert said is not None and "runs Sigmoid in 8 bits alone" in said and "annotate.float_ops=[Sigmoid]" in said
    assert not made.topology.raisable
    cured = line(made.graph, "esp32p4", float_ops=("Sigmoid",))
    assert cured.topology.raisable and held_back(cured.graph, cured.topology, cured.spec) is None
    free = table("Relu")
    assert free.topology.raisable and held_back(free.graph, free.topology, free.spec) is None
    eight = line(made.graph, "vta")
    assert held_back(eight.graph, eight.topology, eight.spec) is None
