"""Plans of one graph measured one after the other, each from the last cut before what it changes."""

from __future__ import annotations

from functools import partial

from quantpipe.graph.execute import joined, lifted
from quantpipe.graph.view import Graph
from quantpipe.metrics.reference import Found, Reference
from quantpipe.scoring.chain import Chain
from quantpipe.scoring.holdout import HoldoutScorer
from quantpipe.scoring.sections import sections
from quantpipe.scoring.tensor_cache import State, TensorCache
from quantpipe.types import QuantPlan, Samples, Topology


class KeptScorer(HoldoutScorer):
    """Measure plans of a graph by its sections, with the integers at the cuts kept for later plans.

    A plan of another graph, such as recovery makes, is run as a whole: digests of sections know nothing of constants.
    """

    def __init__(self, graph: Graph, reference: Reference, samples: Samples, memory_mb: int) -> None:
        super().__init__(reference, samples)
        self._own, self._cache = graph, TensorCache(memory_mb << 20)

    def outputs(self, graph: Graph, topology: Topology, plan: QuantPlan) -> Found:
        """Return the outputs of the simulated model over all samples."""
        if graph is not self._own:
            return super().outputs(graph, topology, plan)
        self.evaluations += 1
        names = self.reference.names
        candidate = Chain(sections(graph, topology, *names), self._cache, None).candidate(plan)
        found = []
        for number, batch in enumerate(self._samples.batches(graph.batch_size)):
            found.append(lifted(candidate.run(number, partial(_first, batch.inputs)), self.reference.selected))
        outputs = {name: joined([part[name] for part in found]) for name in names}
        return outputs if len(names) > 1 else outputs[names[0]]


def _first(inputs: State, number: int) -> State:
    """The samples of the batch that is run."""
    return inputs
