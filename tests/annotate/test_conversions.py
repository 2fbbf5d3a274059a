"""Conversions moved through ops that work on both types: against all ways to place them, and in any node order."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quantpipe.annotate import conditions
from quantpipe.annotate.conditions import AnnotateOptions, decide
from quantpipe.check.compatibility import check
from quantpipe.check.islands import conversions, rescales
from quantpipe.graph.io import model_proto
from quantpipe.graph.view import Graph
from quantpipe.oprules import Family, rule_of
from tests.annotate.test_order import shuffled
from tests.ops.line import Net, hardware, line, load


def count(graph: Graph, integer: Mapping[str, bool]) -> int:
    """Tensors that some reader wants in another form than they are made in."""
    found = 0
    for tensor in [i.name for i in graph.inputs] + [t for n in graph.nodes for t in n.outputs]:
        maker = graph.producers.get(tensor)
        made = maker is not None and integer[maker.name]
        readers = [integer[r.name] for r, _ in graph.consumers.get(tensor, ())]
        readers += [False] if tensor in graph.output_names else []
        found += any(r is not made for r in readers)
    return found


def least(graph: Graph, fixed: Mapping[str, bool], free: list[str]) -> int:
    """The fewest conversions over all 2^n sides of the free nodes."""
    return min(
        count(graph, {**fixed, **dict(zip(free, sides, strict=True))})
        for sides in itertools.product((False, True), repeat=len(free))
    )


def both_ways() -> Net:
    """A float tensor read by an integer Conv, and by another one through Transpose and MaxPool."""
    net = Net(seed=2)
    x = net.node("Erf", net.input(None, 4, 6, 6), name="front")
    moved = net.node("MaxPool", net.node("Transpose", x, perm=[0, 1, 3, 2]), kernel_shape=[2, 2], name="pool")
    net.output(net.conv(x, 4, 2, 1, 1), net.conv(moved, 4, 2, 1, 1))
    return net


def test_a_tensor_that_two_branches_store_is_quantized_once() -> None:
    made = line(both_ways())
    assert conversions(made.graph, made.topology) == (2, 1)
    assert made.topology.kernel_of["pool"] and "front" in made.topology.float_nodes
    for form in ("qdq", "qoperator", "integer"):
        model = made.realize(made.plan(), form).model
        assert sum(n.op_type == "QuantizeLinear" and n.inputs[0].name == "front_out" for n in model.graph) == 1
        found = made.agree(made.plan(), form)
        assert found.differing == 0


def test_a_tensor_that_two_float_branches_read_is_dequantized_once() -> None:
    net = Net(seed=3)
    x = net.conv(net.input(None, 4, 6, 6), 4, 4, 1, 1)
    moved = net.node("Transpose", x, perm=[0, 2, 3, 1], name="turn")
    net.output(net.node("Erf", x), net.node("Erf", moved))
    made = line(net)
    assert "fewer tensors" in made.topology.float_nodes["turn"].text
    assert conversions(made.graph, made.topology) == (1, 1)
    assert made.agree(made.plan(), "qdq").differing == 0


def test_a_clamp_does_not_change_sides() -> None:
    """A Relu on the wider stored range would lose a bit: Conv and Relu each get their own scale."""
    net = Net(seed=4)
    x = net.node("Erf", net.input(None, 4, 6, 6))
    net.output(net.conv(x, 4, 2, 1, 1), net.conv(net.node("Relu", x, name="relu"), 4, 2, 1, 1))
    assert "relu" in line(net).topology.float_nodes


def test_no_value_is_quantized_right_behind_its_dequantization() -> None:
    made = line(both_ways())
    for form in ("qoperator", "integer"):
        model = made.realize(made.plan(), form).model
        makers = {v.name: n.op_type for n in model.graph for v in n.outputs}
        assert not [n for n in model.graph if n.op_type == "QuantizeLinear"
                    and makers.get(n.inputs[0].name or "") == "DequantizeLinear"]  # fmt: skip


def test_two_readers_share_one_rescale() -> None:
    """Both concatenations are pinned to the same scale, and the tensor between them to another one."""
    net = Net(seed=5)
    x, y = net.input(None, 2, 4, 4, name="x"), net.input(None, 2, 4, 4, name="y")
    front = net.conv(x, 2, 2, 1, 1, name="front")
    net.output(
        net.conv(net.node("Concat", front, y, axis=1, name="a"), 4, 2, 1, 1),
        net.conv(net.node("Concat", y, front, axis=1, name="b"), 4, 2, 1, 1),
    )
    pin = {"kind": "uniform", "scale": 0.05, "zero_point": 120, "dtype": "uint8"}
    own = {"kind": "uniform", "scale": 0.02, "zero_point": 100, "dtype": "uint8"}
    made = line(net, constraints={"a_out": pin, "b_out": pin, "front_out": own})
    assert rescales(made.topology) == 2
    model = made.realize(made.plan(), "integer").model
    behind = [n for n in model.graph if n.op_type == "DequantizeLinear" and n.inputs[0].name == "front_out_q"]
    assert len(behind) == 1
    assert made.agree(made.plan(), "integer").differing == 0
    assert check(made.graph, made.topology, made.spec, made.schema).rescales == 2


@st.composite
def dags(draw: st.DrawFn) -> Net:
    """Some layers of integer-only, float-only and moving nodes, each reading any tensor made before."""
    net = Net(seed=draw(st.integers(0, 1 << 16)))
    made = [net.input(None, 4, 4, 4)]
    read: set[str] = set()
    for _ in range(draw(st.integers(3, 9))):
        x = made[draw(st.integers(max(0, len(made) - 4), len(made) - 1))]
        read.add(x)
        kind = draw(st.sampled_from(["conv", "erf", "turn", "turn", "pool", "pool"]))
        if kind == "conv":
            made.append(net.conv(x, 4, 4, 1, 1))
        elif kind == "erf":
            made.append(net.node("Erf", x))
        elif kind == "turn":
            made.append(net.node("Transpose", x, perm=[0, 1, 3, 2]))
        else:
            made.append(net.node("MaxPool", x, kernel_shape=[1, 1]))
    net.output(*[t for t in made[1:] if t not in read])
    return net


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(net=dags(), seed=st.integers(0, 99))
@pytest.mark.grid
def test_no_way_to_place_them_has_fewer(net: Net, seed: int) -> None:
    graph = load(net)
    found = decide(graph, hardware("ort_cpu"), AnnotateOptions())
    integer = {n.name: n.name in found.integer for n in graph.nodes}
    free = [n.name for n in graph.nodes if (r := rule_of(n)) is not None and r.family is Family.MOVE]
    assert count(graph, integer) == least(graph, integer, free)
    again = load(shuffled(model_proto(graph.model), np.random.default_rng(seed)))
    other = decide(again, hardware("ort_cpu"), AnnotateOptions())
    assert set(other.integer) == set(found.integer) and other.reasons == found.reasons


@pytest.mark.parametrize("spec", ["ort_cpu", "vta", "hago_sample"])
def test_without_the_cut_nothing_is_better(spec: str, monkeypatch: Any) -> None:
    graph = load(both_ways())
    after = sum(conversions(graph, line(graph, spec).topology))
    monkeypatch.setattr(conditions, "fewest_conversions", lambda *given: {})
    assert sum(conversions(graph, line(graph, spec).topology)) >= after


def test_the_cut_is_asked_for_with_places_that_every_scipy_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before SciPy 1.15, maximum_flow ends in a traceback for indices of 64 bits."""
    import scipy.sparse.csgraph as csgraph

    seen, own = [], csgraph.maximum_flow

    def flow(graph: Any, source: int, sink: int) -> Any:
        seen.append({graph.indices.dtype, graph.indptr.dtype, graph.data.dtype})
        return own(graph, source, sink)

    monkeypatch.setattr(csgraph, "maximum_flow", flow)
    assert line(both_ways()).topology.float_nodes
    assert seen and all(kinds == {np.dtype(np.int32)} for kinds in seen)
