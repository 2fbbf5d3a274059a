"""What few samples leave open of a second moment: against the textbook's sums, known covariances, and its limits."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from quantpipe.recover.reconstruct.moments import MomentCollector, Moments
from quantpipe.recover.reconstruct.shrinkage import MOST, uncertainty


def collected(rows: np.ndarray, batches: int, parts: int) -> Moments:
    """Of rows `[n, G, K]` in equal batches, each cut into parts."""
    collector = MomentCollector(*rows.shape[1:])
    for batch in np.split(rows.astype(np.float32), batches):
        collector.add(np.moveaxis(batch, 0, 2).copy(), parts=parts)
    return collector.finish()


def textbook(rows: np.ndarray, center: np.ndarray, parts: int) -> float:
    """Ledoit and Wolf's b² / (d² - b²) part by part, in loops; b² is the variance of the mean of the parts' matrices.
    `center`: what rows are taken about for b²."""
    error = spread = 0.0
    for group in range(rows.shape[1]):
        about = rows[:, group] - center[group]
        pieces = [part.T @ part / len(part) for part in np.split(about, parts)]
        middle = sum(pieces) / parts
        hessian = np.cov(rows[:, group].T, bias=True)
        mean = np.trace(hessian) / len(hessian)
        b2 = sum(np.sum((piece - middle) ** 2) for piece in pieces) / parts / (parts - 1)
        error += b2 / mean**2
        spread += np.sum((hessian - mean * np.eye(len(hessian))) ** 2) / mean**2
    return error / (spread - error)


def gaussian(n: int, deviations: np.ndarray, seed: int) -> np.ndarray:
    """Rows `[n, 1, K]` with known variances, turned by a rotation."""
    rng = np.random.default_rng(seed)
    turned = np.linalg.qr(rng.standard_normal((len(deviations),) * 2))[0]
    return ((rng.standard_normal((n, len(deviations))) * deviations) @ turned)[:, None]


@pytest.mark.parametrize(("groups", "batches", "parts"), [(1, 1, 20), (1, 4, 5), (3, 4, 5), (2, 20, 1)])
def test_it_is_what_the_parts_say(groups: int, batches: int, parts: int) -> None:
    rng = np.random.default_rng(groups)
    rows = rng.standard_normal((200, groups, 12)) * rng.uniform(0.1, 3, (groups, 12)) + rng.standard_normal(12)
    rows = rows.astype(np.float32).astype(np.float64)
    center = rows[: 200 // batches].mean(axis=0)
    assert collected(rows, batches, parts).uncertainty == pytest.approx(textbook(rows, center, 20), rel=1e-3)


def test_how_rows_come_in_batches_changes_nothing_but_the_centre() -> None:
    rows = gaussian(240, np.linspace(0.2, 2, 30), 0)
    found = [collected(rows, batches, 24 // batches).uncertainty for batches in (1, 3, 8)]
    assert found == pytest.approx([found[0]] * 3, rel=0.15)


def test_more_samples_leave_less_open() -> None:
    deviations = np.geomspace(0.05, 3, 40)
    found = [collected(gaussian(n, deviations, 1), 1, 16).uncertainty for n in (32, 128, 512, 8192)]
    assert found == sorted(found, reverse=True) and found[0] > 0.2 and found[-1] < 0.01


def test_rows_of_one_sample_do_not_count_as_many() -> None:
    """Each sample's rows alike: as open as with one row of each."""
    few = gaussian(32, np.geomspace(0.1, 3, 20), 2)
    many = np.repeat(few, 50, axis=0)
    assert collected(many, 1, 16).uncertainty == pytest.approx(collected(few, 1, 16).uncertainty, rel=1e-3)


def test_what_it_adds_brings_moments_nearer_to_the_truth() -> None:
    deviations = np.geomspace(0.3, 2, 60)
    nearer = []
    for seed in range(20):
        rows = gaussian(50, deviations, seed)
        found = collected(rows, 1, 25)
        turned = np.linalg.qr(np.random.default_rng(seed).standard_normal((60, 60)))[0]
        truth = turned.T @ np.diag(deviations**2) @ turned
        plain = found.hessian[0]
        share = found.uncertainty / (1 + found.uncertainty)
        shrunk = (1 - share) * plain + share * np.trace(plain) / 60 * np.eye(60)
        nearer.append(np.linalg.norm(shrunk - truth) / np.linalg.norm(plain - truth))
    assert np.mean(nearer) < 0.7 and max(nearer) < 1


def test_equal_variances_leave_everything_open() -> None:
    """There is nothing but the mean diagonal to be known; ridge and damping stay finite."""
    found = collected(gaussian(64, np.ones(30), 3), 1, 16).uncertainty
    assert 10 < found <= MOST / (1 - MOST)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_units_do_not_matter(factor: float) -> None:
    rows = gaussian(64, np.geomspace(0.1, 3, 20), 4)
    both = np.concatenate([rows, rows * factor], axis=1)
    alone = collected(rows, 1, 16).uncertainty
    assert collected(both, 1, 16).uncertainty == pytest.approx(alone, rel=1e-4)
    assert collected(rows * factor, 1, 16).uncertainty == pytest.approx(alone, rel=1e-4)


def test_constant_groups_say_nothing() -> None:
    rows = gaussian(64, np.geomspace(0.1, 3, 20), 5)
    constant = np.concatenate([rows, np.full_like(rows, 0.7)], axis=1)
    assert collected(constant, 1, 16).uncertainty == pytest.approx(collected(rows, 1, 16).uncertainty, rel=1e-6)
    assert collected(np.full_like(rows, 0.7), 1, 16).uncertainty == 0.0


@pytest.mark.parametrize(("rows", "parts"), [(1, 16), (50, 1)])
def test_one_part_has_nothing_to_be_compared_with(rows: int, parts: int) -> None:
    assert collected(gaussian(rows, np.ones(5), 6), 1, parts).uncertainty == 0.0


def test_uneven_parts_count_by_their_rows() -> None:
    """From sums made by hand; an estimate that overshoots is capped."""
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((90, 8)) * np.geomspace(0.2, 2, 8)
    edges = np.array([0, 10, 30, 60, 90])
    products = [rows[a:b].T @ rows[a:b] for a, b in pairwise(edges)]
    squares = np.array([sum(np.sum(p**2) for p in products)])
    counts, total = np.diff(edges), sum(products)
    error = (squares[0] - np.sum(total**2) * np.sum((counts / 90) ** 2)) / 90**2 * 4 / 3
    hessian = total / 90
    rho = error / np.sum((hessian - np.trace(hessian) / 8 * np.eye(8)) ** 2)
    assert uncertainty(hessian[None], total[None], squares, counts) == pytest.approx(rho / (1 - rho))
    assert uncertainty(hessian[None], total[None], squares * 100, counts) == pytest.approx(MOST / (1 - MOST))
