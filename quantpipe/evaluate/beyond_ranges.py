"""Measure which values of samples are beyond the stored ranges, compared with what calibration cut off on purpose.

A threshold cuts off the rarest calibration values. Where other samples lose far more to it, they are not like those
that the ranges were taken from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.calibrate.histogram import borders
from quantpipe.calibrate.passes import run_size
from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import expose
from quantpipe.graph.view import Graph
from quantpipe.types import BeyondRow, Profile, Quantizer, QuantPlan, Samples, TensorStats, Topology

FAR_DB = 20.0
"""SQNR of clipping alone below which values beyond a range are warned of."""
TIMES = 4.0
"""By how much the error of clipping, and twice the share, must exceed their values in calibration."""
NAMED = 3


@dataclass(frozen=True)
class Clipped:
    """Hold what a range cuts off: the share of the elements, and the squared error as a share of their squares."""

    share: float
    error: float

    @property
    def sqnr_db(self) -> float | None:
        """Return the SQNR of clipping alone in dB; None where nothing is lost."""
        return None if self.error <= 0 else -10 * math.log10(self.error)


@dataclass
class _Sums:
    elements: int = 0
    beyond: int = 0
    squares: float = 0.0
    lost: float = 0.0

    def add(self, found: NDArray[Any], low: float, high: float) -> None:
        """Include some values of any shape; what is not finite is left out."""
        finite = np.isfinite(found)
        known = found.reshape(-1) if finite.all() else found[finite]  # a copy of all takes as long as all the sums
        if not known.size:
            return
        values = known.astype(np.float64)
        inside = low <= float(known.min()) and float(known.max()) <= high  # as in most tensors
        outside = values[:0] if inside else values[(values < low) | (values > high)]
        self.elements += values.size
        self.beyond += outside.size
        self.squares += float(np.einsum("i,i->", values, values))
        self.lost += float(np.sum((outside - np.clip(outside, low, high)) ** 2))

    @property
    def clipped(self) -> Clipped:
        return Clipped(self.beyond / max(self.elements, 1), self.lost / (self.squares or 1.0))


def range_of(quantizer: Quantizer) -> tuple[float, float] | None:
    """Return the range that a tensor's integers hold, in real units; None where channels have ranges of their own."""
    scale = np.ravel(np.asarray(quantizer.scale, np.float64))
    return (float(quantizer.low * scale[0]), float(quantizer.high * scale[0])) if len(scale) == 1 else None


def clipped_in(graph: Graph, plan: QuantPlan, samples: Samples) -> dict[str, Clipped]:
    """Return what the ranges of stored tensors, inputs included, cut off the float model's values, in graph order."""
    made = [t for t in graph.producers if t in plan.quantizers]
    known = [t for t in (*graph.input_names, *made) if t in plan.quantizers]
    ranges = {t: found for t in known if (found := range_of(plan.quantizers[t])) is not None}
    made = [t for t in made if t in ranges]
    sums = {t: _Sums() for t in ranges}
    session = Session(expose(graph.model, made), spin=False, where=graph.source) if made else None
    for batch in samples.batches(run_size(graph, made)) if ranges else ():
        values = batch.inputs if session is None else {**batch.inputs, **session.run(batch.inputs, made)}
        for tensor, ends in ranges.items():
            sums[tensor].add(np.asarray(values[tensor]), *ends)
    return {tensor: found.clipped for tensor, found in sums.items() if found.elements}


def cut_off(stats: TensorStats, low: float, high: float) -> Clipped | None:
    """Return what a range cuts off the calibration values; None without a histogram.

    Values count at the middle of their bin, and the two bins that hold the ends in proportion.
    """
    if not stats.full or not stats.count:
        return None
    counts = stats.histogram.astype(np.float64)
    edges = borders(stats.limit, len(counts))
    left, right = edges[:-1], edges[1:]
    found = []
    for begin, end, bound in ((left, np.minimum(right, low), low), (np.maximum(left, high), right, high)):
        part = np.clip((end - begin) / (right - left), 0.0, 1.0) * counts
        found.append((part.sum(), float(np.sum(part * ((begin + end) / 2 - bound) ** 2))))
    squares = stats.count * (stats.variance + stats.mean**2)
    share = float(sum(part for part, _ in found)) / max(float(counts.sum()), 1.0)
    return Clipped(share, sum(lost for _, lost in found) / (squares or 1.0))


