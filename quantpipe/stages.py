"""The stages as pure functions of typed values: annotate -> calibrate -> search -> realize -> evaluate.

No stage reads or writes files, talks to MLflow or knows of configuration; the runner does that around them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.variants import Topologies
from quantpipe.calibrate.estimators import MSE, Estimator
from quantpipe.calibrate.measure import Checkpoint, float_pass_seconds, measure
from quantpipe.calibrate.table import WeightMethod
from quantpipe.data.subset import First
from quantpipe.evaluate.agreement import Agreement, compare, float_warning
from quantpipe.evaluate.course import Course
from quantpipe.evaluate.generalization import Generalization, generalization
from quantpipe.evaluate.judge import Judge
from quantpipe.evaluate.latency import latency
from quantpipe.evaluate.layers import layer_report
from quantpipe.evaluate.metrics import summary, top1
from quantpipe.evaluate.overflow import overflow_report
from quantpipe.evaluate.reference import (
    Reference,
    ValueOf,
    checked_reference,
    first_samples,
    output_metrics,
    reference_of,
)
from quantpipe.evaluate.streaming import free_running
from quantpipe.graph.execute import Session, release_memory
from quantpipe.graph.outside import is_outside, model_size
from quantpipe.graph.view import Graph
from quantpipe.hardware.cost import COSTS, macs
from quantpipe.plan import NO_OVERRIDES, Overrides, Planner
from quantpipe.realize import BACKENDS
from quantpipe.recover import STEPS, Climbed, Kept, NothingKept, RecoverOptions, State, Work, climb
from quantpipe.rendering import Rendered, render
from quantpipe.search import Algorithm, Evaluator, Measure, Objective, SearchResult, TrialLog, run_search
from quantpipe.simulate.simulator import Simulation, bind, simulate
from quantpipe.types import (
    ChoiceSpace,
    HardwareSpec,
    Outputs,
    Profile,
    QuantPlan,
    Samples,
    Schema,
    Strategy,
    Topology,
    Trial,
)

Progress = Callable[[int, int, str], None]


def annotate(
    graph: Graph, spec: HardwareSpec, schema: Schema, options: AnnotateOptions, percents: Sequence[int] = ()
) -> tuple[Topology, ChoiceSpace]:
    """What runs in integers by default, and what there is to choose; `percents`: what ranges may be clipped to, if
    anything."""
    variants = Topologies(graph, spec, schema, options)
    return variants.base, variants.space(percents)


def calibrate(
    graph: Graph,
    topology: Topology,
    samples: Samples,
    memory_mb: int,
    progress: Progress,
    *,
    tensors: Sequence[str] | None = None,
    extremes_only: bool = False,
    by_channel: Collection[str] = (),
    checkpoint: Checkpoint | None = None,
) -> Profile:
    """Statistics of every tensor whose range is needed, or of `tensors` among them (see `measure`)."""
    return measure(
        graph,
        topology.measured if tensors is None else tensors,
        samples,
        memory_mb,
        progress,
        extremes_only=extremes_only,
        by_channel=by_channel,
        checkpoint=checkpoint,
    )


@dataclass(frozen=True, eq=False)
class Budget:
    max_evaluations: int | None
    max_seconds: float | None
    target: float | None = None


def make_objective(
    config: Mapping[str, Any],
    graph: Graph,
    variants: Topologies,
    spec: HardwareSpec,
    space: ChoiceSpace,
    reference: Reference,
) -> Objective:
    """The objective with its reference: the float model's own value, and the cost of the point that a search begins
    with."""
    start = space.decode(space.start)
    topology, bits = variants.topology_of(start), variants.bits(start)
    cost = COSTS.get(str(config["cost"]))  # a latency has no formula
    return Objective.from_config(
        metric=str(config["metric"]),
        form=str(config["form"]),
        tolerance=config["tolerance"],
        cost=str(config["cost"]),
        cost_limit=config["cost_limit"],
        weight=config.get("weight"),
        target=config.get("target"),
        latency_runs=config.get("latency_runs", 20),
        latency_seconds=config.get("latency_seconds", 2.0),
        float_accuracy=top1(reference.outputs, reference.labels),
        float_value=reference.own_value,
        start_cost=None if cost is None else cost(topology, graph, spec, bits),
    )


def search(
    space: ChoiceSpace,
    candidates: Measure,
    objective: Objective,
    algorithm: Algorithm,
    budget: Budget,
    seed: int,
    log: TrialLog,
    on_trial: Callable[[Trial, Trial], None],
    singly: bool,
) -> SearchResult:
    """The best point within the budget; trials go to the log as they come.

    `singly`: `candidates` takes one point at a time and cannot give up, because it times them.
    """
    evaluator = Evaluator(
        candidates,
        objective,
        max_evaluations=budget.max_evaluations,
        max_seconds=budget.max_seconds,
        target=budget.target,
        log=log,
        batch_size=1 if singly else None,
        prunes=objective.bounded and not singly,
        on_trial=on_trial,
    )
    return run_search(algorithm, space, evaluator, objective, seed)


def realize(graph: Graph, topology: Topology, plan: QuantPlan, backend: str) -> Rendered:
    """The integer model in one of the output forms."""
    return render(graph, topology, plan, BACKENDS[backend]())


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Numbers of the report that come from running the three models. `realized_samples`: of how many samples the
    realized model's metrics are, the first ones; `alike`: the simulated model's on the same."""

    metrics: Mapping[str, Mapping[str, float | None]]
    agreement: Agreement
    layers: Sequence[Mapping[str, Any]] = field(repr=False)
    latency: Mapping[str, Any] = field(default_factory=dict)
    samples: int = 0
    free_running: Mapping[str, float | None] = field(default_factory=dict)
    generalization: Generalization | None = None
    overflow: Sequence[Mapping[str, Any]] = ()
    realized_samples: int = 0
    alike: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def warnings(self) -> list[str]:
        """What is doubtful about the numbers, in sentences."""
        carried = self.generalization.warning if self.generalization is not None else None
        elsewhere = float_warning(self.agreement, self.alike, self.metrics["realized"])
        return [said for said in (carried, elsewhere) if said]


