"""What is better: an order over scores, in four forms.

`least_cost_within_tolerance`, which `auto` comes to: the lowest loss until the value is near the float model's. After
that the lowest cost that keeps it near; of equal costs the lowest loss.
`best_value_within_cost`: as good as possible while the cost stays under a limit.
`weighted`: the largest value - weight · cost / unit, the unit being the cost of the most precise point.
`pareto`: all that nothing else beats in both; a rule picks one afterwards (`search/pareto.py`). Searches that need one
order take the weighted one, with the tolerance as weight: so much value is worth the whole cost.

`Score.value` is higher-is-better: the accuracy, or minus the KL divergence, or minus the mean squared error, or minus
the largest loss of all outputs (auto), or the average precision of a detector against the float model's detections, or
what a function of the user's gives; so the float model's value is its accuracy, or 0, or 1, or what that function gives
it. KL to
the float output ranks candidates best and needs no labels (Spearman 0.92 to 0.97 against true accuracy, where accuracy
on the same samples reaches 0.72 to 0.91).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from quantpipe.errors import ConfigError, nearest
from quantpipe.option_checks import flag, illegal, integer, number, word_of
from quantpipe.types import Score

_SLACK = 1e-9
"""The round-off of `reference - tolerance` must not decide: 0.8 - 0.1 is more than 0.7 in binary."""


_COST_STEPS = 1 << 24
"""Costs that `Objective.energy` distinguishes; a float64 has 29 bits left for the loss."""


class Metric(StrEnum):
    """Name what `Score.value` is made of."""

    AUTO = "auto"
    ACCURACY = "accuracy"
    KL = "kl"
    MSE = "mse"
    DETECTIONS = "detections"
    CALLABLE = "callable"


LOSSES = (Metric.AUTO, Metric.KL, Metric.MSE)
"""Whose value is a loss with a minus: the float model's is 0."""


class ObjectiveForm(StrEnum):
    """Name what a search looks for: lowest cost, best value, a weighted sum of both, or a front."""

    LEAST_COST_WITHIN_TOLERANCE = "least_cost_within_tolerance"
    BEST_VALUE_WITHIN_COST = "best_value_within_cost"
    WEIGHTED = "weighted"
    PARETO = "pareto"


AUTO_FORM = "auto"
"""How `objective.form` leaves it to the other keys what is looked for."""


def form_of(asked: str, cost_limit: float | None = None, weight: float | None = None) -> str:
    """Return the form that `objective.form` names.

    `auto` is the form that a given cost limit or weight needs, else `least_cost_within_tolerance`.
    """
    if asked != AUTO_FORM:
        return asked
    if cost_limit is not None:
        return ObjectiveForm.BEST_VALUE_WITHIN_COST.value
    return (ObjectiveForm.LEAST_COST_WITHIN_TOLERANCE if weight is None else ObjectiveForm.WEIGHTED).value


class CostKind(StrEnum):
    """Name what `Score.cost` counts."""

    BITS = "bits"
    WEIGHT_BYTES = "weight_bytes"
    STORED_BYTES = "stored_bytes"
    BOPS = "bops"
    CYCLES = "cycles"
    PEAK_ACTIVATION_BYTES = "peak_activation_bytes"
    LATENCY = "latency"
    PREDICTED_LATENCY = "predicted_latency"
    ENERGY = "energy"


class Over(StrEnum):
    """Name the samples whose mean is a candidate's value: all, the worst tenth, or the worst group."""

    MEAN = "mean"
    WORST_DECILE = "worst_decile"
    WORST_GROUP = "worst_group"


OWN_COST = "auto"
"""How `objective.cost` names the cost that the hardware has of its own; whoever knows the hardware puts it there."""


@dataclass(frozen=True)
class ObjectiveOptions:
    """A conf/objective file as it was read, nothing checked yet: `Objective.of` does that."""

    metric: str
    form: str
    tolerance: float
    cost: str
    cost_limit: float | None
    weight: float | None = None
    target: str | None = None
    latency_runs: int = 20
    latency_seconds: float = 2.0
    outputs: Mapping[str, float] | None = None
    all_outputs: bool = False
    over: str = "mean"


