"""What is better: an order over scores, in two forms.

`least_cost_within_tolerance`: as cheap as possible while the value stays near the float model's.
`best_value_within_cost`: as good as possible while the cost stays under a limit.

`Score.value` is higher-is-better: the accuracy, or minus the KL divergence, or minus the mean squared error; so the
float model's value is its accuracy, or 0. KL to the float output ranks candidates best and needs no labels
(Spearman 0.92 to 0.97 against true accuracy, where accuracy on the same samples reaches 0.72 to 0.91).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from quantpipe.errors import ConfigError
from quantpipe.search.options import illegal, member, real
from quantpipe.types import Score

_SLACK = 1e-9
"""The round-off of `reference - tolerance` must not decide: 0.8 - 0.1 is more than 0.7 in binary."""


class Metric(StrEnum):
    """What `Score.value` is made of."""

    ACCURACY = "accuracy"
    KL = "kl"
    MSE = "mse"


class Form(StrEnum):
    LEAST_COST_WITHIN_TOLERANCE = "least_cost_within_tolerance"
    BEST_VALUE_WITHIN_COST = "best_value_within_cost"


class CostKind(StrEnum):
    """What `Score.cost` counts."""

    BITS = "bits"
    WEIGHT_BYTES = "weight_bytes"
    BOPS = "bops"
    CYCLES = "cycles"


@dataclass(frozen=True)
class Objective:
    """An order over scores. `metric` and `cost` say what the caller measures; only the log's origin depends on them.

    `tolerance` and `reference_value` are in units of the value, `cost_limit` in units of the cost.
    """

    metric: Metric = Metric.ACCURACY
    form: Form = Form.LEAST_COST_WITHIN_TOLERANCE
    tolerance: float = 0.01
    cost: CostKind = CostKind.BITS
    reference_value: float = 0.0
    cost_limit: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", member("objective.metric", self.metric, Metric))
        object.__setattr__(self, "form", member("objective.form", self.form, Form))
        object.__setattr__(self, "cost", member("objective.cost", self.cost, CostKind))
        object.__setattr__(self, "tolerance", real("objective.tolerance", self.tolerance, least=0.0))
        if self.cost_limit is not None:
            object.__setattr__(self, "cost_limit", real("objective.cost_limit", self.cost_limit, above=0.0))
        if self.form is Form.BEST_VALUE_WITHIN_COST and self.cost_limit is None:
            raise illegal("objective.cost_limit", None, f"a share or an amount: objective.form={self.form} needs it")
        if self.form is Form.LEAST_COST_WITHIN_TOLERANCE and self.cost_limit is not None:
            raise ConfigError(
                f"has no meaning with objective.form={self.form}; give null, or "
                f"objective.form={Form.BEST_VALUE_WITHIN_COST}",
                stage="search",
                where="objective.cost_limit",
            )

    @classmethod
    def from_config(
        cls,
        *,
        metric: str,
        form: str,
        tolerance: float,
        cost: str,
        cost_limit: float | None,
        float_accuracy: float | None = None,
        start_cost: float | None = None,
    ) -> Objective:
        """The objective of a conf/objective file.

        `float_accuracy` is asked for by the metric accuracy only (kl and mse of the float model are 0). A `cost_limit`
        of at most 1 is a share of `start_cost`, the cost of the most precise point; above 1 it is in units of the cost.
        """
        kind = member("objective.metric", metric, Metric)
        reference = 0.0
        if kind is Metric.ACCURACY:
            if float_accuracy is None:
                raise ConfigError(
                    "accuracy needs labelled samples; without labels give kl or mse",
                    stage="search",
                    where="objective.metric",
                )
            reference = float(float_accuracy)
        if cost_limit is not None and real("objective.cost_limit", cost_limit, above=0.0) <= 1.0:
            if start_cost is None:
                raise ValueError("a cost limit that is a share needs start_cost")
            cost_limit = cost_limit * start_cost
        return cls(
            metric=kind,
            form=member("objective.form", form, Form),
            tolerance=tolerance,
            cost=member("objective.cost", cost, CostKind),
            reference_value=reference,
            cost_limit=cost_limit,
        )

    def feasible(self, score: Score) -> bool:
        """Whether the score keeps the promise of the form (near enough, or cheap enough)."""
        if self.cost_limit is not None:
            return score.cost <= self.cost_limit * (1 + _SLACK)
        return _value(score) >= self.reference_value - self.tolerance - _SLACK

    def key(self, score: Score) -> tuple[bool, float, float]:
        """A tuple that compares as the objective does: greater is better. A NaN value is the worst value."""
        feasible = self.feasible(score)
        value, thrift = _value(score), -score.cost
        cost_first = feasible == (self.form is Form.LEAST_COST_WITHIN_TOLERANCE)
        return (feasible, thrift, value) if cost_first else (feasible, value, thrift)

    def better(self, a: Score, b: Score) -> bool:
        """Whether `a` is strictly better than `b`: of equals the one found first stays."""
        return self.key(a) > self.key(b)

    def energy(self, score: Score, start: Score) -> float:
        """The order as one number in [0, 2], lower is better, for algorithms that need distances.

        Feasible scores lie in [0, 1], infeasible ones in [1, 2]. Costs count as shares of the most precise point's
        cost (`start`); values, which have no natural unit, as x / (1 + x) of multiples x of the tolerance.
        """
        unit = self.tolerance or 1.0
        loss = (self.reference_value - _value(score)) / unit
        if self.cost_limit is not None:
            if self.feasible(score):
                return (1 + _squash(loss)) / 2
            return 1 + max(0.0, _squash(score.cost / self.cost_limit - 1))
        if self.feasible(score):
            return min(1.0, score.cost / start.cost) if start.cost > 0 else 1.0
        return 1 + max(0.0, _squash(loss - self.tolerance / unit))

    def __str__(self) -> str:
        limit = "none" if self.cost_limit is None else repr(self.cost_limit)
        return (
            f"{self.form}: metric={self.metric} reference={self.reference_value!r} tolerance={self.tolerance!r} "
            f"cost={self.cost} limit={limit}"
        )


def _value(score: Score) -> float:
    return -math.inf if math.isnan(score.value) else score.value


def _squash(x: float) -> float:
    """The real line onto [-1, 1], keeping the order."""
    return math.copysign(1.0, x) if math.isinf(x) else x / (1 + abs(x))
