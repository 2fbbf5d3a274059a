"""What is to be planned: a network as a device runs it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from quantpipe.graph.view import Graph
from quantpipe.plan.overrides import NO_OVERRIDES, Overrides
from quantpipe.plan.planner import Planner
from quantpipe.types import HardwareSpec, QuantPlan, Schema, Strategy, Topology


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph, what of it runs in integers, and the device and schema that its numbers are for.

    Strategies are solutions of it: each gives one plan. Integer weights are made once and shared between plans.
    """

    graph: Graph
    topology: Topology
    spec: HardwareSpec
    schema: Schema

    @cached_property
    def planner(self) -> Planner:
        """Return the planner of this network."""
        return Planner(self.graph, self.topology, self.spec, self.schema)

    def plan(self, strategy: Strategy, overrides: Overrides = NO_OVERRIDES) -> QuantPlan:
        """Return all numbers of a strategy. Raises HardwareError where the device cannot express it."""
        return self.planner.plan(strategy, overrides)
