"""What strategy.json holds, as types. docs/artifacts.md says what every key means."""

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
    """What runs in integers, by node and by edge."""

    node_conds: dict[str, bool]
    edge_conds: dict[str, bool]


class StrategyPart(TypedDict):
    """What was decided."""

    model_hash: str
    hardware: str
    schema: SchemaPart
    topology: TopologyPart
    structure: dict[str, str]
    bits: dict[str, int]
    thresholds: dict[str, Finite | LowHigh | list[Finite | LowHigh]]


class Measured(TypedDict, total=False):
    """What evaluation adds to the results of a strategy."""

    sim_acc: float | None
    quant_acc: float | None
    float_acc: float | None
    cost: CostPart


class MoreResults(Measured, total=False):
    """What recovery and evaluation add."""

    recover: RecoveryRecord


class ResultsPart(MoreResults):
    """How it was found, and what recovery and evaluation made of it."""

    search: SearchReport | ReplayedSearch
    rectified: list[RectifiedRow]


class StrategyFile(TypedDict):
    """strategy.json without its origin."""

    version: Literal["1.0"]
    strategy: StrategyPart
    results: ResultsPart
