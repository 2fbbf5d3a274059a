"""Metrics against SciPy and plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import softmax
from scipy.stats import entropy

from quantpipe.metrics import outputs as metric_outputs
from quantpipe.metrics.outputs import (
    fitted,
    is_distribution,
    kl_divergence,
    kl_divergences,
    log_probabilities,
    relative_mse,
    row_divergences,
    sqnr_db,
    summary,
    top1,
)

LOGITS = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=6),
                    elements=st.floats(-30, 30, width=32))  # fmt: skip


@given(LOGITS, st.integers(0, 1000))
def test_kl_of_logits(logits: np.ndarray, seed: int) -> None:
    other = (logits + np.random.default_rng(seed).standard_normal(logits.shape)).astype(np.float32)
    expected = np.mean([entropy(softmax(a.astype(float)), softmax(b.astype(float)))
                        for a, b in zip(logits, other, strict=True)])  # fmt: skip
    if not is_distribution(logits):
        assert kl_divergence(logits, other) == pytest.approx(expected, rel=1e-6, abs=1e-9)
        assert kl_divergence(logits, logits) == 0.0


def test_kl_of_probabilities() -> None:
    rng = np.random.default_rng(0)
    p, q = (softmax(rng.standard_normal((5, 7)), axis=1).astype(np.float32) for _ in range(2))
    expected = np.mean([entropy(a, b) for a, b in zip(p.astype(float), q.astype(float), strict=True)])
    assert is_distribution(p)
    assert kl_divergence(p, q) == pytest.approx(expected, rel=1e-5)
    q[0, 0] = 0  # a class that was quantized away costs much, but not infinitely much
    assert np.isfinite(kl_divergence(p, q))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_outputs_that_are_not_finite_are_infinitely_far(bad: float) -> None:
    outputs = np.array([[1.0, bad]])
    assert kl_divergence(np.array([[1.0, 2.0]]), outputs) == float("inf")
    assert sqnr_db(np.array([[1.0, 2.0]]), outputs) == float("-inf")


@given(LOGITS, st.floats(1e-3, 1.0))
def test_sqnr(reference: np.ndarray, noise: float) -> None:
    outputs = (reference + noise).astype(np.float32)
    difference = reference.astype(float) - outputs.astype(float)
    if not difference.any() or not reference.any():
        return
    expected = 10 * np.log10(np.linalg.norm(reference.astype(float)) ** 2 / np.linalg.norm(difference) ** 2)
    assert sqnr_db(reference, outputs) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_sqnr_without_noise_or_signal() -> None:
    zeros, ones = np.zeros((2, 2)), np.ones((2, 2))
    assert sqnr_db(ones, ones) is None
    assert sqnr_db(zeros, zeros) is None
    assert sqnr_db(zeros, ones) == float("-inf")


def test_top1() -> None:
    outputs = np.array([[1, 2, 3], [3, 2, 1], [0, 5, 1], [0, 0, 9]], np.float32)
    assert top1(outputs, np.array([2, 0, 1, 1])) == 0.75
    assert top1(outputs, None) is None
    assert top1(outputs[:, :, None], np.array([2, 0, 1, 1])) is None


def test_relative_mse_of_predicting_the_mean_is_one() -> None:
    reference = np.random.default_rng(1).standard_normal((50, 4))
    assert relative_mse(reference, np.full_like(reference, reference.mean())) == pytest.approx(1.0)
    assert relative_mse(reference, reference) == 0.0
    assert relative_mse(np.ones((2, 2)), np.zeros((2, 2))) == 1.0  # no variance: plain error


def test_summary_of_the_float_model_itself() -> None:
    outputs = np.array([[1.0, 2.0], [3.0, 0.0]])
    assert summary(outputs, outputs, np.array([1, 1])) == {
        "top1": 0.5,
        "kl": 0.0,
        "sqnr_db": None,
        "cosine": pytest.approx(1.0),
    }


@given(st.lists(st.integers(1, 5), min_size=2, max_size=5), st.integers(0, 1000))
def test_outputs_of_unequal_shapes(lengths: list[int], seed: int) -> None:
    """KL: the mean over samples of each one's mean; errors: over all elements. Equal shapes make no difference."""
    rng = np.random.default_rng(seed)
    r = tuple(rng.standard_normal((n, 4)).astype(np.float32) for n in lengths)
    o = tuple((a + 0.1 * rng.standard_normal(a.shape)).astype(np.float32) for a in r)
    samples = [np.mean([entropy(softmax(a.astype(float)), softmax(b.astype(float))) for a, b in zip(x, y, strict=True)])
               for x, y in zip(r, o, strict=True)]  # fmt: skip
    assert kl_divergence(r, o) == pytest.approx(np.mean(samples), rel=1e-6, abs=1e-9)
    flat_r, flat_o = np.concatenate(r).astype(float), np.concatenate(o).astype(float)
    assert relative_mse(r, o) == pytest.approx(np.mean((flat_r - flat_o) ** 2) / np.var(flat_r))
    assert sqnr_db(r, o) == pytest.approx(10 * np.log10(np.sum(flat_r**2) / np.sum((flat_r - flat_o) ** 2)))
    assert top1(o, np.zeros(len(o), np.int64)) is None
    assert kl_divergence(r, (*o[:-1], o[-1] * np.nan)) == float("inf")
    if len(set(lengths)) == 1:
        assert kl_divergence(r, o) == pytest.approx(kl_divergence(np.stack(r), np.stack(o)))


