"""Plans measured against the float model on some samples, whatever graph they are made for."""

from __future__ import annotations

from quantpipe.graph.view import Graph
from quantpipe.metrics.reference import Found, Reference, loss_of, outputs_of
from quantpipe.simulate.simulator import Simulator
from quantpipe.types import QuantPlan, Samples, Topology


class HoldoutScorer:
    """Measure simulated outputs and what they lose against the reference's.

    Sessions are kept for the graph that was measured last. `evaluations`: how many plans were run.
    """

    def __init__(self, reference: Reference, samples: Samples) -> None:
        self.reference = reference
        self.evaluations = 0
        self._samples = samples
        self._graph: Graph | None = None
        self._simulator: Simulator | None = None

    def loss(self, graph: Graph, topology: Topology, plan: QuantPlan) -> float:
        """Lower is better."""
        return self.loss_of(self.outputs(graph, topology, plan))

    def loss_of(self, outputs: Found) -> float:
        """Return the loss of outputs that the method `outputs` gave."""
        return loss_of(self.reference, outputs)

    def release(self) -> None:
        """Give up the sessions, each of which holds a copy of the weights."""
        self._graph = self._simulator = None

    def outputs(self, graph: Graph, topology: Topology, plan: QuantPlan) -> Found:
        """Return the outputs of the simulated model over all samples."""
        self.evaluations += 1
        if self._simulator is None or self._graph is not graph:
            self._graph, self._simulator = graph, Simulator(graph, topology, sessions=1)
        session, parameters = self._simulator.prepare(plan)
        known = self.reference
        return outputs_of(
            session, self._samples, graph.batch_size, parameters, names=known.names, selected=known.selected
        )
