"""What one point of the choice space is worth: plan it, simulate it, compare its outputs, count its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quantpipe.annotate.choices import bits_of
from quantpipe.calibrate.table import ThresholdTable
from quantpipe.evaluate.reference import Reference, output_metrics, outputs_of
from quantpipe.graph.view import Graph
from quantpipe.hardware.cost import COSTS
from quantpipe.plan import Planner
from quantpipe.simulate.simulator import Simulator
from quantpipe.types import ChoiceSpace, HardwareSpec, Point, Samples, Score, Topology


class CandidateMeasure:
    """Measures points on the search split. `metric` is accuracy, kl or mse; `cost` a key of COSTS."""

    def __init__(
        self,
        graph: Graph,
        topology: Topology,
        spec: HardwareSpec,
        space: ChoiceSpace,
        table: ThresholdTable,
        planner: Planner,
        samples: Samples,
        reference: Reference,
        metric: str,
        cost: str,
    ) -> None:
        self._graph, self._topology, self._spec, self._space = graph, topology, spec, space
        self._table, self._planner, self._samples, self._reference = table, planner, samples, reference
        self._metric, self._cost = metric, COSTS[cost]
        self._simulator = Simulator(graph, topology)

    def cost(self, point: Point) -> float:
        """The cost alone; runs nothing."""
        bits = bits_of(self._topology, self._space.decode(point))
        return self._cost(self._topology, self._graph, self._spec, bits)

    def __call__(self, points: Sequence[Point]) -> list[Score]:
        return [self._score(point) for point in points]

    def _score(self, point: Point) -> Score:
        plan = self._planner.plan(self._table.strategy(self._space.decode(point)))
        session, parameters = self._simulator.prepare(plan)
        outputs = outputs_of(session, self._samples, self._graph.batch_size, parameters)
        metrics = output_metrics(self._reference, outputs)
        value = objective_value(self._metric, metrics)
        return Score(value, self.cost(point), tuple(metrics.items()))


def objective_value(metric: str, metrics: Mapping[str, float]) -> float:
    """What a search maximizes: top1, -kl or -mse (NaN for accuracy without labels)."""
    return metrics.get("top1", float("nan")) if metric == "accuracy" else -metrics[metric]
