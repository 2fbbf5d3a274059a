"""The evaluate stage: float, simulated and realized model side by side, on samples that nothing was chosen by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, cast

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.data.recurrent_state import StatefulSamples
from quantpipe.data.subset import First, underlying
from quantpipe.evaluate.agreement import Agreement, float_warning
from quantpipe.evaluate.beyond_ranges import Clipped
from quantpipe.evaluate.decoded import continued, decoded
from quantpipe.evaluate.default_session import in_default_session
from quantpipe.evaluate.detected import Judge, box_warnings
from quantpipe.evaluate.generalization import generalization, parted_warning
from quantpipe.evaluate.in_steps import steps_and_prefill, steps_warning
from quantpipe.evaluate.inside_models import EvaluatedModel, EvaluationSamples, Sizes, compared_inside, whole_batches
from quantpipe.evaluate.kernels_in_steps import kernels_in_steps
from quantpipe.evaluate.lossy import loss_warnings, map_warnings, shape_warnings
from quantpipe.evaluate.nearness import OutputFigures, figures_of_output, figures_of_outputs, is_accurate
from quantpipe.evaluate.progress import EvaluationProgress
from quantpipe.evaluate.sample_groups import JudgedGroups, SampleFacts, facts_of, judged_groups
from quantpipe.graph.execute import Session, concurrency, joined, lifted, release_memory
from quantpipe.graph.external_weights import is_outside
from quantpipe.graph.session_options import carried
from quantpipe.graph.view import Graph
from quantpipe.intake.rewrites.whole_numbers import whole_number_convolutions
from quantpipe.metrics.kinds import watched_outputs
from quantpipe.metrics.outputs import summary, top1
from quantpipe.metrics.per_sample import per_sample
from quantpipe.metrics.reference import Reference, checked_reference, first_samples, rows_of
from quantpipe.metrics.sample_figures import CountedAnswers
from quantpipe.oprules.cache_paths import caches_of
from quantpipe.oprules.parts import parts_of
from quantpipe.simulate.simulator import Simulation, bind, simulate
from quantpipe.types import (
    Batch,
    DetectionsPart,
    GeneralizationPart,
    LatencyPart,
    LayerRow,
    Metrics,
    ModelMetrics,
    NextTokensPart,
    OutputRow,
    Outputs,
    OverflowRow,
    Samples,
    StepsPart,
    objects_of,
)


def free_running(session: Session, samples: Samples, reference: Reference) -> ModelMetrics | None:
    """Return top1, kl and sqnr_db of a model with states of its own, against the float model with its own.

    What quantization does to a state adds up here, as it does on the device. The result is {} where the samples carry
    no state.
    """
    carried = underlying(samples)
    if not isinstance(carried, StatefulSamples):
        return None
    found = [np.asarray(out[reference.output]) for out in islice(carried.free_run(session.run), len(samples))]
    return summary(reference.outputs, joined(found), reference.labels)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Hold the numbers of the report that come from running the three models.

    `layer_samples`: the number of samples of `layers`. `realized_samples`: the number of samples of the realized
    model's metrics, the first ones. `alike`: the simulated model's metrics on the same. `outputs`: the accuracy of each
    output of the realized model (`nearness`). `lossy`: messages about inaccurate outputs. `accurate`: the output that
    labels show to be as good. `per_sample`: the realized model's results for each sample. `detections`: the layout of a
    detector's boxes.
    """

    metrics: Metrics
    agreement: Agreement
    layers: Sequence[LayerRow] = field(repr=False)
    layer_samples: int = 0
    latency: LatencyPart = field(default_factory=lambda: LatencyPart())
    samples: int = 0
    free_running: ModelMetrics | None = None
    steps: StepsPart | None = None
    next_tokens: NextTokensPart | None = None
    generalization: GeneralizationPart | None = None
    overflow: Sequence[OverflowRow] = ()
    realized_samples: int = 0
    alike: ModelMetrics | None = None
    outputs: Sequence[OutputRow] = ()
    lossy: Sequence[str] = ()
    accurate: str | None = None
    per_sample: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)
    beyond: Mapping[str, Mapping[str, Clipped]] = field(default_factory=dict, repr=False)
    groups: JudgedGroups = field(default_factory=JudgedGroups, repr=False)
    detections: DetectionsPart | None = None

    @property
    def hidden(self) -> list[str]:
        """Return what averages hide, in sentences that come before all other warnings."""
        return list(self.groups.warnings)

    @property
    def warnings(self) -> list[str]:
        """Return doubts about the numbers, in sentences."""
        carried = parted_warning(self.generalization) if self.generalization is not None else None
        elsewhere = float_warning(self.agreement, self.alike or {}, self.metrics["realized"])
        apart = steps_warning(self.steps)
        return [said for said in (carried, elsewhere, apart, *self.lossy, *self.agreement.warnings) if said]


