"""The stages as pure functions of typed values: annotate -> calibrate -> search -> realize -> evaluate.

No stage reads or writes files, talks to MLflow or knows of configuration; the runner does that around them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.variants import Topologies
from quantpipe.artifacts.checkpoint import Kept, NoCheckpoint
from quantpipe.calibrate.estimators import MSE, Estimator
from quantpipe.calibrate.measure import float_pass_seconds
from quantpipe.calibrate.ruled import WeightMethod
from quantpipe.data.subset import First
from quantpipe.evaluate.evaluation import Evaluation, evaluate
from quantpipe.evaluate.inside_models import EvaluatedModel, EvaluationSamples, Sizes, whole_batches
from quantpipe.graph.execute import Session
from quantpipe.graph.external_weights import model_size
from quantpipe.graph.stored_ports import stored_ports
from quantpipe.graph.view import Graph
from quantpipe.hardware.cost import COSTS, cost_function, macs
from quantpipe.hardware.predictor import PREDICTED, predicted
from quantpipe.intake.half_ends import cast_ends, inside_of
from quantpipe.lowering import Rendered, render
from quantpipe.metrics.losses import OutputLoss, only_kl
from quantpipe.metrics.outputs import cross_entropy, is_distribution, top1
from quantpipe.metrics.reference import Compared, Found, Reference, compared_loss, output_metrics, reference_of
from quantpipe.plan import NO_OVERRIDES, Overrides, Problem
from quantpipe.realize import VENDOR, Provenance, write
from quantpipe.realize.cache_ends import real_ports, stored_ends
from quantpipe.realize.opset import with_least_opset
from quantpipe.realize.provenance import stamp
from quantpipe.recover import (
    STEPS,
    TRAIN,
    RecoverOptions,
    RecoveryResult,
    State,
    StepItem,
    StepLoss,
    Work,
    accept_steps,
    pass_limit,
)
from quantpipe.scoring.kept import KeptScorer
from quantpipe.search import (
    Algorithm,
    Batching,
    Budget,
    Evaluator,
    FloatFigures,
    Measure,
    Metric,
    Objective,
    ObjectiveOptions,
    SearchResult,
    TrialLog,
    run_search,
)
from quantpipe.train.train_options import NO_TRAINING, TrainOptions
from quantpipe.train.training_data import TrainingData
from quantpipe.types import (
    ChoiceSpace,
    CostPart,
    HardwareSpec,
    ModelPart,
    Profile,
    QuantPlan,
    Samples,
    Schema,
    Strategy,
    Topology,
    Trial,
)

__all__ = [
    "EvaluatedModel",
    "Evaluation",
    "EvaluationSamples",
    "SearchMethod",
    "Sizes",
    "all_costs",
    "annotate",
    "describe_model",
    "evaluate",
    "float_pass",
    "make_objective",
    "realize",
    "recover",
    "search",
    "whole_batches",
]

Progress = Callable[[int, int, str], None]


def annotate(
    graph: Graph,
    spec: HardwareSpec,
    schema: Schema,
    options: AnnotateOptions,
    *,
    percents: Mapping[str, Sequence[int]] | None = None,
) -> tuple[Topology, ChoiceSpace]:
    """Return the default topology and the choice space.

    `percents` are the percentiles to which ranges may be clipped, by key of the scale group.
    """
    variants = Topologies(graph, spec, schema, options)
    return variants.base, variants.space(percents)


@dataclass(frozen=True, eq=False)
class SearchMethod:
    """Say how a space is searched: the same method asks for the same points, where the scores are the same."""

    algorithm: Algorithm
    budget: Budget
    seed: int


def make_objective(
    config: Mapping[str, Any],
    graph: Graph,
    variants: Topologies,
    spec: HardwareSpec,
    *,
    space: ChoiceSpace,
    reference: Reference,
) -> Objective:
    """Return the objective with its reference.

    The reference is the float model's own value, and the cost of the point where a search begins. `config` has the keys
    of conf/objective.
    """
    start = space.decode(space.start)
    topology, bits = variants.topology_of(start), variants.bits(start)
    cost = cost_function(str(config["cost"]))  # a latency has no formula
    metric = metric_for(str(config["metric"]), reference.output, reference.losses)
    figures = FloatFigures(
        accuracy=_float_accuracy(reference),
        value=reference.own_value,
        start_cost=None if cost is None else cost(topology, graph, spec, bits),
    )
    return Objective.of(ObjectiveOptions(**{**config, "metric": metric}), figures)


def _float_accuracy(reference: Reference) -> float | None:
    """Return the float model's accuracy, on its worst group where that judges; None without labels."""
    found = top1(reference.outputs, reference.labels)
    over = reference.over
    if found is None or over is None or over.metric != Metric.ACCURACY:
        return found
    return over.value(reference, reference.found)


