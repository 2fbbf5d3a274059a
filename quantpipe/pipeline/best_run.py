"""Find the best of compared runs by their objective, with its price and with ties by chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.metrics.paired import CHANCE, holm, mcnemar, signed_rank

ALIKE = 0.05
"""Latencies that differ by less, as a share, are equal: two measurements differ by more."""


@dataclass(frozen=True, eq=False)
class Contender:
    """Hold a finished run as its report and its results per sample have it."""

    label: str
    name: str
    report: Mapping[str, Any]
    samples: Mapping[str, NDArray[Any]]

    @property
    def rejected(self) -> tuple[bool, bool]:
        """Return whether its integers differ, and whether it misses its objective."""
        return bool(self.report["agreement"]["differing"]), bool(self.search.get("shortfall"))

    @property
    def search(self) -> Mapping[str, Any]:
        """Return the part `search` of its report."""
        return self.report.get("search") or {}

    @property
    def size(self) -> float:
        """Return bytes of its file."""
        return float(self.report["model"]["realized_bytes"])

    @property
    def latency(self) -> float | None:
        """Return milliseconds at batch 1, where the device is this machine's onnxruntime."""
        found = self.report.get("latency") or {}
        return None if found.get("of") == "reference" else found.get("realized_ms")

    def cost(self, name: str) -> float | None:
        """Return a cost of its strategy by the name that objectives use."""
        return self.latency if name == "latency" else (self.report.get("cost") or {}).get(name)


@dataclass(frozen=True)
class Best:
    """Hold the result: the best run, those that tie with it, what decided, and a sentence with the price."""

    label: str
    tied: tuple[str, ...]
    by: str
    verdict: str


def best_of(runs: Sequence[Contender]) -> Best:
    """Return the best of comparable runs; at least one is needed.

    Runs with equal integers and a met objective come first. Of these the objective decides: the lowest cost, or the
    best value. Of runs whose values differ by chance only, the one with the lowest cost is taken, then the smallest.
    """
    eligible = [run for run in runs if run.rejected == min(r.rejected for r in runs)]
    cost, values = _cost_of(eligible), _values(eligible)
    costs: dict[str, float] = {r.label: found for r in eligible if cost and (found := r.cost(cost)) is not None}
    first = [r for r in eligible if not costs or _alike(costs[r.label], min(costs.values()), cost)]
    leader = min(first, key=lambda run: (values.value[run.label], run.size))
    chance = _chances(leader, first, values)
    equal = [leader, *(run for run in first if chance.get(run.label, 0.0) >= CHANCE)]
    taken = min(equal, key=lambda run: run.size) if not costs else leader
    taken = leader if taken.size == leader.size else taken
    tied = tuple(run.label for run in equal if run is not taken)
    by = f"the lowest {cost}, then {values.name}" if costs else values.name
    sure = f" (the value's p is at most {max(chance.values()):.2g})" if chance and len(equal) == 1 else ""
    return Best(taken.label, tied, by, _verdict(taken, equal, eligible, f"{by}{sure}"))


@dataclass(frozen=True)
class _Values:
    """Hold what runs are ranked by: lower is better."""

    name: str
    value: Mapping[str, float]
    by_accuracy: bool


def _cost_of(runs: Sequence[Contender]) -> str | None:
    """Return the cost that decides between runs of one objective on one device; None where the value does."""
    forms = {(r.search.get("form"), r.search.get("cost"), (r.report.get("run") or {}).get("hardware")) for r in runs}
    form, cost, _ = next(iter(forms))
    decides = len(forms) == 1 and form == "least_cost_within_tolerance" and cost is not None
    return str(cost) if decides and all(run.cost(str(cost)) is not None for run in runs) else None


