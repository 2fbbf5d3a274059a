"""The stages as pure functions of typed values: annotate -> calibrate -> search -> realize -> evaluate.

No stage reads or writes files, talks to MLflow or knows of configuration; the runner does that around them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.variants import Topologies
from quantpipe.calibrate.estimators import MSE, Estimator
from quantpipe.calibrate.measure import Checkpoint, float_pass_seconds, measure
from quantpipe.calibrate.table import WeightMethod
from quantpipe.data.subset import First
from quantpipe.evaluate.evaluation import Evaluation, Sizes, evaluate, whole_batches
from quantpipe.evaluate.judge import Judge
from quantpipe.evaluate.metrics import top1
from quantpipe.evaluate.reference import (
    Reference,
    ValueOf,
    output_metrics,
    reference_of,
)
from quantpipe.graph.execute import Session
from quantpipe.graph.outside import model_size
from quantpipe.graph.view import Graph
from quantpipe.hardware.cost import COSTS, macs
from quantpipe.plan import NO_OVERRIDES, Overrides, Planner
from quantpipe.realize import BACKENDS
from quantpipe.recover import STEPS, Climbed, Kept, NothingKept, RecoverOptions, State, Work, climb
from quantpipe.rendering import Rendered, render
from quantpipe.search import Algorithm, Evaluator, Measure, Objective, SearchResult, TrialLog, run_search
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

__all__ = [
    "Budget",
    "Evaluation",
    "Sizes",
    "all_costs",
    "annotate",
    "calibrate",
    "describe_model",
    "evaluate",
    "float_pass",
    "make_objective",
    "plan_of",
    "realize",
    "recover",
    "search",
]

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


def float_pass(graph: Graph, samples: Samples) -> float:
    """Seconds of one pass of the float model over a split, the unit in which search costs are read."""
    return float_pass_seconds(graph, samples, graph.batch_size)


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
        return judge_on(samples if count is None else First(samples, whole_batches(graph, count))).kl

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
