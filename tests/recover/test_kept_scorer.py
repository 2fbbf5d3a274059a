"""Recovery's states are measured from the last cut before what they change, with the result of a whole run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from quantpipe.graph.execute import Session
from quantpipe.graph.structure import nodes_digest
from quantpipe.metrics.reference import reference_of
from quantpipe.plan import ChannelChange, Problem
from quantpipe.recover import rescale_channels
from quantpipe.recover.rescale.channel_regions import layer_pairs
from quantpipe.scoring.chain import Chain
from quantpipe.scoring.holdout import HoldoutScorer
from quantpipe.scoring.kept import KeptScorer
from quantpipe.scoring.sections import sections
from quantpipe.scoring.tensor_cache import TensorCache
from tests.ops.line import Net, line
from tests.recover.test_recover_walk import digits


def test_a_state_is_measured_from_the_first_section_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = digits("vta")
    samples, strategy, plain = made.samples, made.strategy(), made.plan()
    reference = reference_of(Session(made.graph.model), samples, made.graph.batch_size)
    kept, ran = KeptScorer(reference, samples, 64), list[str]()
    run = Session.run

    def watched(self: Session, *rest: Any, **options: Any) -> Any:
        ran.append("run")
        return run(self, *rest, **options)

    monkeypatch.setattr("quantpipe.graph.execute.Session.run", watched)
    parts = len(sections(made.graph, made.topology, *reference.names))
    batches = len(list(samples.batches(made.graph.batch_size)))
    assert parts > 2
    found = kept.outputs(made.graph, made.topology, plain)
    assert len(ran) == parts * batches
    seen: list[int] = []
    pairs = list(layer_pairs(made.graph, made.topology)[0].items())
    for tensor, channels in ((tensor, link.channels) for tensor, link in (pairs[0], pairs[-1])):
        change = {tensor: ChannelChange(np.geomspace(0.5, 2.0, channels), np.zeros(channels))}
        graph, topology = rescale_channels(made.graph, made.topology, change)
        plan = Problem(graph, topology, made.spec, made.schema).plan(strategy)
        whole = HoldoutScorer(reference, samples).outputs(graph, topology, plan)
        ran.clear()
        other = kept.outputs(graph, topology, plan)
        seen.append(len(ran) // batches)
        assert not isinstance(other, Mapping) and not isinstance(whole, Mapping) and not isinstance(found, Mapping)
        assert np.array_equal(np.asarray(other), np.asarray(whole))
        assert not np.array_equal(np.asarray(other), np.asarray(found))
    assert seen[0] == parts and 0 < seen[1] < parts
    ran.clear()
    again = kept.outputs(made.graph, made.topology, plain)
    assert np.array_equal(np.asarray(again), np.asarray(found)) and len(ran) < parts * batches


def _with_slope(alpha: float) -> Any:
    net = Net()
    x = net.conv(net.input(None, 3, 4, 4), 3, 4, 3, 3, name="first")
    x = net.node("LeakyRelu", x, name="slope", alpha=alpha)
    net.output(net.conv(x, 4, 2, 1, 1, name="last"))
    return line(net, "vta")


def test_a_float_node_with_another_attribute_is_run_again() -> None:
    """The plans of both graphs hold the same numbers: only the node in float differs."""

    def with_elu(alpha: float) -> Any:
        net = Net(seed=3)
        x = net.node("Elu", net.conv(net.input(None, 3, 8, 8), 3, 4, 3, 3, name="first"), name="elu", alpha=alpha)
        for number in range(3):
            x = net.conv(x, 4, 4, 1, 1, name=f"conv{number}")
        net.output(x)
        return line(net, "vta")

    one, other = with_elu(1.0), with_elu(0.1)
    plans = [Problem(m.graph, m.topology, m.spec, m.schema).plan(one.strategy()) for m in (one, other)]
    reference = reference_of(Session(one.graph.model), one.samples, one.graph.batch_size)
    assert len(sections(one.graph, one.topology, *reference.names)) > 1
    kept = KeptScorer(reference, one.samples, 64)
    first, second = (kept.outputs(m.graph, m.topology, plan) for m, plan in zip((one, other), plans, strict=True))
    whole = HoldoutScorer(reference, one.samples).outputs(other.graph, other.topology, plans[1])
    assert np.array_equal(np.asarray(second), np.asarray(whole))
    assert not np.array_equal(np.asarray(second), np.asarray(first))


def test_other_constants_and_attributes_have_another_digest() -> None:
    one, other = _with_slope(0.1), _with_slope(0.2)
    same = nodes_digest(one.graph, one.graph.nodes)
    assert same == nodes_digest(one.graph, one.graph.nodes) != nodes_digest(other.graph, other.graph.nodes)
    weight = one.topology.kernel_of["first"].weight
    model = ir.from_proto(ir.to_proto(one.graph.model))
    value = model.graph.initializers[weight]
    assert value.const_value is not None
    value.const_value = ir.tensor(value.const_value.numpy() * 2, name=weight)
    changed = replace(one.graph, model=model)
    assert nodes_digest(changed, one.graph.nodes) != same
    assert nodes_digest(changed, one.graph.nodes, {weight}) == nodes_digest(one.graph, one.graph.nodes, {weight})


def test_keys_of_several_graphs_depend_on_what_no_plan_holds() -> None:
    """The key of a section follows from a bias constant of its graph, too, unless all plans are of one graph."""
    made = digits("vta")
    bias = made.topology.kernels[0].bias or ""
    model = ir.from_proto(ir.to_proto(made.graph.model))
    value = model.graph.initializers[bias]
    assert value.const_value is not None
    value.const_value = ir.tensor(value.const_value.numpy() + 1, name=bias)
    other, plan, names = replace(made.graph, model=model), made.plan(), [o.name for o in made.graph.outputs]
    for graphs, differ in ((True, True), (False, False)):
        keys = [
            Chain(sections(graph, made.topology, *names), TensorCache(0), None, graphs=graphs).candidate(plan).keys
            for graph in (made.graph, other)
        ]
        assert (keys[0] != keys[1]) is differ