FACTS = "facts of the samples"
"""The place of `facts_of` among the float model's outputs, a name that no output has."""

FLOAT_MODEL = "float model"
"""The phase that is one float pass over the samples."""

PHASES = 11
"""Of an evaluation: five runs of models over a split, two comparisons, values beyond ranges on two splits, overflows
and the latency. One more where the
model has several outputs."""


def evaluate(
    model: EvaluatedModel,
    data: EvaluationSamples,
    *,
    sizes: Sizes,
    metric: str,
    course: EvaluationProgress | None = None,
    warn_sqnr_db: float | None = None,
    runs_here: bool = False,
) -> Evaluation:
    """Run float, simulated and realized model on held-out samples, and return the numbers of the report.

    The simulated model also runs on the samples of the search, to compare its losses. `course` shows progress and
    continues an interrupted evaluation. Outputs with an SQNR below `warn_sqnr_db` dB cause a warning (None: no
    warning). With `runs_here`, a file that asks for session options is measured in a default session, too.
    """
    graph, topology, plan = model.graph, model.topology, model.plan
    course = course or EvaluationProgress()
    course.phases = PHASES - (data.seen is not None) + (len(graph.outputs) > 1)
    course.phases += runs_here and bool(carried(model.realized.model))
    simulation = simulate(graph, topology, plan)
    # What it needs is given back before tensors inside are compared: the outputs of large models take much.
    known = _of_outputs(model, simulation, data, sizes, course=course, by=(metric, warn_sqnr_db), runs_here=runs_here)
    release_memory()
    inside = compared_inside(model, simulation, data, sizes, course=course, runs_here=runs_here)
    rows, accurate = known["outputs"], known["accurate"]
    lossy = [
        *loss_warnings(
            graph, topology, plan, rows=rows, layers=inside["layers"], limit=warn_sqnr_db, accurate=accurate
        ),
        *shape_warnings(rows, known["realized_samples"]),
        *map_warnings(rows, graph),
        *box_warnings(known["detections"]),
    ]
    return Evaluation(**known, **inside, lossy=lossy)