def metric_for(metric: str, output: str, losses: Sequence[OutputLoss]) -> str:
    """Return `kl` in place of `auto` where the losses are the divergence of the one output that metrics are about."""
    return Metric.KL.value if metric == Metric.AUTO and only_kl(losses) == output else metric


def search(
    space: ChoiceSpace,
    candidates: Measure,
    objective: Objective,
    method: SearchMethod,
    *,
    log: TrialLog,
    on_trial: Callable[[Trial, Trial], None],
    singly: bool,
) -> SearchResult:
    """Return the best point within the budget; trials go to the log as they come.

    `on_trial` is called with each trial and the best one so far. `singly`: `candidates` takes one point at a time and
    cannot cancel, because it times them.
    """
    evaluator = Evaluator(
        candidates,
        objective,
        budget=method.budget,
        batching=Batching(size=1) if singly else Batching(size=None, prunes=objective.bounded),
        log=log,
        on_trial=on_trial,
    )
    return run_search(method.algorithm, space, evaluator, objective, seed=method.seed)


def realize(
    graph: Graph,
    topology: Topology,
    plan: QuantPlan,
    backend: str,
    *,
    made: Provenance | None = None,
    vendor: bool = False,
    here: bool = False,
) -> Rendered:
    """Return the integer model in one of the ONNX forms, with the port types of the user's file.

    Caches are integers at both ports where the device holds them so. `made` is recorded in the file; None for a model
    that is not kept. `vendor`: write the form for other tools, even where onnxruntime computes other numbers than the
    plan. `here`: write the form for onnxruntime alone, since it is the device. Half-precision ports stay half
    precision.
    """
    if vendor:
        rendered = render(graph, topology, plan, VENDOR[backend]())
    else:
        rendered = write(backend, graph, topology, plan, here=here)
    rendered = stored_ends(rendered, topology, plan)
    kinds = real_ports({name: ir.DataType[kind.upper()] for name, kind in graph.given.items()}, topology)
    model = with_least_opset(cast_ends(rendered.model, kinds))
    if made is not None:
        stamp(model, made.entries(graph, plan, backend, stored_ports(model)), made.version)
    return replace(rendered, model=model, inside=inside_of(model, kinds))


def float_pass(graph: Graph, samples: Samples) -> float:
    """Return the seconds of one pass of the float model over a split, the unit in which search costs are read."""
    return float_pass_seconds(graph, samples, graph.batch_size)


def describe_model(
    graph: Graph, topology: Topology, spec: HardwareSpec, plan: QuantPlan, *, strategy: Strategy, realized: Rendered
) -> ModelPart:
    """Return sizes, operations and bits of the model, for the report."""
    integer = sum(topology.node_conds.values())
    return {
        "float_bytes": graph.file_bytes if graph.imported is None else model_size(graph.model),
        "realized_bytes": model_size(realized.model),
        "macs": sum(macs(node, graph) for node in graph.nodes),
        "bops": COSTS["bops"](topology, graph, spec, strategy.bits),
        "mean_weight_bits": plan.mean_weight_bits,
        "mean_activation_bits": plan.mean_activation_bits,
        "float_nodes": len(topology.node_conds) - integer,  # of the model's own: recovery may add bounds of channels
        "integer_nodes": integer,
    }


def all_costs(graph: Graph, topology: Topology, spec: HardwareSpec, strategy: Strategy) -> CostPart:
    """Return the strategy's value of every cost measure, by name."""
    found = {name: cost(topology, graph, spec, strategy.bits) for name, cost in COSTS.items()}
    for name, quantity in PREDICTED.items():
        if quantity in spec.cost.layers:
            found[name] = predicted(quantity, topology, graph, spec, bits=strategy.bits)
    return cast("CostPart", found)


KEPT_SHARE = 8
"""The share of the memory, 1/8, for the integers between sections that are kept for each judge of recovery."""


@dataclass(frozen=True, eq=False)
class Holdout:
    """Hold samples that nothing is fitted to, by which steps of recovery are judged.

    `compared`: the outputs compared there, by their losses, or by KL of the output if it has no losses. A user's
    objective is in the result's metrics, too.
    """

    samples: Samples
    compared: Compared = Compared()  # noqa: RUF009  (frozen)


