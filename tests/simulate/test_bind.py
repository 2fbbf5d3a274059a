"""Binding weights to a simulated graph leaves the graph as it was."""

from __future__ import annotations

import numpy as np

from quantpipe.graph.execute import Session
from quantpipe.simulate.simulator import bind
from tests.ops.line import line
from tests.recover.test_recover_channels import blocks


def test_one_lowering_can_be_bound_twice() -> None:
    made = line(blocks(), "vta")
    simulation = made.simulate(made.plan())
    before = [v.name for v in simulation.rendered.model.graph.inputs]
    assert set(simulation.weights) <= set(before)
    batch = next(iter(made.samples.batches(4))).inputs
    found = []
    for _ in range(2):
        model = bind(simulation.rendered.model, simulation.weights)
        assert not {v.name for v in model.graph.inputs} & set(simulation.weights)
        assert [v.name for v in simulation.rendered.model.graph.inputs] == before
        assert not simulation.rendered.model.graph.initializers.keys() & simulation.weights.keys()
        found.append(Session(model).run({**batch, **simulation.scalars}))
    for name, array in found[0].items():
        np.testing.assert_array_equal(array, found[1][name])
