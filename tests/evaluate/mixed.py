"""Spaces with every kind of choice, on small nets: what the tests of mixed points share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from quantpipe.annotate.conditions import KINDS, AnnotateOptions
from quantpipe.annotate.variants import Topologies
from quantpipe.calibrate.estimators import MaxRange
from quantpipe.calibrate.measure import measure
from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.evaluate.agreement import Agreement, compare
from quantpipe.graph.execute import Session
from quantpipe.lowering import render
from quantpipe.metrics.reference import reference_of
from quantpipe.plan import Planner
from quantpipe.realize import BACKENDS
from quantpipe.scoring.candidate import CandidateRecipe, EvaluatorKind
from quantpipe.simulate.simulator import simulate
from quantpipe.types import ChoiceSpace, OptionValue, Point, QuantPlan, Strategy, Topology
from tests.ops.line import Line, Net


@dataclass(frozen=True, eq=False)
class Mixed:
    """A line whose points decide on the topology as well."""

    made: Line
    kinds: tuple[str, ...] = KINDS
    min_bits: int = 4

    @cached_property
    def variants(self) -> Topologies:
        options = AnnotateOptions(choices=self.kinds, min_bits=self.min_bits)
        return Topologies(self.made.graph, self.made.spec, self.made.schema, options)

    @cached_property
    def space(self) -> ChoiceSpace:
        return self.variants.space()

    @cached_property
    def table(self) -> ThresholdTable:
        made = self.made
        profile = measure(made.graph, self.variants.measured, made.samples, 1024)
        return ThresholdTable(
            made.graph,
            self.variants.base,
            made.schema,
            profile,
            estimator=MaxRange(),
            weight_method="max_range",
            variants=self.variants,
        )

    @cached_property
    def planner(self) -> Planner:
        return Planner(self.made.graph, self.variants.base, self.made.spec, self.made.schema)

    def point(self, **chosen: OptionValue) -> Point:
        """The start, but for some options; `float_conv` names `float:conv`."""
        named = {k.replace("_", ":", 1): v for k, v in chosen.items()}
        assert set(named) <= {c.key for c in self.space}, named
        return self.space.encode(self.space.decode(self.space.start) | named)

    def points(self, count: int, seed: int = 0) -> list[Point]:
        """Random points: of structural choices few, some or all."""
        rng = np.random.default_rng(seed)
        found = []
        for _ in range(count):
            share = rng.choice([0.15, 0.5, 0.9])
            point = [int(rng.integers(len(c.options))) for c in self.space]
            structural = {c.key for c in self.variants.choices}
            found.append(
                tuple(
                    i if c.key not in structural or rng.random() < share else 0
                    for c, i in zip(self.space, point, strict=True)
                )
            )
        return found

    def strategy(self, point: Point) -> Strategy:
        return self.table.strategy(self.space.decode(point))

    def planned(self, point: Point) -> tuple[Topology, QuantPlan]:
        strategy = self.strategy(point)
        topology = self.variants.at(strategy.structure)
        return topology, self.planner.on(topology).plan(strategy)

    def agreement(self, point: Point, backend: str | None = None) -> Agreement:
        made, (topology, plan) = self.made, self.planned(point)
        realized = render(made.graph, topology, plan, BACKENDS[backend or made.spec.realize]())
        return compare(
            made.graph, topology, plan, simulate(made.graph, topology, plan), realized=realized, samples=made.samples
        )

    def recipe(self, cost: str = "bits", kind: EvaluatorKind = EvaluatorKind.SIMULATED, **more: Any) -> CandidateRecipe:
        made = self.made
        reference = reference_of(Session(made.graph.model), made.samples, made.graph.batch_size)
        given = (made.graph, self.variants.base, made.spec, made.schema, self.space, self.table, made.samples)
        return CandidateRecipe(*given, reference, "kl", cost, made.spec.realize, kind, branches=self.variants, **more)


def layers() -> Net:
    """x [3, 8, 8] -> conv 3x3 to 5 channels [5, 6, 6] -> relu -> flat [180] -> dense to 4."""
    net = Net()
    x = net.node("Relu", net.conv(net.input(None, 3, 8, 8), 3, 5, 3, 3, name="conv"), name="relu")
    net.output(net.dense(net.node("Flatten", x, name="flat"), 180, 4, name="dense"))
    return net


def residual() -> Net:
    """Two additions with clamps behind one of them, a product, a pool, a dense layer."""
    net = Net(1)
    x = net.input(None, 3, 12, 12)
    a = net.node("Relu", net.conv(x, 3, 8, 3, 3, pads=[1, 1, 1, 1], name="front"))
    b = net.node("Relu", net.conv(a, 8, 8, 3, 3, pads=[1, 1, 1, 1], group=8, name="deep"))
    a = net.node("Relu", net.node("Add", net.conv(b, 8, 8, 1, 1, name="point"), a, name="first"))
    c = net.conv(a, 8, 8, 1, 1, name="arm")
    a = net.node("Add", a, c, name="second")
    a = net.node("Mul", a, a, name="square")
    a = net.node("MaxPool", a, kernel_shape=[2, 2], strides=[2, 2])
    a = net.node("Flatten", net.node("GlobalAveragePool", a, name="mean"))
    net.output(net.dense(a, 8, 5, name="head"))
    return net