def stats_of(profile: Profile, topology: Topology, tensor: str) -> TensorStats | None:
    """Return the statistics of a tensor, or of what its range was taken from."""
    if tensor in profile.tensors:
        return profile.tensors[tensor]
    group = topology.group_of.get(tensor)
    return next((profile.tensors[s] for s in group.sources if s in profile.tensors), None) if group else None


def beyond_rows(
    topology: Topology, plan: QuantPlan, profile: Profile | None, found: Mapping[str, Mapping[str, Clipped]]
) -> list[BeyondRow]:
    """Return a row for each split and tensor of which some elements are beyond its range.

    `found` is `clipped_in` by split. Without a profile nothing is known of calibration, and no row is marked as far.
    """
    return [
        _row(split, tensor, clipped, topology=topology, plan=plan, profile=profile)
        for split, tensors in found.items()
        for tensor, clipped in tensors.items()
        if clipped.share > 0
    ]


def _row(
    split: str, tensor: str, clipped: Clipped, *, topology: Topology, plan: QuantPlan, profile: Profile | None
) -> BeyondRow:
    low, high = range_of(plan.quantizers[tensor]) or (0.0, 0.0)
    stats = None if profile is None else stats_of(profile, topology, tensor)
    known = None if stats is None else cut_off(stats, low, high)
    if known is None and stats is not None and low <= stats.minimum and stats.maximum <= high:
        known = Clipped(0.0, 0.0)  # statistics of extremes alone are enough where nothing was cut off
    far = known is not None and clipped.error > 10 ** (-FAR_DB / 10) and _exceeds(clipped, known)
    return {
        "split": split,
        "tensor": tensor,
        "low": low,
        "high": high,
        "share": clipped.share,
        "sqnr_db": clipped.sqnr_db,
        "cut_off": None if known is None else known.share,
        "cut_off_sqnr_db": None if known is None else known.sqnr_db,
        "far": far,
    }


def _exceeds(clipped: Clipped, known: Clipped) -> bool:
    return clipped.error > TIMES * known.error and clipped.share > 2 * known.share


SPLITS: Mapping[str, str] = {"evaluate": "evaluation", "search": "search", "vectors": "vectors'"}


def beyond_warnings(rows: Sequence[BeyondRow]) -> Iterator[str]:
    """Yield a sentence for each split with values far beyond the calibrated ranges: tensor, share, and cost."""
    for split in dict.fromkeys(row["split"] for row in rows):
        far = [row for row in rows if row["split"] == split and row["far"]]
        if far:
            first, rest = far[0], far[1:]
            worst = sorted(rest, key=lambda row: row["sqnr_db"] or 0.0)[:NAMED]
            more = "".join(f"; {row['tensor']} {_share(row['share'])} ({_decibels(row)})" for row in worst)
            others = f". Further tensors: {len(rest)}{more}" if rest else ""
            yield (
                f"{_share(first['share'])} of the elements of {first['tensor']} are beyond the calibrated range "
                f"[{first['low']:.4g}, {first['high']:.4g}] on the {SPLITS[split]} samples, in calibration "
                f"{_share(first['cut_off'] or 0.0)}; this clipping alone leaves {_decibels(first)}{others}. Calibrate "
                "on samples like these (dataset.calibrate), or check that both are preprocessed alike"
            )


def _share(share: float) -> str:
    return f"{100 * share:.2g} %"


def _decibels(row: BeyondRow) -> str:
    return f"an SQNR of {row['sqnr_db']:.1f} dB" if row["sqnr_db"] is not None else "no loss"
