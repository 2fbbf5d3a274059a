"""The order over scores, its energy, and its configuration."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantpipe.errors import ConfigError
from quantpipe.search import FloatFigures, Metric, Objective, ObjectiveForm, ObjectiveOptions
from quantpipe.types import Score

CHEAPEST = Objective(reference_value=0.9, tolerance=0.01)
BEST = Objective(form=ObjectiveForm.BEST_VALUE_WITHIN_COST, cost_limit=10.0)
WEIGHTED = Objective(form=ObjectiveForm.WEIGHTED, reference_value=0.9, weight=0.2, cost_unit=30.0)
PARETO = Objective(form=ObjectiveForm.PARETO, reference_value=0.9, cost_unit=30.0)
CONFIG = {"metric": "kl", "form": "least_cost_within_tolerance", "tolerance": 0.02, "cost": "bits", "cost_limit": None}


def ranked(objective: Objective, *scores: Score) -> bool:
    return all(objective.better(a, b) and not objective.better(b, a) for a, b in itertools.pairwise(scores))


def test_least_cost_within_tolerance() -> None:
    assert ranked(
        CHEAPEST,
        Score(0.89, 4),
        Score(0.95, 5),  # dearer: a higher value is no help
        Score(0.89, 5),  # same cost, lower value
        Score(0.88, 9),  # infeasible: the higher value first
        Score(0.87, 1),
        Score(0.87, 2),
        Score(math.nan, 0),
    )
    assert Objective(reference_value=0.8, tolerance=0.1).feasible(Score(0.7, 1)), "in spite of round-off"
    assert not CHEAPEST.better(Score(0.9, 4), Score(0.9, 4)), "of equals the first one stays"


def test_best_value_within_cost() -> None:
    assert ranked(
        BEST,
        Score(0.9, 10),
        Score(0.8, 3),
        Score(0.8, 4),
        Score(math.nan, 3),
        Score(0.7, 11),  # too dear: the cheaper first
        Score(0.9, 12),
        Score(0.8, 12),
    )


def test_weighted() -> None:
    """0.2 of value is worth 30 of cost, so 0.01 is worth 1.5."""
    assert ranked(WEIGHTED, Score(0.9, 3), Score(0.9, 4), Score(0.91, 6), Score(0.9, 30), Score(math.nan, 0))


def test_a_target_is_a_cost_or_a_value() -> None:
    cost = Objective(reference_value=0.9, tolerance=0.01, cost_unit=20.0)
    assert cost.reaches(Score(0.9, 8.0), 0.4) and not cost.reaches(Score(0.9, 8.1), 0.4), "a share of 20"
    assert cost.reaches(Score(0.9, 8.1), 8.5) and not cost.reaches(Score(0.5, 1.0), 8.5), "feasible ones only"
    kl = Objective(metric=Metric.KL, form=ObjectiveForm.BEST_VALUE_WITHIN_COST, cost_limit=10.0)
    assert kl.reaches(Score(-0.01, 9), 0.01) and not kl.reaches(Score(-0.02, 9), 0.01)
    assert not kl.reaches(Score(-0.01, 11), 0.01)
    assert BEST.reaches(Score(0.8, 9), 0.8) and not BEST.reaches(Score(0.79, 9), 0.8)
    assert WEIGHTED.reaches(Score(0.9, 3), 0.88) and not WEIGHTED.reaches(Score(0.9, 3.1), 0.88)


VALUES = st.sampled_from([0.5, 0.85, 0.89, 0.9, 1.1]) | st.floats(allow_nan=True)
SCORES = st.builds(Score, VALUES, st.integers(0, 300).map(lambda tenths: tenths / 10))
"""Costs that differ by less than the steps of `Objective.energy` are equal to it."""


@pytest.mark.parametrize("objective", [CHEAPEST, Objective(tolerance=0.0, reference_value=0.9), BEST, WEIGHTED, PARETO])
@given(a=SCORES, b=SCORES, start=st.just(0.0) | st.floats(1, 30))
def test_energy_never_contradicts_the_order(objective: Objective, a: Score, b: Score, start: float) -> None:
    reference = Score(0.9, start)
    low, high = objective.energy(a, reference), objective.energy(b, reference)
    assert 0 <= low <= 2
    if low < high:
        assert not objective.better(b, a)
    if objective.feasible(a) and not objective.feasible(b):
        assert low <= 1 <= high


def test_among_feasible_scores_of_one_cost_the_smaller_loss_has_the_lower_energy() -> None:
    reference = Score(0.9, 20.0)
    assert CHEAPEST.feasible(Score(0.8999, 20.0))
    for cost in (20.0, 19.5, 0.0, 400.0):
        energies = [CHEAPEST.energy(Score(value, cost), reference) for value in (0.95, 0.9, 0.8999, 0.89985)]
        assert energies == sorted(set(energies)), "all differ"
        assert energies[-1] < CHEAPEST.energy(Score(0.95, cost + 0.1), reference), "the cost comes first"


def test_configuration() -> None:
    kl = Objective.of(ObjectiveOptions(**CONFIG), FloatFigures(accuracy=0.9))  # type: ignore[arg-type]
    assert (kl.metric, kl.reference_value) == (Metric.KL, 0.0)
    assert kl.feasible(Score(-0.02, 1)) and not kl.feasible(Score(-0.03, 1))
    accuracy = Objective.of(ObjectiveOptions(**{**CONFIG, "metric": "accuracy"}), FloatFigures(accuracy=0.9))  # type: ignore[arg-type]
    assert accuracy.reference_value == 0.9
    within = {**CONFIG, "form": "best_value_within_cost"}
    share = Objective.of(ObjectiveOptions(**{**within, "cost_limit": 0.6}), FloatFigures(start_cost=200.0))  # type: ignore[arg-type]
    assert share.cost_limit == pytest.approx(120.0)
    assert Objective.of(ObjectiveOptions(**{**within, "cost_limit": 150})).cost_limit == 150.0  # type: ignore[arg-type]
    latency = {**within, "cost": "latency", "cost_limit": 0.6}
    assert Objective.of(ObjectiveOptions(**latency), FloatFigures(start_cost=7.0)).cost_limit == 0.6, "in float models"  # type: ignore[arg-type]
    user = {**CONFIG, "metric": "callable", "target": "a.b:c"}
    assert Objective.of(ObjectiveOptions(**user), FloatFigures(value=3.0)).reference_value == 3.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "key", "legal"),
    [
        ({"metric": "acuracy"}, "objective.metric", "did you mean 'accuracy'.*accuracy, kl, mse, detections, callable"),
        ({"metric": "accuracy"}, "objective.metric", "without labels give kl or mse"),
        ({"form": "parato"}, "objective.form", "did you mean 'pareto'.*best_value_within_cost, weighted, pareto"),
        ({"form": "weighted"}, "objective.weight", "what the cost of the most precise point is worth"),
        ({"weight": 0.1}, "objective.weight", "no meaning.*objective.form=weighted"),
        ({"form": "weighted", "weight": -1}, "objective.weight", "at least 0"),
        ({"metric": "callable"}, "objective.target", "package.module:function"),
        ({"target": "a.b:c"}, "objective.target", "no meaning.*objective.metric=callable"),
        ({"form": "pareto", "cost_limit": 0.5}, "objective.cost_limit", "objective.form=best_value_within_cost"),
        (
            {"cost": "joules"},
            "objective.cost",
            "auto, bits, weight_bytes, stored_bytes, bops, cycles, peak_activation",
        ),
        ({"tolerance": -0.1}, "objective.tolerance", "at least 0"),
        ({"tolerance": "1%"}, "objective.tolerance", "a number"),
        ({"cost_limit": 0.6}, "objective.cost_limit", "best_value_within_cost"),
        ({"cost_limit": 0}, "objective.cost_limit", "above 0"),
        ({"form": "best_value_within_cost"}, "objective.cost_limit", "a share or an amount"),
    ],
)
def test_values_without_meaning_are_refused_by_key(change: dict[str, object], key: str, legal: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}.*{legal}"):
        Objective.of(ObjectiveOptions(**{**CONFIG, **change}), FloatFigures(start_cost=10.0))  # type: ignore[arg-type]


def test_which_objectives_can_give_up() -> None:
    assert Objective(metric=Metric.KL).bounded
    assert Objective(metric=Metric.KL, form=ObjectiveForm.BEST_VALUE_WITHIN_COST, cost_limit=5.0).bounded
    assert not Objective(metric=Metric.KL, form=ObjectiveForm.PARETO).bounded
    assert not Objective(metric=Metric.KL, form=ObjectiveForm.WEIGHTED, weight=1.0).bounded
    assert not Objective(metric=Metric.CALLABLE, target="package.module:function").bounded
