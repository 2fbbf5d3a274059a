"""Types of compare.json. The comments are the meanings of the keys in docs/artifacts.md."""

from __future__ import annotations

from typing import Literal, TypedDict


class ComparedRun(TypedDict):
    """One of the runs that are compared. `problem`: why there is no report; its figures are then empty."""

    # `label`, `name`: A, B, …; a name that distinguishes it from the others
    label: str
    name: str
    # its folder, or its id in MLflow
    where: str
    # why it has no report, or null
    problem: str | None
    # whether it meets its objective
    meets: bool | None
    # `figures`, `interval`: its figures, without the latency of a reference form; the 95 % interval of its accuracy
    figures: dict[str, float | None]
    interval: list[float] | None
    # `metric`, `trace`, `trace_cost`: metric of its search; [[candidates tried, value], …] and [[candidates tried,
    # cost], …] of the best so far, before recovery, drawn on the page
    metric: str | None
    trace: list[list[float]]
    trace_cost: list[list[float]]


class DifferenceRow(TypedDict):
    """A key of the configuration, or a tensor, and what each run has there."""

    key: str
    values: list[str]


class PairedRow(TypedDict):
    """A run compared with the best one, on the same samples."""

    # of this run
    label: str
    # McNemar's exact test; without labels Wilcoxon's signed-rank test of the losses
    test: Literal["McNemar", "Wilcoxon"]
    # `samples`, `only_best`, `only_this`: samples; samples that one run alone has right
    samples: int
    only_best: int | None
    only_this: int | None
    # `difference`, `low`, `high`: of accuracy or mean loss, with its 95 % interval
    difference: float
    low: float
    high: float
    # `p`, `p_holm`: `p_holm` is adjusted for the number of comparisons
    p: float
    p_holm: float
    # `loss_difference`, `loss_p`: of the mean loss, by Wilcoxon's test (adjusted), where the loss decides
    loss_difference: float
    loss_p: float


class CompareReport(TypedDict):
    """How runs differ. `best`: the label of the best run, `null` where runs cannot be compared."""

    # of quantpipe
    version: str
    # in the order given (below)
    runs: list[ComparedRun]
    # label of the best run; null if the runs are of several models or were evaluated on different samples. First come
    # runs with equal integers that meet their objective. Of these the objective decides (`by`)
    best: str | None
    # for one objective on one device its cost, then its value; else the value: the objective's loss, or accuracy.
    # Latencies within 5 % are equal
    by: str | None
    # runs whose value differs from the best by chance only (p of at least 0.05, Holm); of these the smallest is `best`
    tied: list[str]
    # the same in words, with size and latency of the best run, and the smallest and the fastest run
    verdict: str | None
    # row per key that differs (`key`, and the `values` of the runs), options of groups first; for different options
    # their keys are not listed
    configuration: list[DifferenceRow]
    # `strategy`, `same_tensors`: row per choice (bits of a tensor or weight, structure) that differs; the number
    # without a difference
    strategy: list[DifferenceRow]
    same_tensors: int
    # each other run compared with the best on the same samples, from `evaluate/samples.npz` (below)
    paired: list[PairedRow]
    # other remarks
    notes: list[str]
