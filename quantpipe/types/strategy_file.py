"""Types of strategy.json. The comments are the meanings of the keys in docs/artifacts.md."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from quantpipe.types.report_rows import RectifiedRow
from quantpipe.types.reports import CostPart
from quantpipe.types.search_report import RecoveryRecord, ReplayedSearch, SearchReport

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

    # `sha256:` of the model file
    model_hash: str
    # name of the hardware file
    hardware: str
    # in full: `name`, and for `activations` and `weights` `symmetry`, `granularity`, `narrow`, `denominator`,
    # `power_of_two`
    schema: SchemaPart
    # `node_conds`, `edge_conds`
    topology: TopologyPart
    # choice → option, for differences from the default topology: layers left in float, treatments of additions,
    # granularity of weights
    structure: dict[str, str]
    # edge → bits; edges of one group have the same
    bits: dict[str, int]
    # tensor → T for [-T, T]; a mapping of `low` and `high` for other ranges; a list with one such entry per output
    # channel for weights with scales per channel
    thresholds: dict[str, Finite | LowHigh | list[Finite | LowHigh]]


class Measured(TypedDict, total=False):
    """The evaluation's part of a strategy's results."""

    # `sim_acc`, `quant_acc`, `float_acc`: top-1 of simulated, realized, float; null without labels
    sim_acc: float | None
    quant_acc: float | None
    float_acc: float | None
    # by every measure, as in the report
    cost: CostPart


class MoreResults(Measured, total=False):
    """The results of recovery and evaluation."""

    # as in `recover/steps.json`: `steps` as in the report; `layers` with `node`, `bits`, `error_nearest`,
    # `error_recovered`, `uncertainty`; digest of the `weights`; `metrics`; `gain`, the report's `recovery`
    recover: RecoveryRecord


class ResultsPart(MoreResults):
    """How the strategy was found, and the results of recovery and evaluation."""

    # `search`, `rectified`: as in the report
    search: SearchReport | ReplayedSearch
    rectified: list[RectifiedRow]


class StrategyFile(TypedDict):
    """strategy.json without its origin."""

    version: Literal["1.0"]
    strategy: StrategyPart
    results: ResultsPart
