"""Types of compare.json. docs/artifacts.md describes every key."""

from __future__ import annotations

from typing import Literal, TypedDict


class ComparedRun(TypedDict):
    """One of the runs that are compared. `problem`: why there is no report; its figures are then empty.

    `trace`: [candidates tried, best value so far] of its search, in `metric`; `trace_cost`: likewise with its cost.
    """

    label: str
    name: str
    where: str
    problem: str | None
    meets: bool | None
    figures: dict[str, float | None]
    interval: list[float] | None
    metric: str | None
    trace: list[list[float]]
    trace_cost: list[list[float]]


class DifferenceRow(TypedDict):
    """A key of the configuration, or a tensor, and what each run has there."""

    key: str
    values: list[str]


class PairedRow(TypedDict):
    """A run compared with the best one, on the same samples.

    `only_best` and `only_this`: samples that one of them alone has right (null without labels). `difference`: of the
    accuracy, or of the mean loss without labels, this run's less the best one's, with its 95 % interval `low`, `high`.
    `p`: of McNemar's exact test, or of Wilcoxon's signed-rank test; `p_holm`: the same for all comparisons together.
    """

    label: str
    test: Literal["McNemar", "Wilcoxon"]
    samples: int
    only_best: int | None
    only_this: int | None
    difference: float
    low: float
    high: float
    p: float
    p_holm: float


class CompareReport(TypedDict):
    """How runs differ. `best`: the label of the best run, `null` where runs cannot be compared.

    `tied`: runs that differ from it by chance only. `by`: what decides. `verdict`: the same in words, with the price.
    """

    version: str
    runs: list[ComparedRun]
    best: str | None
    tied: list[str]
    by: str | None
    verdict: str | None
    configuration: list[DifferenceRow]
    strategy: list[DifferenceRow]
    same_tensors: int
    paired: list[PairedRow]
    notes: list[str]
