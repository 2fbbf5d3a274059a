"""The stages of one run over its folder, to be done one by one or all in order.

Every door of the program (the command line, the Python functions) drives this one class. A stage does what it needs of
the stages before it, once; a stage that raised can be asked again, and goes on from what is in the folder. Nothing is
locked here: whoever drives the stages holds the folder's lock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from quantpipe.pipeline.calibrate import calibrate
from quantpipe.pipeline.calibrate_layers import decide_layers
from quantpipe.pipeline.context import RunContext, SearchDecision
from quantpipe.pipeline.effort import EffortBudget, refuse_too_few_seconds
from quantpipe.pipeline.finish import RealizedRun, evaluate, realize
from quantpipe.pipeline.memory_estimate import warn_of_little_memory
from quantpipe.pipeline.precision import Decided, applied, decide, stored, why_not
from quantpipe.pipeline.profile import loaded_profile
from quantpipe.pipeline.recover import recover
from quantpipe.pipeline.recover_start import recover_or_start
from quantpipe.pipeline.refine import refine
from quantpipe.pipeline.replay import replayed_strategy, stored_strategy
from quantpipe.pipeline.search import SearchContext, judged, judged_by_report, search
from quantpipe.pipeline.train import refuse_untrainable
from quantpipe.types import ChoiceSpace, DiagnosisPart, PrecisionRecord, Profile, RunReport, Topology


class Diagnose(Protocol):
    """Find the faults of a result; None where it is good enough. A replay has no profile."""

    def __call__(
        self,
        context: RunContext,
        decision: SearchDecision,
        profile: Profile | None,
        report: RunReport,
        *,
        budget: EffortBudget,
    ) -> DiagnosisPart | None:
        """Return the diagnosis of `report`, within the time of `budget`."""


@dataclass(frozen=True, eq=False)
class Start:
    """Hold the inputs of the first stage: all of them are read and checked before anything is written."""

    replayed: SearchDecision | None
    search_context: SearchContext | None
    """None where nothing is searched in this run."""
    decided: PrecisionRecord | None
    """What an earlier run in this folder decided to stay in float, if anything is known of that."""
    stored: Profile | None
    loaded: Profile | None


class Steps:
    """Run the stages of a run one by one.

    `settings.stages` lists the stages of the run; the results of the others are read from the folder. `diagnose` finds
    the faults of a result that misses its objective.
    """

    def __init__(self, context: RunContext, diagnose: Diagnose) -> None:
        self.context, self._diagnosis = context, diagnose
        self._wanted = frozenset(context.settings.stages)

    def all(self) -> RunReport | None:
        """Return every stage that belongs to the run; the report, empty without evaluate.

        Raises AgreementError when simulation and realization differ and `verify=fail`, Interrupted after Ctrl-C.
        """
        _ = self.annotated
        if self._calibrates:
            _ = self.profile
        if self._start.search_context is not None:
            _ = self.found
        if not {"realize", "evaluate"} & self._wanted and self._start.replayed is None:
            self._judge_alone()
            return None
        _ = self.realized
        return self.report if "evaluate" in self._wanted else None

    @cached_property
    def annotated(self) -> tuple[Topology, ChoiceSpace]:
        """Return the topology and the choice space."""
        _, context = self._start, self.context
        integer = sum(context.topology.node_conds.values())
        context.console.stage(
            "annotate", f"{integer} of {len(context.graph.nodes)} nodes in integers, {len(context.space)} choices"
        )
        context.files.write_annotation(context.topology, context.space, context.annotated, context.chosen_from)
        return context.topology, context.space

    @cached_property
    def profile(self) -> Profile | None:
        """Return the statistics; None where the run needs none and the folder holds none."""
        _, start = self.annotated, self._start
        if start.replayed is not None:
            return None
        context = applied(self.context, start.decided)
        profile = calibrate(context, start.stored, start.loaded) if self._calibrates else start.stored
        if profile is not None:
            decide_layers(context, profile)
        return profile

    @cached_property
    def found(self) -> SearchDecision:
        """Return the strategy of the search; without a search, the one that is replayed or stored in the folder."""
        start, profile = self._start, self.profile
        if start.replayed is not None:
            return start.replayed
        if start.search_context is not None and profile is not None:
            decided = self._decided
            return search(decided.search_context, decided.candidates(), decided.record)
        return stored_strategy(self.context)

    @cached_property
    def _decided(self) -> Decided:
        """Return the nodes that stay in float, decided before the search."""
        start, profile = self._start, self.profile
        assert start.search_context is not None and profile is not None  # noqa: S101  (asked for where there is a search)
        if start.decided is None:
            return decide(self.context, start.search_context, profile).with_distinct_ranges()
        return Decided(
            applied(self.context, start.decided), start.search_context, profile, start.decided
        ).with_distinct_ranges()

    @cached_property
    def recovered(self) -> SearchDecision:
        """Return the strategy with the weights that recovery kept, and whether the target is met then."""
        found = self.found
        if self._start.replayed is not None:
            return found
        if self._start.search_context is None or self.profile is None:
            return judged_by_report(recover(self.context, found, self.profile))
        decided = self._decided
        context, search_context, profile = decided.context, decided.search_context, decided.profile
        better = (
            refine(context, found, search_context, profile)
            if context.settings.search.refine
            else recover_or_start(context, found, search_context, profile)
        )
        return judged(context, better, search_context.judging)

    @cached_property
    def realized(self) -> RealizedRun:
        """Return the integer model, in the folder."""
        return realize(self.context, self.recovered)

    @cached_property
    def report(self) -> RunReport:
        """Return the report of the evaluation; AgreementError when integers differ and `verify=fail`."""
        search_context = self._start.search_context
        seen = None if search_context is None else replace(search_context.reference, softness=None)
        return evaluate(self.realized, self.recovered, self.profile, seen, diagnose=self._diagnose)

    def _diagnose(self, report: RunReport, budget: EffortBudget) -> DiagnosisPart | None:
        """Return the diagnosis of the result; for a replay only its places, since a remedy would be another run's."""
        profile = self.profile if self.context.settings.command == "run" else None
        return self._diagnosis(self.context, self.recovered, profile, report, budget=budget)

    @property
    def _calibrates(self) -> bool:
        return bool(self._wanted & {"calibrate", "search"}) and self._start.replayed is None

    @cached_property
    def _start(self) -> Start:
        context, settings = self.context, self.context.settings
        self._refuse_another_run()
        if settings.command == "run" and {"search", "realize", "evaluate"} & self._wanted:
            refuse_untrainable(context)
        if "evaluate" in self._wanted:
            refuse_too_few_seconds(settings.effort, context.graph, context.inputs.evaluate)
        if {"calibrate", "search", "evaluate"} & self._wanted:
            warn_of_little_memory(context.graph, context.held, context.console)
        replayed = replayed_strategy(context) if settings.command == "replay" else None
        searches = "search" in self._wanted and replayed is None
        decided = stored(context) if searches else None
        search_context = SearchContext.of(applied(context, decided)) if searches else None
        if search_context is not None and (decided is not None or why_not(context) is not None):
            # Another search's log is rejected; where the choices are still to be decided, that comes later.
            search_context.log.read()
        known = context.files.read_profile(context.calibrated) if replayed is None else None
        needed = bool(self._wanted & {"calibrate", "search"}) and replayed is None and known is None
        loaded = (
            loaded_profile(settings, context.graph, context.variants.measured, context.estimator) if needed else None
        )
        context.files.look_over(*context.files.renewed)
        context.files.write_config(settings.config, context.origin("config", {}, ()))
        context.files.write_data(
            context.inputs.data_record(), context.origin("data", context.judged_on, ("dataset", "seed"))
        )
        return Start(replayed, search_context, decided, known, loaded)

    def _judge_alone(self) -> None:
        """Report whether the target is met in a run that ends with the search."""
        search_context = self._start.search_context
        if search_context is not None:
            judged(self.context, self.found, search_context.judging)

    def _refuse_another_run(self) -> None:
        """Reject a folder with artifacts of another model, data or configuration."""
        context = self.context
        made = {
            context.files.topology: context.annotated,
            context.files.stats: context.calibrated,
            context.files.recovered: context.recovered(""),
            context.files.model: context.realized(""),
            context.files.report: context.evaluated("", {}, "", {}),
        }
        for path, origin in made.items():
            context.files.refuse_other(path, origin)
