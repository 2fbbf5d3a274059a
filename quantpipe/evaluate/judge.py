"""Plans measured against the float model on some samples, whatever graph they are made for."""

from __future__ import annotations

from quantpipe.evaluate.metrics import kl_divergence
from quantpipe.evaluate.reference import Reference, outputs_of
from quantpipe.graph.view import Graph
from quantpipe.simulate.simulator import Simulator
from quantpipe.types import Outputs, QuantPlan, Samples, Topology


class Judge:
    """Simulated outputs and their KL to the reference's. Sessions are kept for the graph that was measured last.
    `output`: the one that is compared (None: the first)."""

    def __init__(self, reference: Reference, samples: Samples, output: str | None = None) -> None:
        self.reference = reference
        self._samples, self._output = samples, output
        self._graph: Graph | None = None
        self._simulator: Simulator | None = None

    def kl(self, graph: Graph, topology: Topology, plan: QuantPlan) -> float:
        """Lower is better."""
        return self.kl_of(self.outputs(graph, topology, plan))

    def kl_of(self, outputs: Outputs) -> float:
        """Of outputs that `outputs` gave."""
        return kl_divergence(self.reference.outputs, outputs)

    def release(self) -> None:
        """Give up the sessions, each of which holds a copy of the weights."""
        self._graph = self._simulator = None

    def outputs(self, graph: Graph, topology: Topology, plan: QuantPlan) -> Outputs:
        """The output of the simulated model over all samples."""
        if self._simulator is None or self._graph is not graph:
            self._graph, self._simulator = graph, Simulator(graph, topology, sessions=1)
        session, parameters = self._simulator.prepare(plan)
        return outputs_of(session, self._samples, graph.batch_size, parameters, self._output)
