"""Estimate from the calibration statistics whether more samples would change ranges, bits and loss.

Calibration counts four parts of the samples apart. A range from some of them is judged by the others, so its error is
the error on samples that it was not taken from. This error falls as a + c/n with the number of samples n, so it is
known for half and for twice as many without another run of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quantpipe.calibrate.histogram import FOLDS, borders
from quantpipe.errors import QuantpipeError
from quantpipe.types import EnoughPart, Profile, Range, TensorStats, Topology

Ranges = Callable[[Profile], Mapping[str, Range]]
"""The range of each scale group that the estimators of a run give for some statistics."""

FEWEST = 8
"""Minimum number of samples for an estimate from four parts."""
SUBSETS: Mapping[int, tuple[tuple[int, ...], ...]] = {
    1: ((0,), (2,)),
    2: ((0, 2), (1, 3)),
    3: ((0, 1, 2), (1, 2, 3)),
}
"""Number of parts -> some choices of that many."""
ENOUGH_DB, FEW_DB = 0.3, 1.5
"""By how much twice the samples may lower the loss where they are enough; beyond the second, more are advised."""
BIT_DB = 6.02
NAMED = 3
MOST_BITS = 10
"""Bits up to which the bins of the parts show the error of rounding."""


@dataclass(frozen=True)
class _Errors:
    """Squared errors of each group as shares of its squares, `[groups]`, by the number of parts of the samples.

    `floor` is their sum on the very samples that the ranges are from, below which no number of samples brings them.
    """

    by_parts: Mapping[int, NDArray[np.float64]]
    floor: float

    def loss(self, parts: float) -> float:
        """Return the sum over all groups for any number of parts, by a fit of a + c/n with a of at least the floor."""
        inverse = 1 / np.array(sorted(self.by_parts), np.float64)
        sums = np.array([self.by_parts[n].sum() for n in sorted(self.by_parts)])
        centred = inverse - inverse.mean()
        slope = float(np.sum(centred * (sums - sums.mean())) / np.sum(centred**2))
        level = float(np.mean(sums - slope * inverse))
        if slope < 0 or level < self.floor:
            level = max(self.floor, min(level, float(sums.min())))
            slope = max(float(np.sum((sums - level) * inverse) / np.sum(inverse**2)), 0.0)
        return level + slope / parts


def enough(topology: Topology, bits: Mapping[str, int], profile: Profile | None, ranges: Ranges) -> EnoughPart | None:
    """Return how ranges and loss depend on the number of calibration samples.

    `bits` by key of the group. There is no result for statistics without parts of the samples, such as loaded ones, and
    for fewer than eight samples.
    """
    if profile is None or profile.samples < FEWEST:
        return None
    groups = [g for g in topology.groups if g.fixed is None and _known(g.sources, profile)]
    if not groups:
        return None
    try:
        whole = ranges(_part(profile, tuple(range(FOLDS))))
        found = {n: [(parts, ranges(_part(profile, parts))) for parts in some] for n, some in SUBSETS.items()}
    except QuantpipeError:
        return None  # a plug-in's estimator may need what parts of the samples do not hold
    groups = [g for g in groups if g.key in whole and whole[g.key].threshold > 0]
    if not groups:
        return None

    def errors(n: int) -> NDArray[np.float64]:
        each = []
        for parts, by_group in found[n]:
            others = tuple(k for k in range(FOLDS) if k not in parts)
            each.append([_error(profile, g.sources, others, by_group[g.key], bits=bits[g.key]) for g in groups])
        return np.asarray(np.mean(each, axis=0))

    halves = [by_group for _, by_group in found[2]]
    moved = np.array([_moved(whole[g.key], [h[g.key] for h in halves]) for g in groups])
    own = np.array([_error(profile, g.sources, tuple(range(FOLDS)), whole[g.key], bits=bits[g.key]) for g in groups])
    measured = _Errors({n: errors(n) for n in SUBSETS}, float(own.sum()))
    more_bits = measured.by_parts[2] > 10 ** (BIT_DB / 10) * np.maximum(own, 1e-12)
    return _part_of(profile.samples, measured, moved, keys=[g.key for g in groups], more_bits=int(more_bits.sum()))


def _part_of(
    samples: int, measured: _Errors, moved: NDArray[np.float64], *, keys: list[str], more_bits: int
) -> EnoughPart:
    now = measured.loss(FOLDS)
    half_db, twice_db = (10 * math.log10(measured.loss(n) / now) for n in (FOLDS / 2, FOLDS * 2))
    worst = sorted(zip(keys, moved.tolist(), strict=True), key=lambda pair: -pair[1])[:NAMED]
    typical, most = 100 * float(np.median(moved)), 100 * worst[0][1]
    changes = (
        f"half as many would add {half_db:.1f} dB to the activations' noise, twice as many would take away "
        f"{abs(twice_db):.1f} dB; ranges from half of them differ by {typical:.1f} % (median), at most {most:.0f} % "
        f"({worst[0][0]})"
    )
    bits = f", and {more_bits} of {len(keys)} ranges would cost a bit" if more_bits else ""
    if -twice_db <= ENOUGH_DB:
        sentence = f"{samples} calibration samples are enough: {changes}{bits}"
    elif -twice_db <= FEW_DB:
        sentence = f"{samples} calibration samples are nearly enough: {changes}{bits}"
    else:
        sentence = f"take more calibration samples than {samples} (dataset.samples.calibrate): {changes}{bits}"
    return {
        "samples": samples,
        "half_db": half_db,
        "twice_db": twice_db,
        "moved": float(np.median(moved)),
        "moved_most": worst[0][1],
        "tensors": [key for key, _ in worst],
        "more_bits": more_bits,
        "enough": -twice_db <= FEW_DB,
        "sentence": sentence,
    }


def _known(sources: tuple[str, ...], profile: Profile) -> bool:
    found = [profile.tensors.get(tensor) for tensor in sources]
    return bool(found) and all(stats is not None and len(stats.folds) == FOLDS for stats in found)


def _part(profile: Profile, parts: tuple[int, ...]) -> Profile:
    """Return the statistics of some parts of the samples; tensors without parts keep theirs."""
    tensors = {name: _stats(stats, parts) if len(stats.folds) else stats for name, stats in profile.tensors.items()}
    return replace(profile, tensors=tensors)


def _stats(stats: TensorStats, parts: tuple[int, ...]) -> TensorStats:
    """Return the statistics of some parts, as far as their counts show them: minimum and maximum are ends of bins."""
    counts = stats.folds[list(parts)].sum(axis=0)
    edges = borders(stats.limit, len(counts))
    used = np.flatnonzero(counts)
    low, high = (float(edges[used[0]]), float(edges[used[-1] + 1])) if len(used) else (0.0, 0.0)
    low, high = max(low, stats.minimum), min(high, stats.maximum)
    middles, total = (edges[1:] + edges[:-1]) / 2, max(int(counts.sum()), 1)
    mean = float(np.sum(counts * middles)) / total
    return replace(
        stats,
        count=int(counts.sum()),
        minimum=low,
        maximum=high,
        mean=mean,
        variance=float(np.sum(counts * (middles - mean) ** 2)) / total,
        batch_minimum=low,
        batch_maximum=high,
        batch_extremes=np.array([[low, high]]),
        histogram=counts,
        channels=None,
    )


def _error(profile: Profile, sources: tuple[str, ...], parts: tuple[int, ...], found: Range, *, bits: int) -> float:
    """Return the squared error of rounding and clipping in a range, as a share of the squares; the worst source's."""
    worst = 0.0
    for tensor in sources:
        stats = profile.tensors[tensor]
        counts = stats.folds[list(parts)].sum(axis=0).astype(np.float64)
        edges = borders(stats.limit, len(counts))
        left, right = edges[:-1], edges[1:]
        middles, width = (left + right) / 2, edges[1] - edges[0]
        squares = float(np.sum(counts * (middles**2 + width**2 / 12))) or 1.0
        step = (found.high - found.low) / ((1 << min(bits, MOST_BITS)) - 1)
        inside = np.clip((np.minimum(right, found.high) - np.maximum(left, found.low)) / width, 0.0, 1.0)
        beyond = [(left, np.minimum(right, found.low), found.low), (np.maximum(left, found.high), right, found.high)]
        lost = inside * step**2 / 12
        for begin, end, bound in beyond:
            lost += np.clip((end - begin) / width, 0.0, 1.0) * ((begin + end) / 2 - bound) ** 2
        worst = max(worst, float(np.sum(counts * lost)) / squares)
    return worst


def _moved(whole: Range, halves: list[Range]) -> float:
    """Return the largest change of a range from half of the samples, as a share of its width."""
    width = (whole.high - whole.low) or 1.0
    return max(max(abs(h.low - whole.low), abs(h.high - whole.high)) / width for h in halves)