def test_a_single_output_is_yes_against_no() -> None:
    """Probabilities of one class, or logits: KL of the two-valued distribution, by its definition."""
    rng = np.random.default_rng(3)
    p, q = rng.uniform(0.02, 0.98, (2, 40, 1))
    expected = np.mean(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)))
    assert kl_divergence(p, q) == pytest.approx(expected, rel=1e-9)
    logits = [np.log(x / (1 - x)) for x in (p, q)]
    assert kl_divergence(logits[0], logits[1]) == pytest.approx(expected, rel=1e-9)
    assert kl_divergence(p, p) == 0.0


@pytest.mark.parametrize("shape", [(5,), (7, 1), (9, 2), (40, 11), (3, 37, 13), (2, 3, 5, 130), (4, 3000), (0, 4)])
@pytest.mark.parametrize("distribution", [False, True])
def test_rows_taken_some_at_a_time_have_the_divergence_of_all_at_once(
    shape: tuple[int, ...], distribution: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_outputs, "IN_CACHE", 1000)
    rng = np.random.default_rng(5)
    r, o = (rng.uniform(0, 1, shape).astype(np.float32) for _ in range(2))
    p, q = log_probabilities(r, distribution), log_probabilities(o, distribution)
    wanted = np.sum(np.exp(p) * (p - q), axis=-1)
    found = row_divergences(r, o, distribution)
    assert found.shape == wanted.shape and np.array_equal(found, wanted)


def test_a_sample_of_another_shape_counts_as_the_mean_everywhere() -> None:
    r = (np.float32([[1.0, 3.0]]), np.float32([[2.0, 6.0], [4.0, 8.0]]))
    o = (np.float32([[1.0, 3.0]]), np.float32([[2.0, 6.0]]))
    kept = fitted(r, o)
    assert isinstance(kept, tuple) and kept[0] is not r[0] and np.array_equal(kept[0], o[0])
    assert np.array_equal(kept[1], np.full((2, 2), 4.0))
    assert relative_mse(r, o) == pytest.approx((4 + 4 + 0 + 16) / 6 / np.var([1, 3, 2, 6, 4, 8]))
    even = [entropy(softmax(row), [0.5, 0.5]) for row in r[1].astype(float)]
    assert kl_divergence(r, o) == pytest.approx(np.mean(even) / 2)
    assert kl_divergences(r, o) == pytest.approx([0.0, np.mean(even)])


def test_outputs_alike_are_taken_as_they_are_and_lengths_of_all_may_differ() -> None:
    r = np.float32([[1.0, 3.0], [2.0, 6.0]])
    assert fitted(r, r) is r
    assert np.array_equal(fitted(r, np.zeros((2, 3))), np.full((2, 2), 3.0)), "all are longer by one"
    assert np.array_equal(fitted(r, np.zeros((5, 2))), np.full((2, 2), 3.0)), "nobody knows which row is whose"
    assert np.array_equal(fitted(r, (np.float32([7.0, 8.0]), np.zeros(3)))[0], [7.0, 8.0])
    with_mask = np.float32([[1.0, -np.inf], [2.0, 6.0]])
    assert np.array_equal(fitted(with_mask, np.zeros((2, 3))), np.full((2, 2), 3.0))


@pytest.mark.parametrize("shape", [(7, 3, 5), (1, 40), (12, 1)])
def test_large_outputs_are_taken_some_samples_at_a_time(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores of a vocabulary in float64, whole, take more memory than a decoder."""
    rng = np.random.default_rng(0)
    reference = (rng.standard_normal(shape) + 3).astype(np.float32)
    outputs = reference + (0.1 * rng.standard_normal(shape)).astype(np.float32)
    figures = (relative_mse, sqnr_db, metric_outputs.cosine_similarity)
    whole = [figure(reference, outputs) for figure in figures]
    held: list[int] = []
    elements = metric_outputs._elements
    monkeypatch.setattr(metric_outputs, "AT_ONCE", 10)
    monkeypatch.setattr(metric_outputs, "_elements", lambda part: held.append(part.size) or elements(part))
    for figure, known in zip(figures, whole, strict=True):
        assert figure(reference, outputs) == pytest.approx(known, rel=1e-12)
    assert max(held) <= max(10, reference[0].size)
    assert figures[0](reference, reference) == 0.0 and figures[1](reference, reference) is None