def _of_outputs(
    model: EvaluatedModel,
    simulation: Simulation,
    data: EvaluationSamples,
    sizes: Sizes,
    *,
    course: EvaluationProgress,
    by: tuple[str, float | None],
    runs_here: bool,
) -> dict[str, Any]:
    """Return the parts of an evaluation that are about outputs; `by`: the metric, and the SQNR to warn below."""
    graph, (metric, warn_sqnr_db) = model.graph, by
    samples, chosen_by, seen = data.judged, data.chosen_by, data.seen
    opened = _opener(graph, samples, course)
    session = opened(graph.model, where=graph.source)
    names = data.compared.names(session.outputs)
    run = partial(_outputs, course=course, graph=graph, names=names)
    own, known = run(FLOAT_MODEL, session, samples, names=(*names, FACTS))
    facts = SampleFacts.of(np.asarray(own.pop(FACTS)), samples)
    reference = checked_reference(own, known, data.compared, samples=len(samples))
    if seen is None:
        again = run("float model on search samples", session, chosen_by)
        seen = checked_reference(*again, data.compared, samples=len(chosen_by))
    few = samples if sizes.realized is None else First(samples, whole_batches(graph, sizes.realized))
    texts = continued(graph, few, session, output=names[0])
    del session  # before the next is opened: each holds a copy of the weights
    same = first_samples(reference, len(few), len(samples))
    judge, alike = (Judge.of(graph, known, objects_of(samples)) for known in (reference, same))
    session = opened(bind(simulation.rendered.model, simulation.weights), where="simulated model")
    every, _ = run("simulated model", session, samples, simulation.scalars)
    before, _ = run("simulated model on search samples", session, chosen_by, simulation.scalars)
    del session
    release_memory()
    simulated = every[names[0]]
    judged = metric != "accuracy" or (seen.labels is not None and reference.labels is not None)
    both = generalization(metric, (seen, before), (reference, every)) if judged else None
    metrics = {
        "float": judge.with_figures(summary(reference.outputs, reference.outputs, reference.labels), reference.found),
        "simulated": judge.with_figures(summary(reference.outputs, simulated, reference.labels), every),
    }
    of_few = summary(same.outputs, rows_of(simulated, np.arange(len(samples)) < len(few)), same.labels)
    del before, every, simulated, seen
    # What the file holds is compared as it is; what it computes on many samples takes a third of the time so.
    quick = model.realized.model if is_outside(graph.model) else whole_number_convolutions(model.realized.model)
    session = opened(quick, where="realized model")
    boxes = () if data.compared.detections is None else data.compared.detections.outputs
    outputs, _ = run("realized model", session, few, names=tuple(dict.fromkeys((names[0], *boxes))))
    found = outputs[names[0]]
    alone = in_default_session(model.realized.model, few, same, run, known=found) if runs_here else {}
    free = free_running(session, few, same)
    steps = steps_and_prefill(session, few, caches=bool(caches_of(graph)))
    if steps is not None and "reason" not in steps and (counted := kernels_in_steps(model, few)) is not None:
        steps["kernels"] = counted
    watched = watched_outputs(graph, data.compared, names[0], labelled=reference.labels is not None)
    figures = _every_output(graph, session, few, course=course, watched=watched) or [
        figures_of_output(
            names[0], same.outputs, found, parts_of(graph, names[0]), watched=watched.get(names[0]), samples=len(few)
        )
    ]
    said = decoded(graph, few, same.outputs, found, output=names[0], own=texts, session=session)
    accurate = names[0] if is_accurate(*(top1(own, same.labels) for own in (same.outputs, found))) else None
    metrics["realized"] = alike.with_figures(summary(same.outputs, found, same.labels), outputs)
    return {
        "metrics": cast("Metrics", metrics | alone),
        "samples": len(samples),
        "free_running": free,
        "steps": steps,
        "next_tokens": said,
        "generalization": both,
        "realized_samples": len(few),
        "alike": of_few,
        "outputs": [one.row for one in figures],
        "accurate": accurate,
        "per_sample": per_sample(same, found),
        "groups": judged_groups(figures, facts.first(len(few)), warn_sqnr_db, accurate),
        "detections": alike.part(outputs),
    }


def _opener(graph: Graph, samples: Samples, course: EvaluationProgress) -> Callable[..., Session]:
    """Make sessions of which several batches run at once, a core for each: integer kernels share no layer well.

    A model with external weights is too large for its tensors to be held twice.
    """
    threads = None
    if not is_outside(graph.model):
        course.concurrent, threads = concurrency(-(-len(samples) // graph.batch_size))

    def opened(model: ir.Model, *, where: str) -> Session:
        with course.part("sessions"):
            return Session(model, threads=threads, where=where)

    return opened


def _every_output(
    graph: Graph,
    realized: Session,
    samples: Samples,
    *,
    course: EvaluationProgress,
    watched: Mapping[str, CountedAnswers],
) -> list[OutputFigures]:
    """Return the figures of each output, if there are several; a single output's values are known."""
    if len(graph.outputs) == 1:
        return []
    return course.result(
        "every output",
        lambda some: figures_of_outputs(graph, realized, some, watched),
        samples,
        lambda plain: [OutputFigures.from_dict(one) for one in plain],
    )


def _outputs(
    name: str,
    session: Session,
    samples: Samples,
    extra: Mapping[str, NDArray[Any]] | None = None,
    *,
    course: EvaluationProgress,
    graph: Graph,
    names: Sequence[str],
) -> tuple[dict[str, Outputs], NDArray[np.int64] | None]:
    """Return some outputs of a model over a split, by name, and the labels; `FACTS` names the facts of the samples."""

    def run(batch: Batch) -> list[NDArray[Any]]:
        found = session.run({**batch.inputs, **(extra or {})}, [n for n in names if n != FACTS])
        found = lifted(found, graph.selected)
        return [facts_of(batch) if n == FACTS else found[n] for n in names]

    outputs, labels = course.several(name, run, samples, graph.batch_size)
    return dict(zip(names, outputs, strict=True)), labels
