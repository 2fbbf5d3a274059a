"""The parts of an evaluation that look inside the models, and what an evaluation is given.

Elements and tensors of the simulated and the realized model are compared, and latencies measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from numpy.typing import NDArray

from quantpipe.data.subset import First
from quantpipe.evaluate.agreement import Agreement
from quantpipe.evaluate.beyond_ranges import Clipped, clipped_in
from quantpipe.evaluate.bounded_agreement import bounded_agreement, uncompared
from quantpipe.evaluate.compared_models import SimulatedModel
from quantpipe.evaluate.layers import layer_report, samples_for
from quantpipe.evaluate.overflow import overflow_report
from quantpipe.evaluate.plugin_op import check_plug_ins
from quantpipe.evaluate.progress import EvaluationProgress
from quantpipe.graph.execute import release_memory
from quantpipe.graph.external_weights import is_outside
from quantpipe.graph.view import Graph
from quantpipe.lowering import Rendered
from quantpipe.metrics.latency import latency
from quantpipe.metrics.reference import Compared, Reference
from quantpipe.simulate.simulator import Simulation
from quantpipe.types import LatencyPart, LayerRow, OverflowRow, QuantPlan, Samples, Topology


@dataclass(frozen=True)
class Sizes:
    """State how much of the evaluate split the parts of an evaluation use.

    These are samples compared `agreement` by element and `layer` by tensor, samples the `realized` model runs on (None:
    all), runs and seconds of the latency. `other_sessions`: integers are compared also in sessions that do not decide.
    """

    agreement: int
    layer: int
    realized: int | None
    latency_runs: int
    latency_seconds: float
    other_sessions: bool = True


@dataclass(frozen=True, eq=False)
class EvaluatedModel:
    """Hold one quantized model: the clean float model, topology, plan, and realized model."""

    graph: Graph
    topology: Topology
    plan: QuantPlan
    realized: Rendered


@dataclass(frozen=True, eq=False)
class EvaluationSamples:
    """Hold the samples of an evaluation, and the compared outputs.

    `judged`: Samples that were used for no fit and no choice. `chosen_by`: The samples that the strategy was chosen by,
    to compare its losses. `compared`: The compared outputs, and how; the metrics are about the output it names. `seen`:
    The float model's reference on `chosen_by`, if it is known.
    """

    judged: Samples
    chosen_by: Samples
    compared: Compared
    seen: Reference | None = None


def compared_inside(
    model: EvaluatedModel,
    simulation: Simulation,
    data: EvaluationSamples,
    sizes: Sizes,
    *,
    course: EvaluationProgress,
    runs_here: bool,
) -> dict[str, Any]:
    """Return the parts of an evaluation that look inside the models, and the latency."""
    graph, topology, plan, realized = model.graph, model.topology, model.plan, model.realized
    samples, chosen_by = data.judged, data.chosen_by

    def first(count: int) -> Samples:
        return First(samples, whole_batches(graph, count))

    def agree(some: Samples) -> Agreement:
        check_plug_ins(graph, topology, plan, simulation, realized=realized, samples=some)
        simulated = SimulatedModel(graph, topology, plan, simulation, realized=realized)
        return bounded_agreement(simulated, realized, some, course, others=sizes.other_sessions)

    compared = first(sizes.agreement)
    agreement = course.result("agreement", agree, compared, Agreement.from_dict)
    for sentence in uncompared(agreement, len(compared)):
        course.left_out(sentence)
    release_memory()
    few = first(samples_for(graph, plan, sizes.layer))
    layers = course.result(
        "errors per tensor", lambda some: layer_report(graph, plan, simulation, some), few, list[LayerRow]
    )
    release_memory()
    beyond = {
        split: course.result(
            f"values beyond ranges, {split} samples",
            lambda part: clipped_in(graph, plan, part),
            First(some, whole_batches(graph, len(few))),
            lambda kept: {name: Clipped(**one) for name, one in kept.items()},
        )
        for split, some in (("evaluate", samples), ("search", chosen_by))
    }
    release_memory()
    overflow = course.result(
        "overflows",
        lambda some: overflow_report(graph, topology, plan, simulation, samples=some),
        samples,
        list[OverflowRow],
    )
    release_memory()
    shares = {entry["tensor"]: entry["share"] for entry in overflow}
    layers = [{**entry, "overflow": shares.get(entry["tensor"], 0.0)} for entry in layers]

    def timed(some: Samples) -> LatencyPart:
        one = next(iter(some.batches(1))).inputs
        if not _takes(graph, one) or is_outside(graph.model):  # mapped weights would be timed, not the user's sessions
            return {}
        found = latency(graph.timed, realized.model, one, sizes.latency_runs, max_seconds=sizes.latency_seconds)
        found["of"] = "device" if runs_here else "reference"
        return found

    times = course.result("latency", timed, First(samples, 1), lambda found: cast("LatencyPart", found))
    return {
        "agreement": agreement,
        "layers": layers,
        "layer_samples": len(few),
        "overflow": overflow,
        "latency": times,
        "beyond": beyond,
    }


def whole_batches(graph: Graph, count: int) -> int:
    """Return `count`, or a little more where the model's batch is fixed."""
    size = graph.fixed_batch or 1
    return -(-count // size) * size


def _takes(graph: Graph, feeds: Mapping[str, NDArray[Any]]) -> bool:
    """Return whether the model runs on these feeds, or has a larger batch of its own."""
    return all(i.shape[:1] in ((), (None,), feeds[i.name].shape[:1]) for i in graph.inputs)