@dataclass(frozen=True)
class Sizes:
    """How much of the evaluate split the parts of an evaluation use: samples compared `agreement` by element and
    `layer` by tensor, samples the `realized` model runs on (None: all), runs and seconds of the latency."""

    agreement: int
    layer: int
    realized: int | None
    latency_runs: int
    latency_seconds: float


PHASES = 9
"""Of an evaluation: five runs of models over a split, two comparisons, overflows and the latency."""


def evaluate(
    graph: Graph,
    topology: Topology,
    plan: QuantPlan,
    realized: Rendered,
    samples: Samples,
    *,
    sizes: Sizes,
    chosen_by: Samples,
    metric: str,
    value_of: ValueOf | None,
    output: str | None = None,
    seen: Reference | None = None,
    course: Course | None = None,
) -> Evaluation:
    """Float, simulated and realized model on samples that nothing was fitted to or chosen by: their metrics are those
    of one output, the first if none is named.

    The simulated model runs on those it was chosen by as well, to compare its losses by the objective's `metric`;
    `seen` is the float model's reference on these, if it is known. `course` tells how far it is, and goes on where an
    interrupted evaluation was.
    """
    course = course or Course()
    course.phases = PHASES - (seen is not None)
    session = Session(graph.model, where=graph.source)
    output = output or session.outputs[0]
    run = partial(_outputs, course=course, size=graph.batch_size, output=output)
    reference = checked_reference(*run("float model", session, samples), value_of, output)
    if seen is None:
        seen = checked_reference(*run("float model on search samples", session, chosen_by), value_of, output)
    simulation = simulate(graph, topology, plan)
    session = Session(bind(simulation.rendered.model, simulation.weights), where="simulated model")
    simulated, _ = run("simulated model", session, samples, simulation.scalars)
    before, _ = run("simulated model on search samples", session, chosen_by, simulation.scalars)
    session = Session(realized.model, where="realized model")
    few = samples if sizes.realized is None else First(samples, _whole_batches(graph, sizes.realized))
    found, _ = run("realized model", session, few)
    same = first_samples(reference, len(few))
    free = free_running(session, few, same)
    del session
    release_memory()
    carried = None
    if metric != "accuracy" or (seen.labels is not None and reference.labels is not None):
        carried = generalization(metric, (seen, before), (reference, simulated))
    return Evaluation(
        {
            "float": summary(reference.outputs, reference.outputs, reference.labels),
            "simulated": summary(reference.outputs, simulated, reference.labels),
            "realized": summary(same.outputs, found, same.labels),
        },
        **_compared(graph, topology, plan, simulation, realized, samples, sizes=sizes, course=course),
        samples=len(samples),
        free_running=free,
        generalization=carried,
        realized_samples=len(few),
        alike=summary(same.outputs, simulated[: len(few)], same.labels),
    )


