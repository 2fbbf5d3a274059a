"""Plans measured one after the other, each from the last cut before what it changes."""

from __future__ import annotations

from functools import partial

from quantpipe.graph.execute import joined, lifted
from quantpipe.graph.external_weights import is_outside
from quantpipe.graph.view import Graph
from quantpipe.metrics.reference import Found, Reference
from quantpipe.scoring.chain import Chain
from quantpipe.scoring.holdout import HoldoutScorer
from quantpipe.scoring.sections import sections
from quantpipe.scoring.tensor_cache import State, TensorCache
from quantpipe.types import QuantPlan, Samples, Topology


class KeptScorer(HoldoutScorer):
    """Measure plans of graphs by their sections, with the integers at the cuts kept for later plans.

    A section of another graph, such as recovery makes, is the same if all of its numbers are. If its weights are in
    files, it is run as a whole: what a file holds may change.
    """

    def __init__(self, reference: Reference, samples: Samples, memory_mb: int) -> None:
        super().__init__(reference, samples)
        self._first: Graph | None = None
        self._cache = TensorCache(memory_mb << 20)

    def outputs(self, graph: Graph, topology: Topology, plan: QuantPlan) -> Found:
        """Return the outputs of the simulated model over all samples."""
        self._first = self._first or graph
        if graph is not self._first and is_outside(graph.model):
            return super().outputs(graph, topology, plan)
        self.evaluations += 1
        names = self.reference.names
        candidate = Chain(sections(graph, topology, *names), self._cache, None, graphs=True).candidate(plan)
        found = []
        for number, batch in enumerate(self._samples.batches(graph.batch_size)):
            found.append(lifted(candidate.run(number, partial(_given, batch.inputs)), self.reference.selected))
        outputs = {name: joined([part[name] for part in found]) for name in names}
        return outputs if len(names) > 1 else outputs[names[0]]


def _given(inputs: State, number: int) -> State:
    """The samples of the batch that is run."""
    return inputs