def _values(runs: Sequence[Contender]) -> _Values:
    """Return each run's value by the objective's metric; by accuracy where runs differ in it and have labels."""
    metrics = {run.search.get("metric") for run in runs}
    found = [run.report["metrics"]["realized"] for run in runs]
    labelled = all(metric.get("top1") is not None for metric in found)
    if labelled and not metrics & {"auto", "kl", "mse"}:
        return _Values("top-1 accuracy", {r.label: -m["top1"] for r, m in zip(runs, found, strict=True)}, True)
    losses = [_loss(run, metric) for run, metric in zip(runs, found, strict=True)]
    return _Values("the smallest loss", {r.label: loss for r, loss in zip(runs, losses, strict=True)}, False)


def _loss(run: Contender, metric: Mapping[str, Any]) -> float:
    losses = run.samples.get("loss")
    if losses is not None and len(losses):
        return float(np.mean(losses))
    return float(metric["kl"]) if metric.get("kl") is not None else float("inf")


def _alike(one: float, other: float, cost: str | None) -> bool:
    return one <= other * (1 + (ALIKE if cost == "latency" else 1e-9))


def _chances(leader: Contender, runs: Sequence[Contender], values: _Values) -> dict[str, float]:
    """Return the adjusted p of the difference in value between the leader and each other run, by label."""
    others = [run for run in runs if run is not leader]
    adjusted = holm([_p(leader, run, values) for run in others])
    return {run.label: p for run, p in zip(others, adjusted, strict=True)}


def _p(leader: Contender, run: Contender, values: _Values) -> float:
    """Return the p value of the difference between two runs; 0 where it cannot be tested."""
    names = ("label", "found_class") if values.by_accuracy else ("loss",)
    pair = (leader.samples, run.samples)
    if any(name not in part for name in names for part in pair) or len({len(part[names[0]]) for part in pair}) > 1:
        return float(values.value[leader.label] == values.value[run.label])
    if values.by_accuracy:
        return mcnemar(*(part["found_class"] == part["label"] for part in pair))[2]
    return signed_rank((run.samples["loss"] - leader.samples["loss"]).astype(np.float64))


def _verdict(taken: Contender, equal: Sequence[Contender], eligible: Sequence[Contender], by: str) -> str:
    """Return in a sentence which run is the best, or that several are equal, and at which price."""
    labels = [run.label for run in eligible if run in equal]
    if len(labels) == 1:
        head = f"{taken.label} is the best by {by}"
    elif all(_same(taken, run) for run in equal):
        others = f", the best by {by}" if len(equal) < len(eligible) else ""
        head = f"{_listed(labels)} have equal results{others}"
    elif all(run.size == taken.size for run in equal):
        head = f"{_listed(labels)} differ by chance only; none of them is better by {by}"
    else:
        head = f"{_listed(labels)} differ by chance only (by {by}); {taken.label} is the smallest of them"
    return f"{head}. {_price(taken, eligible)}"


def _same(one: Contender, other: Contender) -> bool:
    found, second = one.samples.get("loss"), other.samples.get("loss")
    return found is not None and second is not None and one.size == other.size and np.array_equal(found, second)


def _price(taken: Contender, eligible: Sequence[Contender]) -> str:
    """Return size and latency of a run, and the smallest and the fastest run."""
    text = f"Price of {taken.label}: {taken.size:,.0f} bytes"
    text += f", {taken.latency:.3g} ms" if taken.latency is not None else ""
    small = min(eligible, key=lambda run: run.size)
    timed = [(run.latency, run) for run in eligible if run.latency is not None]
    others = [f"the smallest is {small.label} with {small.size:,.0f}"] if small.size < taken.size else []
    if timed and taken.latency is not None:
        quickest, fast = min(timed, key=lambda pair: pair[0])
        if quickest * (1 + ALIKE) < taken.latency:
            others.append(f"the fastest is {fast.label} with {quickest:.3g} ms")
    beside = f" ({', '.join(others)})" if others else ""
    return f"{text}{beside}."


def _listed(labels: Sequence[str]) -> str:
    return f"{', '.join(labels[:-1])} and {labels[-1]}"
