"""Measure the gain of a configuration change to a finished run, as a run with it would get it.

The run's decisions are planned again under the changed configuration, and the plan is simulated.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from quantpipe.errors import QuantpipeError
from quantpipe.explain.advice_row import MeasuredLoss, advice_row
from quantpipe.graph.execute import Session
from quantpipe.graph.view import Graph
from quantpipe.hardware.cost import COSTS
from quantpipe.hardware.gain import own_cost
from quantpipe.metrics.outputs import top1
from quantpipe.metrics.reference import reference_of
from quantpipe.pipeline import stages
from quantpipe.pipeline.calibrate import calibrate
from quantpipe.pipeline.context import RunContext, SearchDecision
from quantpipe.pipeline.precision import applied
from quantpipe.pipeline.profile import loaded_profile
from quantpipe.pipeline.recover import recovered
from quantpipe.pipeline.settings import Settings
from quantpipe.pipeline.train import refuse_untrainable
from quantpipe.plan import NO_OVERRIDES, Overrides
from quantpipe.recover import RecoverOptions, with_split_channels
from quantpipe.scoring.kept import KeptScorer
from quantpipe.train.train_options import NO_TRAINING, TrainOptions
from quantpipe.types import AdviceRow, Point, Profile, Samples, Strategy, Topology
from quantpipe.types.choice_key import ChoiceKind


@dataclass(frozen=True, eq=False)
class Change:
    """A change of a run's settings, in words and as it is pasted.

    `anew`: ranges are estimated again, also of tensors that the change does not name. `recover`: the steps that follow.
    `train`: a training that begins with the run's result.
    """

    role: str
    members: tuple[str, ...]
    words: str
    overrides: tuple[str, ...]
    settings: Settings = field(repr=False)
    anew: bool = False
    recover: RecoverOptions | None = None
    train: TrainOptions = NO_TRAINING


class Quiet:
    """A console without output: the progress of measurements is not shown."""

    def stage(self, name: str, note: str = "") -> None:
        """Pass over a stage."""

    def progress(self, name: str) -> Callable[[int, int, str], None]:
        """Return a function that does nothing."""
        return lambda done, total, note: None

    def warn(self, text: str) -> None:
        """Pass over a warning."""


class Advisor:
    """Measures changes of one run, without a file in its folder.

    `evaluations` counts runs of a simulated model over the samples.
    """

    def __init__(
        self, context: RunContext, decision: SearchDecision, profile: Profile | None, samples: Samples
    ) -> None:
        self._context, self._found, self._profile = context, decision, profile
        session = Session(context.graph.model, where=context.graph.source)
        self.reference = reference_of(session, samples, context.graph.batch_size, context.inputs.compared)
        self._judge = KeptScorer(self.reference, samples, context.settings.calibrate.memory_mb)

    @property
    def evaluations(self) -> int:
        """Return how many plans were run."""
        return self._judge.evaluations

    @property
    def float_accuracy(self) -> float | None:
        """Return the share of right answers of the float model; None without labels."""
        return top1(self.reference.outputs, self.reference.labels)

    def as_it_is(self) -> MeasuredLoss:
        """Return the measurements of the run's own strategy, recovery included."""
        return self._judged(
            self._context.with_topology_of(self._found.strategy), self._found.strategy, self._found.overrides
        )

    def unrecovered(self) -> MeasuredLoss:
        """Return the measurements without recovery."""
        return self._judged(self._context.with_topology_of(self._found.strategy), self._found.strategy, NO_OVERRIDES)

    def measured(self, change: Change) -> MeasuredLoss | None:
        """Return the measurements of a run with the change; None if it is impossible."""
        try:
            return self._measured(change)
        except QuantpipeError:
            return None  # the device, or another statement of the user's, does not allow it

    def row(self, change: Change, before: MeasuredLoss) -> AdviceRow | None:
        """Return the row of a change; None where it cannot be made, or changes nothing."""
        after = self.measured(change)
        if after is None or after == before:
            return None
        return advice_row(change, before, after)

    def _measured(self, change: Change) -> MeasuredLoss:
        with tempfile.TemporaryDirectory(prefix="quantpipe-") as folder:
            settings = replace(change.settings, folder=Path(folder))
            graph = self._with_more_channels(settings)
            context = RunContext.of(settings, replace(self._context.inputs, graph=graph), Quiet())
            context = applied(context, self._found.report.get("precision"))
            other = frozenset(t for t, shape in graph.shapes.items() if self._context.graph.shapes.get(t) != shape)
            profile = self._statistics(context, other)
            strategy = self._strategy(context, profile, change, other)
        context, overrides = context.with_topology_of(strategy), NO_OVERRIDES
        if change.recover is not None:
            overrides = _recovered(context, strategy, profile, change.recover)
        if change.train.active:
            refuse_untrainable(context)
            overrides = _recovered(context, strategy, profile, RecoverOptions(()), start=self._found.overrides)
        return self._judged(context, strategy, overrides)

    def _with_more_channels(self, settings: Settings) -> Graph:
        """Return the run's network, with the channels split that the run itself does not split."""
        before = self._context.settings.annotate.split_channels or {}
        more = {t: c for t, c in (settings.annotate.split_channels or {}).items() if t not in before}
        return with_split_channels(self._context.graph, settings.spec, settings.schema, more)

    def _statistics(self, context: RunContext, other: Collection[str]) -> Profile:
        """Return the run's statistics, completed for new tensors; measured again if they come from another source.

        `other`: tensors with other channels than in the run.
        """
        same = context.settings.profile == self._context.settings.profile
        loaded = None
        if context.settings.profile is not None and self._profile is None:
            loaded = loaded_profile(context.settings, context.graph, context.variants.measured, context.estimator)
        known = self._profile if same else None
        if known is not None and other:
            known = replace(known, tensors={t: s for t, s in known.tensors.items() if t not in other})
        return calibrate(context, known, loaded)

    def _strategy(self, context: RunContext, profile: Profile, change: Change, other: Collection[str]) -> Strategy:
        """Return the run's decisions in the space of the changed run; ranges stay if the scale group is the same."""
        own = self._found.strategy
        found = context.thresholds(profile).strategy(context.space.decode(_point(context, own)))
        if change.anew:
            return found
        before = self._context.variants.at(own.structure)
        kept = _same_groups(before, context.variants.at(found.structure), own, found)
        as_before = {key: own.ranges[key] for key in kept if key not in other}
        return replace(found, ranges={**found.ranges, **as_before})

    def _judged(self, context: RunContext, strategy: Strategy, overrides: Overrides) -> MeasuredLoss:
        """`context` has the topology of the strategy already."""
        spec = context.settings.spec
        cost = COSTS[own_cost(spec)](context.topology, context.graph, spec, strategy.bits)
        context = context.recovered_network(overrides)
        plan = context.problem.plan(strategy, overrides)
        self._judge.release()  # the sessions of another topology
        outputs = self._judge.outputs(context.graph, context.topology, plan)
        accuracy = top1(self.reference.main(outputs), self.reference.labels)
        return MeasuredLoss(self._judge.loss_of(outputs), accuracy, cost)