@dataclass(frozen=True)
class FloatFigures:
    """Hold what an objective compares with, as far as it is known.

    Attributes:
        accuracy: The float model's; only the metric accuracy asks for it.
        value: The float model's by a callable (its kl and mse are 0).
        start_cost: The cost of the most precise point, in units of the cost.
    """

    accuracy: float | None = None
    value: float | None = None
    start_cost: float | None = None


@dataclass(frozen=True)
class Objective:
    """Define an order over scores.

    `metric`, `target`, `outputs` (their weights), `all_outputs` and `cost` say what the caller measures; only the log's
    origin depends on them. `tolerance`, `weight` and `reference_value` are in units of the value, `cost_limit` and
    `cost_unit` in units of the cost.
    """

    metric: Metric = Metric.ACCURACY
    form: ObjectiveForm = ObjectiveForm.LEAST_COST_WITHIN_TOLERANCE
    tolerance: float = 0.01
    cost: CostKind = CostKind.BITS
    reference_value: float = 0.0
    cost_limit: float | None = None
    weight: float | None = None
    cost_unit: float = 1.0
    target: str | None = None
    latency_runs: int = 20
    latency_seconds: float = 2.0
    outputs: tuple[tuple[str, float], ...] = ()
    all_outputs: bool = False
    over: Over = Over.MEAN

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", word_of(Metric, self.metric, "objective.metric"))
        object.__setattr__(self, "form", word_of(ObjectiveForm, self.form, "objective.form"))
        object.__setattr__(self, "cost", word_of(CostKind, self.cost, "objective.cost"))
        object.__setattr__(self, "over", word_of(Over, self.over, "objective.over"))
        if self.over is not Over.MEAN and self.metric in (Metric.CALLABLE, Metric.DETECTIONS):
            raise _meaningless("over", f"objective.metric={self.metric}", "objective.metric=auto", "mean")
        if self.over is Over.WORST_DECILE and self.metric is Metric.ACCURACY:
            raise _meaningless("over", "objective.metric=accuracy", "objective.metric=kl", "mean or worst_group")
        object.__setattr__(self, "tolerance", number("objective.tolerance", self.tolerance, least=0.0))
        if self.cost_limit is not None:
            object.__setattr__(self, "cost_limit", number("objective.cost_limit", self.cost_limit, above=0.0))
        if self.weight is not None:
            object.__setattr__(self, "weight", number("objective.weight", self.weight, least=0.0))
        object.__setattr__(
            self, "cost_unit", number("cost of the most precise point", self.cost_unit, least=0.0) or 1.0
        )
        integer("objective.latency_runs", self.latency_runs, least=5)
        number("objective.latency_seconds", self.latency_seconds, above=0.0)
        needed = {
            "cost_limit": (ObjectiveForm.BEST_VALUE_WITHIN_COST, "a share or an amount"),
            "weight": (
                ObjectiveForm.WEIGHTED,
                "what the cost of the most precise point is worth, in units of the metric",
            ),
        }
        for name, (form, legal) in needed.items():
            if self.form is form and getattr(self, name) is None:
                raise illegal(f"objective.{name}", None, f"{legal}: objective.form={form} needs it")
            if self.form is not form and getattr(self, name) is not None:
                raise _meaningless(name, f"objective.form={self.form}", f"objective.form={form}")
        if self.metric is Metric.CALLABLE and not self.target:
            raise illegal(
                "objective.target", self.target, "package.module:function: objective.metric=callable needs it"
            )
        if self.metric is not Metric.CALLABLE and self.target is not None:
            raise _meaningless("target", f"objective.metric={self.metric}", "objective.metric=callable")
        flag("objective.all_outputs", self.all_outputs)
        if self.metric is not Metric.CALLABLE and self.all_outputs:
            raise _meaningless("all_outputs", f"objective.metric={self.metric}", "objective.metric=callable", "false")

    @classmethod
    def of(cls, options: ObjectiveOptions, figures: FloatFigures = FloatFigures()) -> Objective:
        """Return the objective of a conf/objective file.

        A `cost_limit` of at most 1 is a share of `start_cost`; above 1 it is in units of the cost. A latency counts in
        float models: it is a ratio already, and its unit is 1.
        """
        kind = word_of(Metric, options.metric, "objective.metric")
        reference = 0.0
        if kind is Metric.ACCURACY:
            if figures.accuracy is None:
                raise ConfigError(
                    "accuracy needs labelled samples; without labels give kl or mse",
                    stage="search",
                    where="objective.metric",
                )
            reference = float(figures.accuracy)
        if kind is Metric.DETECTIONS:
            reference = 1.0
        if kind is Metric.CALLABLE:
            reference = 0.0 if figures.value is None else float(figures.value)
        start_cost, cost_limit = figures.start_cost, options.cost_limit
        measured = cost_kind(options.cost) is CostKind.LATENCY
        if cost_limit is not None and not measured and number("objective.cost_limit", cost_limit, above=0.0) <= 1.0:
            if start_cost is None:
                raise ValueError("a cost limit that is a share needs start_cost")
            cost_limit = cost_limit * start_cost
        return cls(
            metric=kind,
            form=word_of(ObjectiveForm, form_of(options.form, cost_limit, options.weight), "objective.form"),
            tolerance=options.tolerance,
            cost=cost_kind(options.cost),
            reference_value=reference,
            cost_limit=cost_limit,
            weight=options.weight,
            cost_unit=1.0 if measured or start_cost is None else start_cost,
            target=options.target,
            latency_runs=options.latency_runs,
            latency_seconds=options.latency_seconds,
            outputs=weights(options.outputs),
            all_outputs=options.all_outputs,
            over=word_of(Over, options.over, "objective.over"),
        )

    @property
    def open_ended(self) -> bool:
        """Return whether every point is legal, because cost and value are weighed against each other."""
        return self.form in (ObjectiveForm.WEIGHTED, ObjectiveForm.PARETO)

    @property
    def bounded(self) -> bool:
        """Return whether some of the samples bound the value, so that a candidate can be given up early.

        Nothing is known of a user's function, precision is an average over all samples at once, and where cost and
        value are weighed every exact score is of use.
        """
        return not self.open_ended and self.metric not in (Metric.CALLABLE, Metric.DETECTIONS)

    @property
    def trade(self) -> float:
        """Return what the cost of the most precise point is worth, in units of the value (of open-ended forms)."""
        return (self.tolerance or 1.0) if self.weight is None else self.weight

    def utility(self, score: Score) -> float:
        """Return value - trade · cost / unit, which open-ended forms maximize."""
        return _value(score.value) - self.trade * score.cost / self.cost_unit

    def feasible(self, score: Score) -> bool:
        """Return whether the score keeps the promise of the form (near enough, or cheap enough, or a number at all)."""
        if self.open_ended:
            return not math.isnan(score.value)
        if self.cost_limit is not None:
            return score.cost <= self.cost_limit * (1 + _SLACK)
        return reaches(score.value, self.reference_value - self.tolerance)

    def key(self, score: Score) -> tuple[bool, float, float]:
        """Return a tuple that compares as the objective does: greater is better.

        A NaN value is the worst value.
        """
        feasible = self.feasible(score)
        value, thrift = _value(score.compared), -score.cost
        if self.open_ended:
            return (feasible, self.utility(score), thrift)
        cost_first = feasible == (self.form is ObjectiveForm.LEAST_COST_WITHIN_TOLERANCE)
        return (feasible, thrift, value) if cost_first else (feasible, value, thrift)

    def better(self, a: Score, b: Score) -> bool:
        """Return whether `a` is strictly better than `b`: of equals the one found first stays."""
        if (a.soft is None) != (b.soft is None):  # one of them was measured on other samples, or by a version before
            a, b = replace(a, metrics=()), replace(b, metrics=())
        return self.key(a) > self.key(b)

    def energy(self, score: Score, start: Score) -> float:
        """Return the order as one number in [0, 2], lower is better, for algorithms that need distances.

        Feasible scores are in [0, 1], infeasible ones in [1, 2]. A cost c counts as c / (c + the cost of `start`);
        values, which have no natural unit, as x / (1 + x) of multiples x of the tolerance. Among feasible scores of
        equal cost (to one part in `_COST_STEPS`) the smaller loss has the lower energy, as in `key`.
        """
        if self.open_ended:
            loss = (self.reference_value - self.utility(score)) / (self.trade or 1.0)
            return (1 + _squash(loss)) / 2 if self.feasible(score) else 2.0
        unit = self.tolerance or 1.0
        loss = (self.reference_value - _value(score.compared)) / unit
        if self.cost_limit is not None:
            if self.feasible(score):
                return (1 + _squash(loss)) / 2
            return 1 + max(0.0, _squash(score.cost / self.cost_limit - 1))
        if self.feasible(score):
            step = round(_COST_STEPS * score.cost / (score.cost + (start.cost or 1.0)))
            return (step + (1 + _squash(loss)) / 2) / (_COST_STEPS + 1)
        return 1 + max(0.0, _squash(loss - self.tolerance / unit))

    def reaches(self, score: Score, target: float) -> bool:
        """Return whether the score is so good that a search may stop.

        `target` is the cost of a feasible point (a share of the most precise point's, up to 1) where cost is what is
        minimized; else an accuracy or a callable's value to reach, or a KL or a squared error to stay under.
        """
        if not self.feasible(score):
            return False
        if self.form is ObjectiveForm.LEAST_COST_WITHIN_TOLERANCE:
            return score.cost <= (target * self.cost_unit if target <= 1 else target) * (1 + _SLACK)
        if self.form is ObjectiveForm.WEIGHTED:
            return self.utility(score) >= target
        return score.value >= (-target if self.metric in LOSSES else target) - _SLACK

    def __str__(self) -> str:
        limit = "none" if self.cost_limit is None else repr(self.cost_limit)
        text = (
            f"{self.form}: metric={self.metric} reference={self.reference_value!r} tolerance={self.tolerance!r} "
            f"cost={self.cost} limit={limit}"
        )
        text += f" target={self.target}" if self.target is not None else ""
        text += f" over={self.over}" if self.over is not Over.MEAN else ""
        text += " all outputs" if self.all_outputs else ""
        text += f" outputs={dict(self.outputs)!r}" if self.outputs else ""
        if self.cost is CostKind.LATENCY:
            text += f" runs={self.latency_runs} seconds={self.latency_seconds!r}"
        return text + (f" weight={self.weight!r} unit={self.cost_unit!r}" if self.open_ended else "")


