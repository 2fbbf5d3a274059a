"""KL at a temperature: its units, where it is used, and that it orders candidates by more than a few samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import rel_entr, softmax
from scipy.stats import spearmanr

from quantpipe.metrics.jackknife import losses_of
from quantpipe.metrics.outputs import kl_divergence
from quantpipe.metrics.reference import Reference, compared_loss, output_metrics
from quantpipe.metrics.soft_kl import ENOUGH, TEMPERATURE, Softness, softness_of
from quantpipe.scoring.bound import PartialScoreBound
from quantpipe.search import Metric, Objective, contributions
from quantpipe.types import SOFT_KL, Choice, ChoiceSpace, Score

RNG = np.random.default_rng(77)


def sure(samples: int, classes: int = 10, seed: int = 0) -> np.ndarray:
    """Class scores of a model that is sure of most samples."""
    return np.random.default_rng(seed).normal(0, 15, (samples, classes)).astype(np.float32)


@given(st.integers(2, 40), st.integers(2, 12), st.integers(0, 99))
def test_against_scipy(samples: int, classes: int, seed: int) -> None:
    own, found = sure(samples, classes, seed), sure(samples, classes, seed + 1)
    p, q = (softmax(scores.astype(np.float64) / 4.0, axis=1) for scores in (own, found))
    expected = 2.5 * rel_entr(p, q).sum(axis=1)
    np.testing.assert_allclose(Softness(4.0, 2.5).divergences(own, found), expected, rtol=1e-5, atol=1e-9)


def test_errors_alike_everywhere_cost_as_much_as_by_plain_kl() -> None:
    """Over many samples, so that the plain one is exact enough to compare with."""
    own = sure(20_000)
    noisy = own + np.float32(0.02) * RNG.standard_normal(own.shape).astype(np.float32)
    soft = softness_of(own[:400])
    assert soft is not None and soft.temperature == TEMPERATURE
    assert soft.divergences(own, noisy).mean() == pytest.approx(kl_divergence(own, noisy), rel=0.15)


def test_plain_where_enough_rows_count() -> None:
    """Effective number of rows: (sum w)^2 / sum w^2, of w = 1 - sum p^2."""
    assert softness_of(sure(400)) is not None and softness_of(sure(8000)) is None
    for samples in (400, 8000):
        own = sure(samples)
        w = 1 - np.sum(softmax(own.astype(np.float64), axis=1) ** 2, axis=1)
        effective = w.sum() ** 2 / np.sum(w**2)
        assert (softness_of(own) is None) == (effective >= ENOUGH)
    tokens = np.random.default_rng(1).normal(0, 1, (8, 128, 20)).astype(np.float32)
    assert softness_of(tokens) is None  # rows of one sample count, each


def test_probabilities_and_one_sure_answer_stay_plain() -> None:
    own = sure(64)
    assert softness_of(softmax(own, axis=1)) is None
    assert softness_of(own[:, 0]) is None  # one axis: no classes
    assert softness_of(np.eye(10, dtype=np.float32)[[3, 4]] * 1e4) is None


def test_samples_of_several_shapes() -> None:
    rows = tuple(sure(width, 5, width) for width in (2, 3, 4))
    soft = softness_of(rows)
    assert soft is not None
    found = soft.divergences(rows, tuple(row + 1.0 * (np.arange(5) == 0) for row in rows))
    assert found.shape == (3,) and np.all(found > 0)
    assert np.all(np.isinf(soft.divergences(rows, tuple(row * np.inf for row in rows))))


def test_it_orders_candidates_better_than_plain_kl() -> None:
    """Candidates of several noises, on 64 samples, against the order on 50,000."""
    every = sure(50_000)
    kept = slice(0, 64)
    rng = np.random.default_rng(3)
    soft = softness_of(every[kept])
    assert soft is not None
    truth, plain, softened = [], [], []
    for size in np.linspace(0.30, 0.50, 24):
        found = every + np.float32(size) * rng.standard_normal(every.shape).astype(np.float32)
        truth.append(kl_divergence(every, found))
        plain.append(kl_divergence(every[kept], found[kept]))
        softened.append(soft.divergences(every[kept], found[kept]).mean())
    assert spearmanr(softened, truth).statistic > spearmanr(plain, truth).statistic + 0.2


def test_which_references_are_softened() -> None:
    plain = Reference(sure(64), None)
    assert plain.softened("kl").softness == softness_of(plain.outputs) == plain.softened("auto").softness
    assert plain.softened("mse").softness is None and plain.softened("accuracy").softness is None


def test_metrics_losses_and_bound_agree() -> None:
    known = Reference(sure(64), None).softened("kl")
    found = sure(64) + RNG.normal(0, 0.3, (64, 10)).astype(np.float32)
    metrics = output_metrics(known, found)
    assert metrics[SOFT_KL] == compared_loss(known, found) == losses_of("kl", known, found)(None)
    assert metrics["kl"] == kl_divergence(known.outputs, found) == compared_loss(replace(known, softness=None), found)
    bound = PartialScoreBound("kl", known)
    for first in range(0, 64, 16):
        assert bound.best(2.0).compared >= -metrics[SOFT_KL]
        bound.add(found[first : first + 16])
    best = bound.best(2.0)
    assert best.pruned and best.cost == 2.0
    assert best.compared == pytest.approx(-metrics[SOFT_KL], rel=1e-6)
    assert best.value == pytest.approx(-metrics["kl"], rel=1e-6)


def test_the_tolerance_is_about_kl_and_the_order_about_the_softened_one() -> None:
    objective = Objective(Metric.KL, tolerance=0.1)
    near, far, missed = (
        Score(-kl, 1.0, (("kl", kl), (SOFT_KL, soft))) for kl, soft in ((0.05, 0.08), (0.04, 0.09), (0.2, 0.01))
    )
    assert objective.better(near, far) and objective.better(near, missed)
    assert objective.feasible(far) and not objective.feasible(missed)
    assert objective.better(Score(-0.05, 0.5), near)  # cheaper, and within the tolerance


def test_what_a_choice_gains_is_what_it_was_chosen_by() -> None:
    space = ChoiceSpace((Choice("range:x", "range", ("estimated", "halved")),))
    before, after = (Score(-kl, 1.0, (("kl", kl), (SOFT_KL, soft))) for kl, soft in ((0.04, 0.09), (0.05, 0.08)))
    (found,) = contributions(space, (1,), after, lambda points: [before for _ in points])
    assert found.value == pytest.approx(0.01)


def test_scores_without_it_are_compared_by_value() -> None:
    """One of them may be from a log or a judge of an earlier version."""
    objective = Objective(Metric.KL, tolerance=0.1)
    plain, soft = Score(-0.05, 1.0), Score(-0.06, 1.0, (("kl", 0.06), (SOFT_KL, 0.01)))
    assert objective.better(plain, soft) and not objective.better(soft, plain)
