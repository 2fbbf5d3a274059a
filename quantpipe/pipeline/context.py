"""The state that all stages of one run share, and the origin of each of its artifacts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quantpipe.annotate.choices import raised_choice, steps_offered
from quantpipe.annotate.limits import left_out, pinned
from quantpipe.annotate.range_choices import ESTIMATED, WHOLE, range_choice, range_key
from quantpipe.annotate.variants import Topologies
from quantpipe.artifacts import Origin, digest_json
from quantpipe.calibrate.decided import refuse_as_rule, with_decisions
from quantpipe.calibrate.estimators import Estimator
from quantpipe.calibrate.offered_ranges import RangeOffer, distinct
from quantpipe.calibrate.other_estimators import other_estimators
from quantpipe.calibrate.ruled import percents_of, ruled
from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.graph.view import Graph
from quantpipe.pipeline.effort_options import EffortOptions
from quantpipe.pipeline.inputs import Inputs
from quantpipe.pipeline.memory_estimate import HeldSamples
from quantpipe.pipeline.origin_parts import KINDS, part
from quantpipe.pipeline.profile import digest_of_profile
from quantpipe.pipeline.run_folder import RunFolder
from quantpipe.pipeline.search_start import SearchStart, read_start
from quantpipe.pipeline.settings import Console, Settings
from quantpipe.pipeline.strategy_file import strategy_payload
from quantpipe.plan import NO_OVERRIDES, Overrides, Problem
from quantpipe.realize.genai import read_config
from quantpipe.recover import rescale_channels
from quantpipe.types import (
    Choice,
    ChoiceSpace,
    LeftOutPart,
    Measured,
    MoreResults,
    OptionValue,
    Profile,
    RecoveryRecord,
    RectifiedRow,
    ResultsPart,
    SearchReport,
    Strategy,
    StrategyFile,
    ThresholdRuleRow,
    Topology,
)

FORMAT = 2
"""Of the origins of a run: 1 told the configuration as it was written, 2 tells the typed settings."""

ANNOTATE = ("hardware", "schema", "annotate")
"""The parts of the settings that the topology follows from."""

SEARCH = (KINDS, "choices", "threshold", "precision", "search", "objective", "detections", "pick", "seed")
"""What the strategy follows from besides."""


@dataclass(frozen=True, eq=False)
class SearchDecision:
    """Hold the result of the search stage: the strategy, and how it was found (nothing for a replay)."""

    strategy: Strategy
    report: SearchReport
    rectified: list[RectifiedRow]
    overrides: Overrides = NO_OVERRIDES
    recovery: RecoveryRecord = field(default_factory=lambda: RecoveryRecord())


@dataclass(frozen=True, eq=False)
class RunContext:
    """One run over its folder: what it was asked for, and what follows from that alone."""

    settings: Settings
    inputs: Inputs
    console: Console
    files: RunFolder
    variants: Topologies
    topology: Topology
    """That of the strategy, once there is one; before, the default."""
    space: ChoiceSpace
    whole: ChoiceSpace
    """The space before the user's own limits."""
    estimator: Estimator
    """The threshold option's, with what rules give single tensors."""
    rules: list[ThresholdRuleRow] = field(default_factory=list)
    """What each rule decides."""
    left_out: LeftOutPart = field(default_factory=LeftOutPart)
    """How many options of how many choices the space is without, as the device gains nothing from them."""
    start: SearchStart | None = None
    """What the search begins with beside the most precise point."""
    offered: ChoiceSpace | None = None
    """The space before ranges that come to the same scale were left out; None: none was."""
    others: dict[str, Estimator] = field(default_factory=dict)
    """Option of a range -> the estimator that it names, where `annotate.choices` has `estimators`."""
    profile: str | None = None
    """Digest of the file that statistics are loaded from, if they are."""

    @classmethod
    def of(cls, settings: Settings, inputs: Inputs, console: Console) -> RunContext:
        """Return the context of a run: its topologies, its choice space and its folder."""
        variants = Topologies(
            inputs.graph, settings.spec, settings.schema, settings.annotate, forms=settings.search.weights == "nearest"
        )
        estimator, rules = ruled(settings.estimator, settings.rules, inputs.graph, variants.reference)
        refuse_as_rule(settings.rules)
        estimator = with_decisions(estimator, settings.estimator)
        percents = percents_of(estimator, variants.reference.groups)
        ranges = range_offer(settings, estimator, percents).options(variants.reference)
        whole, every = variants.space(percents, ranges), variants.space(percents, ranges, every=True)
        profile = digest_of_profile(settings.profile) if settings.profile is not None else None
        space = settings.limits.narrowed(whole, variants.space(percents, ranges, every=True, raised=True))
        begin = None
        if settings.search.start is not None and "search" in settings.stages and settings.command == "run":
            begin = read_start(settings.search.start, settings.folder, space)
            space = replace(space, begin=begin.points)
        files = RunFolder(settings.folder, console.warn)
        without = left_out(every, whole, space)
        context = cls(settings, inputs, console, files, variants, variants.base, space, whole, estimator)
        context.others.update(other_estimators(settings.annotate.choices, settings.estimator))
        return replace(context, left_out=without, start=begin, profile=profile, rules=rules)

    def with_topology_of(self, strategy: Strategy) -> RunContext:
        """Return the same run with the topology of a strategy."""
        return replace(self, topology=self.variants.at(strategy.structure))

    def offering(
        self, floats: Collection[str], wholes: Collection[str], raised: Collection[str] = (), *, decided: bool
    ) -> RunContext:
        """Return the same run with further choices.

        `floats` are nodes (of `variants.may_float` and `may_host`) that may stay in float. `wholes` are keys of scale
        groups whose range may cover everything that calibration saw. `raised` are scale groups and weights that may
        have the device's highest bits. With `decided` each choice has that one option; else the default, integer and
        estimated, precedes it.
        """
        settings = self.settings
        variants, nodes, groups = self.variants, frozenset(floats), frozenset(wholes)
        if nodes:
            forms = settings.search.weights == "nearest"
            variants = Topologies(
                self.graph, settings.spec, settings.schema, settings.annotate, floatable=nodes, forms=forms
            )
        known = {choice.key for choice in self.space}
        added = [choice for choice in variants.choices if choice.key not in known]
        added += [
            range_choice(g)
            for g in variants.reference.groups
            if g.key in groups and g.fixed is None and range_key(g.key) not in known
        ]
        wider = [raised_choice(site) for site in variants.reference.raisable if site.key in raised]
        if decided:
            added, wider = ([replace(c, options=c.options[1:]) for c in found] for found in (added, wider))
        wider += [_with_whole(c, first=decided) for c in self.space if c.key in {range_key(key) for key in groups}]
        return replace(
            self,
            variants=variants,
            topology=variants.base,
            space=self.space.with_options(wider).extended(added),
            whole=ChoiceSpace((*self.whole.with_options(wider), *added)),
        )

    def with_distinct_ranges(self, profile: Profile) -> RunContext:
        """Return the same run without ranges that come to the same scale as another one, by these statistics."""
        table = self.thresholds(profile)
        space = distinct(self.space, self.variants.reference, table, self.settings.schema)
        offered = self.offered or self.space
        return replace(self, space=space, offered=offered, whole=_with_options_of(self.whole, self.space, space))

    @property
    def problem(self) -> Problem:
        """Return the network, the device and the schema that plans are made for."""
        return Problem(self.graph, self.topology, self.settings.spec, self.settings.schema)

    @property
    def ranges(self) -> Mapping[str, Sequence[str]]:
        """Return which ranges the search may give, by key of the scale group or weight."""
        return range_offer(self.settings, self.estimator, self.percents).options(self.variants.reference)

    @property
    def branches(self) -> Topologies | None:
        """Return the topologies that the search may choose among; None where there is one."""
        return self.variants if self.variants.choices else None

    def thresholds(self, profile: Profile) -> ThresholdTable:
        """Return the ranges and thresholds that the estimators of this run give, by statistics of its samples."""
        table = self._table(profile, self.estimator)
        table.others |= {option: self._table(profile, estimator) for option, estimator in self.others.items()}
        return table

    def _table(self, profile: Profile, estimator: Estimator) -> ThresholdTable:
        return ThresholdTable(
            self.graph,
            self.topology,
            self.settings.schema,
            profile,
            estimator=estimator,
            weight_method=self.settings.weight_method,
            variants=self.branches,
        )

    @property
    def percents(self) -> Mapping[str, Sequence[int]]:
        """Return the percentiles to which the search may clip ranges, by key of the scale group."""
        return percents_of(self.estimator, self.variants.reference.groups)

    @property
    def pinned(self) -> dict[str, OptionValue]:
        """Return choices that the user left with one option."""
        return pinned(self.whole, self.space)

    @property
    def graph(self) -> Graph:
        """Return the clean model."""
        return self.inputs.graph

    def recovered_network(self, overrides: Overrides) -> RunContext:
        """Return the same run on the network whose channels recovery has put in other units.

        That network computes what the model does.
        """
        if not overrides.channels and not overrides.rotations:
            return self
        graph, topology = rescale_channels(self.graph, self.topology, overrides.channels, overrides.rotations)
        return replace(self, inputs=replace(self.inputs, graph=graph), topology=topology)

    @property
    def held(self) -> HeldSamples:
        """Return the samples whose tensors the run holds; recovery counts even if only a missed objective starts it."""
        settings, inputs = self.settings, self.inputs
        fitted = len(inputs.calibrate) if settings.recover.steps else 0
        return HeldSamples(len(inputs.evaluate), fitted, settings.calibrate.memory_mb)

    def origin(self, kind: str, inputs: Mapping[str, str], keys: tuple[str, ...]) -> Origin:
        """Return the origin of an artifact.

        It is made from the model, from `inputs` (digests by name), and by the parts of the settings at `keys`.
        """
        config = {key: part(self.settings, key) for key in keys}
        if self.graph.imported is not None and "annotate" in keys:
            config["import"] = {"keep": self.settings.keep.value}
        return Origin(kind, {"model": self.graph.model_hash, **inputs}, config, FORMAT)

    @property
    def annotated(self) -> Origin:
        """Return the origin of the annotation."""
        return self.origin("annotate", {}, ANNOTATE)

    @property
    def chosen_from(self) -> Origin:
        """Return the origin of the search space.

        The threshold option may add choices to what the topology has, and the user may limit it.
        """
        keys = (*ANNOTATE, "threshold") if self.percents else ANNOTATE
        return self.origin("annotate", {}, (*keys, KINDS, "choices"))

    @property
    def calibrated(self) -> Origin:
        """Return the origin of the statistics."""
        statistics = {"profile": self.profile} if self.profile else {"calibrate_data": self.inputs.calibrate.digest}
        return self.origin("calibrate", statistics, ANNOTATE)

    @property
    def searched(self) -> Origin:
        """Return the origin of the strategy."""
        begin = {} if self.start is None else self.start.origin
        return self.origin("search", self.fitted_on | begin, (*ANNOTATE, *SEARCH))

    def recovered(self, strategy: str) -> Origin:
        """Return the origin of the recovered weights; `strategy` is a digest."""
        start = {} if self.settings.search.weights == "nearest" else {"start": self.settings.search.weights}
        own = {"metric": self._metric} if self.settings.value_of is not None else {}
        inputs = {"strategy": strategy} | self.fitted_on | start | self.judged_on | own
        # Steps that change channels estimate ranges anew.
        ranges = {"threshold": digest_json(part(self.settings, "threshold"))}
        ranges |= {"profile": self.profile} if self.profile else {}
        trains = self.settings.train.active
        inputs |= {"train_data": self.inputs.training.digest} if trains else {}
        keys = (*ANNOTATE, "recover", *(("train",) if trains else ()), "seed")
        found = self.origin("recover", inputs | ranges, keys)
        # What it divides is named by the samples' digests; where it divides nothing it decides nothing.
        # `when` decides whether there is recovery. Unless it is `always`, the objective decides how far recovery goes.
        idle = ("holdout",) if self.settings.recovers_if_needed else ("holdout", "when")
        config = {**found.config, "recover": {k: v for k, v in found.config["recover"].items() if k not in idle}}
        aim = {"aim": digest_json(self.settings.objective)} if self.settings.recovers_if_needed else {}
        passes = self.settings.effort.recover_passes
        limit = {} if passes == EffortOptions.recover_passes else {"passes": f"{passes:g}"}
        return replace(found, inputs={**found.inputs, **aim, **limit}, config=config)

    def realized(self, strategy: str) -> Origin:
        """Return the origin of the realized model; `strategy` is a digest."""
        given = read_config(self.settings.model)
        carried = {} if given is None else {"genai_config": digest_json(given)}
        return self.origin("realize", {"strategy": strategy, **carried}, (*ANNOTATE, "realize"))

    def evaluated(
        self, strategy: str, recovery: Mapping[str, Any], model_file: str, search: Mapping[str, Any]
    ) -> Origin:
        """Return the origin of the report.

        `strategy` and `model_file` are digests of the strategy and of the realized model in the folder. `recovery` and
        `search` are their records, which the report shows also where no step was kept, or nothing better was found.
        """
        made_from = {"strategy": strategy, "evaluate_data": self.inputs.evaluate.digest, "model_file": model_file}
        made_from |= {"recovery": digest_json(recovery)} if recovery else {}
        if (count := search.get("evaluations", 1)) > 1:
            made_from |= {"search": f"{count} evaluations, {search.get('stopped')}"}
        # What the report compares losses by, and with: beside the strategy, which may be another search's.
        compared = {"search_data": self.inputs.search.digest, "metric": self._metric}
        keys = (*ANNOTATE, "realize", "evaluate", "detections")
        default = self.settings.effort == EffortOptions()  # as in folders from before there was this option
        return self.origin("evaluate", made_from | compared, keys if default else (*keys, "effort"))

    @property
    def _metric(self) -> str:
        objective = self.settings.objective
        given = {name: objective[name] for name in ("outputs", "all_outputs") if objective.get(name)}
        return digest_json({name: objective.get(name) for name in ("metric", "target")} | given)

    @property
    def judged_on(self) -> dict[str, str]:
        """Return the samples that judge recovery, if they differ from the samples of the search."""
        return {} if self.inputs.aside is None else {"judge_data": self.inputs.aside.digest}

    @property
    def fitted_on(self) -> dict[str, str]:
        """Return the digests of the samples that decisions may use.

        These are the samples, the statistics where they come from a file, and the output that counts where it is not
        the first.
        """
        samples = {"calibrate_data": self.inputs.calibrate.digest, "search_data": self.inputs.search.digest}
        another = self.inputs.output != self.graph.outputs[0].name
        return (
            samples
            | ({"profile": self.profile} if self.profile else {})
            | ({"output": self.inputs.output} if another else {})
        )

    def write_strategy(self, decision: SearchDecision, measured: Measured, origin: Origin | None) -> None:
        """Write strategy.json; `measured` is what evaluation adds to its results.

        `origin` None: the origin of the existing file, whose results are being completed.
        """
        payload = self.strategy_payload(decision, {"recover": decision.recovery, **measured})
        self.files.write_strategy(payload, origin or self.files.strategy_origin(self.graph.model_hash))

    def strategy_payload(self, decision: SearchDecision, more: MoreResults) -> StrategyFile:
        """Return the content of a strategy's file; `more`: results in addition to how it was found."""
        topology = self.variants.at(decision.strategy.structure)
        results: ResultsPart = {"search": decision.report, "rectified": decision.rectified, **more}
        spec, schema = self.settings.spec, self.settings.schema
        return strategy_payload(
            self.graph.model_hash, spec, schema, topology, strategy=decision.strategy, results=results
        )


def range_offer(settings: Settings, estimator: Estimator, percents: Collection[str]) -> RangeOffer:
    """Return what decides which ranges are offered; `percents`: groups whose range the search clips already."""
    options = settings.annotate
    return RangeOffer(options.choices, settings.schema, estimator, percents, len(steps_offered(options)) > 1)


def _with_options_of(whole: ChoiceSpace, before: ChoiceSpace, after: ChoiceSpace) -> ChoiceSpace:
    """The space before the user's limits, without the options that were left out of the limited space."""
    lost = {b.key: {*b.options} - {*a.options} for b, a in zip(before, after, strict=True) if b.options != a.options}
    return whole.with_options(
        [replace(c, options=tuple(o for o in c.options if o not in lost[c.key])) for c in whole if c.key in lost]
    )


def _with_whole(choice: Choice, *, first: bool) -> Choice:
    """A choice of a range with the whole range first, or directly after the estimated range."""
    others = tuple(option for option in choice.options if option not in (ESTIMATED, WHOLE))
    begin = (WHOLE, ESTIMATED) if first else (ESTIMATED, WHOLE)
    return replace(choice, options=(*begin, *others))