def cost_kind(name: str) -> CostKind:
    """Return the cost of a name. ConfigError for other names."""
    names = [OWN_COST, *(kind.value for kind in CostKind)]
    if name not in names[1:]:
        raise illegal("objective.cost", name, "one of " + ", ".join(names) + nearest(str(name), names))
    return CostKind(name)


def weights(given: Mapping[str, float] | None) -> tuple[tuple[str, float], ...]:
    """Return the weights of outputs (`objective.outputs`), by name.

    Raises ConfigError for other values.
    """
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise illegal("objective.outputs", given, "null, or weights by output such as {boxes: 2, scores: 1}")
    return tuple((str(name), number(f"objective.outputs: {name}", value, least=0.0)) for name, value in given.items())


def _meaningless(name: str, here: str, there: str, idle: str = "null") -> ConfigError:
    return ConfigError(
        f"has no meaning with {here}; give {idle}, or {there}", stage="search", where=f"objective.{name}"
    )


def reaches(value: float, least: float) -> bool:
    """Return whether a value is at least so great, up to round-off; NaN is the worst value."""
    return value >= least - _SLACK


def _value(found: float) -> float:
    return -math.inf if math.isnan(found) else found


def _squash(x: float) -> float:
    """The real line onto [-1, 1], keeping the order."""
    return math.copysign(1.0, x) if math.isinf(x) else x / (1 + abs(x))