def _outputs(
    name: str,
    session: Session,
    samples: Samples,
    extra: Mapping[str, NDArray[Any]] | None = None,
    *,
    course: Course,
    size: int,
    output: str,
) -> tuple[Outputs, NDArray[np.int64] | None]:
    """One output of a model over a split, and the labels."""
    return course.outputs(
        name, lambda batch: session.run({**batch.inputs, **(extra or {})}, [output])[output], samples, size
    )


def _compared(
    graph: Graph,
    topology: Topology,
    plan: QuantPlan,
    simulation: Simulation,
    realized: Rendered,
    samples: Samples,
    *,
    sizes: Sizes,
    course: Course,
) -> dict[str, Any]:
    """The parts of an evaluation that look inside the models, and the latency."""

    def first(count: int) -> Samples:
        return First(samples, _whole_batches(graph, count))

    agreement = course.result(
        "agreement",
        lambda some: compare(graph, topology, plan, simulation, realized, some),
        first(sizes.agreement),
        lambda known: Agreement(**known),
    )
    release_memory()
    layers = course.result(
        "errors per tensor",
        lambda some: layer_report(graph, plan, simulation, some),
        first(sizes.layer),
        list[dict[str, Any]],
    )
    release_memory()
    overflow = course.result(
        "overflows",
        lambda some: overflow_report(graph, topology, plan, simulation, some),
        samples,
        list[dict[str, Any]],
    )
    release_memory()
    shares = {entry["tensor"]: entry["share"] for entry in overflow}
    layers = [{**entry, "overflow": shares.get(entry["tensor"], 0.0)} for entry in layers]

    def timed(some: Samples) -> dict[str, Any]:
        one = next(iter(some.batches(1))).inputs
        if not _takes(graph, one) or is_outside(graph.model):  # mapped weights would be timed, not the user's sessions
            return {}
        return latency(graph.model, realized.model, one, sizes.latency_runs, sizes.latency_seconds)

    times = course.result("latency", timed, First(samples, 1), dict[str, Any])
    return {"agreement": agreement, "layers": layers, "overflow": overflow, "latency": times}


def float_pass(graph: Graph, samples: Samples) -> float:
    """Seconds of one pass of the float model over a split, the unit in which search costs are read."""
    return float_pass_seconds(graph, samples, graph.batch_size)