def _point(context: RunContext, strategy: Strategy) -> Point:
    """Return the point of a space that is nearest to a strategy; choices unknown to it start as they do."""
    decided = dict(strategy.structure.decided)
    wanted = (
        strategy.bits.get(choice.subject) if choice.kind == ChoiceKind.BITS else decided.get(choice.key)
        for choice in context.space
    )
    return tuple(c.options.index(c.nearest(option)) for c, option in zip(context.space, wanted, strict=True))


def _same_groups(before: Topology, after: Topology, own: Strategy, found: Strategy) -> Sequence[str]:
    there = {group.key: group for group in before.groups}
    return [
        g.key
        for g in after.groups
        if g.fixed is None
        and g.key in there
        and there[g.key].tensors == g.tensors
        and there[g.key].fixed is None
        and own.bits[g.key] == found.bits[g.key]
    ]


def _recovered(
    context: RunContext,
    strategy: Strategy,
    profile: Profile,
    options: RecoverOptions,
    *,
    start: Overrides = NO_OVERRIDES,
) -> Overrides:
    return recovered(context, stages.SearchedStrategy(strategy, start, profile), options).overrides


def with_annotate(settings: Settings, **changes: Any) -> Settings:
    """Return the settings with other options of annotate."""
    return replace(settings, annotate=replace(settings.annotate, **changes))


def constraints_with(settings: Settings, more: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the user's constraints on single tensors, with more."""
    return {**(settings.annotate.constraints or {}), **more}