@dataclass(frozen=True, eq=False)
class SearchedStrategy:
    """Hold what a search leaves to recovery.

    It is its strategy, the integer weights that this has already, and its statistics (None: they are measured where
    they are needed).
    """

    strategy: Strategy
    overrides: Overrides = NO_OVERRIDES
    profile: Profile | None = None


@dataclass(frozen=True, eq=False)
class RecoverySettings:
    """State how recovery is run.

    `estimator`, `weight_method`: how ranges are estimated where a step changes what they are estimated from;
    `memory_mb`: what cached tensors may take. `train`: the training after all steps, if it learns anything, and
    `training` what it learns from. `passes`: float passes over the calibration samples that the steps may take.
    """

    options: RecoverOptions
    memory_mb: int
    seed: int = 0
    estimator: Estimator = MSE()  # noqa: RUF009  (frozen)
    weight_method: WeightMethod = "mse"
    train: TrainOptions = NO_TRAINING
    training: TrainingData | None = None
    passes: float = inf

    @property
    def steps(self) -> tuple[StepItem, ...]:
        """Return the steps in order, training last."""
        training = (StepItem(TRAIN, self.train),) if self.train.active else ()
        return (*self.options.items(), *training)


def recover(
    problem: Problem,
    searched: SearchedStrategy,
    samples: Samples,
    holdout: Holdout,
    *,
    settings: RecoverySettings,
    progress: Progress = lambda done, total, note: None,
    kept: Kept = NoCheckpoint(),  # noqa: B008  (without state)
) -> RecoveryResult:
    """Find better numbers for a strategy: fitted on `samples`, each step judged on others (`holdout`).

    The result has the overrides of the kept steps, and the table of steps. Layers that an interrupted recovery left in
    `kept` are taken from there. `progress` is called as the work goes on.
    """
    graph, options = problem.graph, settings.options
    judges: list[KeptScorer] = []

    def judge_on(some: Samples) -> KeptScorer:
        session = Session(graph.model, where=graph.source)
        reference = reference_of(session, some, graph.batch_size, holdout.compared)
        judges.append(KeptScorer(reference, some, settings.memory_mb // KEPT_SHARE))
        return judges[-1]

    @cache
    def fitted(count: int | None) -> Callable[[Graph, Topology, QuantPlan], float]:
        return judge_on(samples if count is None else First(samples, whole_batches(graph, count))).loss

    judge = judge_on(holdout.samples)
    judge.reference = judge.reference.softened(holdout.compared.metric)
    work = Work(
        *(graph, problem.topology, problem.spec, problem.schema, searched.strategy, samples),
        *(settings.estimator, settings.weight_method, settings.memory_mb, settings.seed, fitted),
        progress=progress,
        kept=kept,
        profile=searched.profile,
        training=settings.training,
    )
    outputs: WeakKeyDictionary[State, Found] = WeakKeyDictionary()

    def measured(state: State) -> StepLoss:
        outputs[state] = judge.outputs(state.graph, state.topology, work.plan(state))
        judge.release()  # the next step needs the memory, and gives another network or other weights
        found = outputs[state]
        loss = judge.loss_of(found)
        return StepLoss(loss, loss if judge.reference.softness is None else compared_loss(judge.reference, found))

    def with_labels(state: State) -> float:
        """Return the loss of a training by labels; the float model is no measure of what they teach."""
        known, found = judge.reference, outputs[state]
        scores = known.main(found)
        assert isinstance(scores, np.ndarray) and known.labels is not None  # noqa: S101  (as asked below)
        entropy = cross_entropy(scores, known.labels, is_distribution(known.outputs))
        return entropy + (judge.loss_of(found) if settings.train.loss == "both" else 0.0)

    scores = judge.reference.outputs
    classes = isinstance(scores, np.ndarray) and scores.shape[-1] > 1
    labelled = settings.train.needs_labels and judge.reference.labels is not None and classes
    state, result = accept_steps(
        work.start(searched.overrides, (options.layer("gptq"), options.rows)),
        settings.steps,
        lambda step, state: STEPS[step.name].run(work, state, step.parameters),
        measured,
        kl_target=options.kl_target,
        judges={TRAIN: with_labels} if labelled else {},
        limit=pass_limit(
            graph, problem.topology, fitted=len(samples), judged=len(holdout.samples), passes=settings.passes
        ),
    )
    result = replace(result, evaluations=sum(used.evaluations for used in judges))
    if result.overrides is NO_OVERRIDES:
        return result
    return replace(result, metrics=output_metrics(judge.reference, outputs[state]))