def _whole_batches(graph: Graph, count: int) -> int:
    """`count`, or a little more where the model's batch is fixed."""
    size = graph.fixed_batch or 1
    return -(-count // size) * size


def _takes(graph: Graph, feeds: Mapping[str, NDArray[Any]]) -> bool:
    """Whether the model runs on these feeds, or has a larger batch of its own."""
    return all(i.shape[:1] in ((), (None,), feeds[i.name].shape[:1]) for i in graph.inputs)


def describe_model(
    graph: Graph, topology: Topology, spec: HardwareSpec, plan: QuantPlan, strategy: Strategy, realized: Rendered
) -> dict[str, Any]:
    """Sizes, operations and bits: the report's `model` part."""
    integer = sum(topology.node_conds.values())
    return {
        "float_bytes": model_size(graph.model),
        "realized_bytes": model_size(realized.model),
        "macs": sum(macs(node, graph) for node in graph.nodes),
        "bops": COSTS["bops"](topology, graph, spec, strategy.bits),
        "mean_weight_bits": plan.mean_weight_bits,
        "mean_activation_bits": plan.mean_activation_bits,
        "float_nodes": len(topology.node_conds) - integer,  # of the model's own: recovery may add bounds of channels
        "integer_nodes": integer,
    }


def all_costs(graph: Graph, topology: Topology, spec: HardwareSpec, strategy: Strategy) -> dict[str, float]:
    """The strategy by every cost measure."""
    return {name: cost(topology, graph, spec, strategy.bits) for name, cost in COSTS.items()}


def recover(
    graph: Graph,
    topology: Topology,
    spec: HardwareSpec,
    schema: Schema,
    strategy: Strategy,
    samples: Samples,
    judged_on: Samples,
    options: RecoverOptions,
    memory_mb: int,
    seed: int,
    progress: Progress,
    output: str | None = None,
    kept: Kept = NothingKept(),  # noqa: B008  (without state)
    start: Overrides = NO_OVERRIDES,
    estimator: Estimator = MSE(),  # noqa: B008  (frozen)
    weight_method: WeightMethod = "mse",
    profile: Profile | None = None,
    value_of: ValueOf | None = None,
) -> Climbed:
    """Better numbers for a strategy: fitted on `samples`, each step judged by KL of an output on others.

    Layers that an interrupted recovery left in `kept` are taken from there. `start` is what the strategy has already
    (of a search that recovers its candidates). `estimator`, `weight_method`: how ranges are estimated where a step
    changes what they are estimated from; `profile`: what the strategy's own were estimated from (None: it is measured
    where it is needed). `value_of`: an objective of the user's, which the result's metrics then have, too.
    """

    def judge_on(some: Samples) -> Judge:
        session = Session(graph.model, where=graph.source)
        return Judge(reference_of(session, some, graph.batch_size, output, value_of), some, output)

    @cache
    def fitted(count: int | None) -> Callable[[Graph, Topology, QuantPlan], float]:
        return judge_on(samples if count is None else First(samples, _whole_batches(graph, count))).kl

    judge = judge_on(judged_on)
    work = Work(
        graph, topology, spec, schema, strategy, samples, estimator, weight_method, memory_mb, seed, fitted, progress,
        kept, profile,
    )  # fmt: skip
    outputs: WeakKeyDictionary[State, Outputs] = WeakKeyDictionary()

    def measured(state: State) -> float:
        outputs[state] = judge.outputs(state.graph, state.topology, work.plan(state))
        judge.release()  # the next step needs the memory, and gives another network or other weights
        return judge.kl_of(outputs[state])

    state, climbed = climb(
        work.start(start, (options.layer("rounding"), options.rows)),
        options.items(),
        lambda step, state: STEPS[step.name].run(work, state, step.parameters),
        measured,
        options.enough,
    )
    if climbed.overrides is NO_OVERRIDES:
        return climbed
    return replace(climbed, metrics=output_metrics(judge.reference, outputs[state]))


def plan_of(
    graph: Graph, topology: Topology, spec: HardwareSpec, schema: Schema, strategy: Strategy, overrides: Overrides
) -> QuantPlan:
    """All numbers of a strategy."""
    return Planner(graph, topology, spec, schema).plan(strategy, overrides)
