"""What explain.json holds, as types. docs/artifacts.md says what every key means."""

from __future__ import annotations

from typing import Literal, TypedDict

CauseKind = Literal["tensor", "weight", "bias"]


class MomentsRow(TypedDict):
    """The values of a tensor in four figures, in real units."""

    min: float
    max: float
    mean: float
    variance: float


class AloneRow(TypedDict):
    """What an output of the float model loses, where nothing but one tensor is quantized: its SQNR in dB."""

    output: str
    sqnr_db: float | None


class CauseRow(TypedDict):
    """What a stored tensor, a weight or a bias costs."""

    tensor: str
    kind: CauseKind
    node: str
    role: str
    bits: int
    alone: float
    outputs: list[AloneRow]
    rounding: float | None
    clipping: float | None
    accumulated: float | None
    local_rounding: float | None
    local_clipping: float | None
    saturated: float | None
    overflow: float
    before: MomentsRow | None
    after: MomentsRow | None


class AdviceRow(TypedDict):
    """What a change of the configuration gains and costs, measured."""

    role: str
    members: list[str]
    change: str
    overrides: list[str]
    loss_before: float
    loss_after: float
    gain: float
    accuracy_after: float | None
    cost_before: float
    cost_after: float


class AccuracyPart(TypedDict):
    """The share of right answers on the samples of the search."""

    float: float | None
    run: float | None


class ExplainReport(TypedDict):
    """The whole answer."""

    version: str
    model: str
    hardware: str
    shortfall: str | None
    loss: float
    loss_before_recovery: float | None
    accuracy: AccuracyPart
    samples: int
    doubts: list[str]
    causes: list[CauseRow]
    advice: list[AdviceRow]
    evaluations: int
    seconds: float
