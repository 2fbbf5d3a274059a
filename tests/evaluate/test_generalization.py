"""The guard against a search that fits its samples: its standard errors, and when it speaks."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import rel_entr, softmax

from quantpipe.evaluate.generalization import generalization, parted_warning
from quantpipe.metrics.jackknife import deviations, losses_of
from quantpipe.metrics.losses import LossKind, OutputLoss
from quantpipe.metrics.outputs import kl_divergence
from quantpipe.metrics.reference import Reference
from quantpipe.oprules.parts import Part

RNG = np.random.default_rng(0)


def split(count: int, noise: float, seed: int) -> tuple[Reference, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(count, 5)) * 3
    outputs = logits + noise * rng.normal(size=logits.shape)
    return Reference(logits, rng.integers(0, 5, count)), outputs


def kl_per_sample(found: tuple[Reference, np.ndarray]) -> np.ndarray:
    return np.asarray(rel_entr(softmax(found[0].outputs, axis=1), softmax(found[1], axis=1)).sum(axis=1))


def test_loss_and_standard_error_of_a_mean() -> None:
    """With as many groups as samples the jackknife of a mean is the textbook's s / sqrt(n)."""
    seen, unseen = split(20, 0.5, 1), split(20, 0.5, 2)
    found = generalization("kl", seen, unseen)
    assert found is not None
    a, b = kl_per_sample(seen), kl_per_sample(unseen)
    assert found["search"] == pytest.approx(a.mean())
    assert found["report"] == pytest.approx(b.mean())
    assert found["difference"] == pytest.approx(b.mean() - a.mean())
    assert found["standard_error"] == pytest.approx(np.hypot(a.std(ddof=1), b.std(ddof=1)) / np.sqrt(20), rel=1e-6)
    assert (found["search_samples"], found["report_samples"]) == (20, 20)


def test_more_samples_than_groups_give_about_the_same() -> None:
    seen, unseen = split(400, 0.5, 1), split(800, 0.5, 2)
    found = generalization("kl", seen, unseen)
    assert found is not None
    a, b = kl_per_sample(seen), kl_per_sample(unseen)
    expected = np.hypot(a.std(ddof=1) / np.sqrt(400), b.std(ddof=1) / np.sqrt(800))
    assert found["standard_error"] == pytest.approx(expected, rel=0.4)


def test_accuracy_is_compared_with_the_float_model_on_the_same_samples() -> None:
    """The float model is right nowhere on the one split and everywhere on the other; its copy loses nothing on both."""
    logits = np.eye(5)[RNG.integers(0, 5, 60)]
    wrong, right = (logits.argmax(axis=1) + 1) % 5, logits.argmax(axis=1)
    found = generalization("accuracy", (Reference(logits, right), logits), (Reference(logits, wrong), logits))
    assert found is not None
    assert (found["search"], found["report"], found["parted"]) == (0.0, 0.0, False)


def test_it_speaks_when_the_loss_is_greater_beyond_chance() -> None:
    found = generalization("kl", split(128, 0.2, 1), split(600, 0.8, 2))
    assert found is not None and found["parted"]
    assert found["difference"] > 2 * found["standard_error"]
    warning = parted_warning(found)
    assert warning is not None
    assert "dataset.samples.search" in warning and "128" in warning
    assert parted_warning({**found, "parted": False}) is None
    less = generalization("kl", split(128, 0.8, 1), split(600, 0.2, 2))
    assert less is not None and not less["parted"], "less loss on new samples is no overfitting"


def test_it_is_silent_where_the_splits_are_alike() -> None:
    """By definition it speaks in 2.3 % of such cases."""
    spoke = 0
    for seed in range(100):
        found = generalization("mse", split(64, 0.5, 2 * seed), split(200, 0.5, 2 * seed + 1))
        assert found is not None
        spoke += found["parted"]
    assert spoke <= 8


def test_a_function_of_the_users_own() -> None:
    def agreement(reference: np.ndarray, outputs: np.ndarray, labels: np.ndarray | None) -> float:
        assert labels is not None and len(labels) == len(outputs) == len(reference)
        return float(np.mean(reference.argmax(axis=1) == outputs.argmax(axis=1)))

    (a, x), (b, y) = split(50, 0.5, 1), split(50, 0.5, 2)
    found = generalization(
        "callable", (Reference(a.outputs, a.labels, agreement), x), (Reference(b.outputs, b.labels, agreement), y)
    )
    assert found is not None
    assert found["search"] == pytest.approx(1 - agreement(a.outputs, x, a.labels))


def test_too_little_or_not_finite_says_nothing() -> None:
    assert generalization("kl", split(1, 0.5, 1), split(50, 0.5, 2)) is None
    reference, outputs = split(50, 0.5, 1)
    assert generalization("kl", (reference, outputs * np.inf), split(50, 0.5, 2)) is None


@pytest.mark.parametrize("rows", [(), (5,)])
def test_samples_left_out_lose_what_the_metric_says_of_the_others(rows: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((23, *rows, 4))
    reference, outputs = Reference(logits, None), logits + 0.3 * rng.standard_normal(logits.shape)
    loss_of = losses_of("kl", reference, outputs)
    for kept in (None, np.arange(23) % 20 != 3):
        part = slice(None) if kept is None else kept
        assert loss_of(kept) == pytest.approx(kl_divergence(logits[part], outputs[part]), rel=1e-12)


def test_an_output_of_several_parts_is_judged_by_the_worst_of_them() -> None:
    rng = np.random.default_rng(4)
    logits = rng.standard_normal((23, 6))
    outputs = logits + np.where(np.arange(6) < 3, 0.02, 0.8) * rng.standard_normal(logits.shape)
    loss = OutputLoss("y", LossKind.KL, parts=(Part("y", 1, 0, 3, 6), Part("y", 1, 3, 6, 6)))
    reference = Reference(logits, None, output="y", losses=(loss,))
    found = generalization("auto", (reference, outputs), (reference, outputs))
    assert found is not None and found["search"] == pytest.approx(loss.of(logits, outputs))
    assert found["search"] != pytest.approx(kl_divergence(logits, outputs))


def test_a_paired_difference_is_in_its_own_standard_errors() -> None:
    """Two models that share most of their noise differ by more than their own standard errors let one expect."""
    reference, outputs = split(20, 0.5, 1)
    worse = outputs + 0.1 * np.random.default_rng(5).normal(size=outputs.shape)
    first, second = (losses_of("kl", reference, found) for found in (outputs, worse))
    d = kl_per_sample((reference, worse)) - kl_per_sample((reference, outputs))
    expected = d.mean() / (d.std(ddof=1) / np.sqrt(20))
    assert deviations(first, second, 20) == pytest.approx(expected, rel=1e-6)
    assert deviations(second, first, 20) == pytest.approx(-expected, rel=1e-6)


def test_equal_losses_and_losses_without_variance() -> None:
    reference, outputs = split(20, 0.5, 1)
    loss = losses_of("kl", reference, outputs)
    assert deviations(loss, loss, 20) == 0
    assert deviations(loss, lambda kept: loss(kept) + 1, 20) > 1e9
    assert np.isnan(deviations(loss, lambda kept: np.nan, 20))
