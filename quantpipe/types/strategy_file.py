"""Types of strategy.json. docs/artifacts.md describes every key."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from quantpipe.types.report_rows import RectifiedRow
from quantpipe.types.reports import CostPart, RecoveryRecord, ReplayedSearch, SearchReport

Finite = Annotated[float, "finite"]
"""A number that is never null in a file."""


class LowHigh(TypedDict):
    """A range that is not symmetric."""

    low: Finite
    high: Finite


class TensorSchemaPart(TypedDict):
    """How one kind of tensor is quantized."""

    symmetry: str
    granularity: str
    narrow: bool
    denominator: str
    power_of_two: str


class SchemaPart(TypedDict):
    """The schema in full."""

    name: str
    activations: TensorSchemaPart
    weights: TensorSchemaPart


class TopologyPart(TypedDict):
    """The nodes and edges that run in integers."""

    node_conds: dict[str, bool]
    edge_conds: dict[str, bool]


class StrategyPart(TypedDict):
    """The decisions of the strategy."""

    model_hash: str
    hardware: str
    schema: SchemaPart
    topology: TopologyPart
    structure: dict[str, str]
    bits: dict[str, int]
    thresholds: dict[str, Finite | LowHigh | list[Finite | LowHigh]]


class Measured(TypedDict, total=False):
    """The evaluation's part of a strategy's results."""

    sim_acc: float | None
    quant_acc: float | None
    float_acc: float | None
    cost: CostPart


class MoreResults(Measured, total=False):
    """The results of recovery and evaluation."""

    recover: RecoveryRecord


class ResultsPart(MoreResults):
    """How the strategy was found, and the results of recovery and evaluation."""

    search: SearchReport | ReplayedSearch
    rectified: list[RectifiedRow]


class StrategyFile(TypedDict):
    """strategy.json without its origin."""

    version: Literal["1.0"]
    strategy: StrategyPart
    results: ResultsPart
