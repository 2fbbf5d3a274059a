"""Types of explain.json. docs/artifacts.md describes every key."""

from __future__ import annotations

from typing import Literal, TypedDict

CauseKind = Literal["tensor", "weight", "bias", "raw", "float"]


class MomentsRow(TypedDict):
    """The values of a tensor in four figures, in real units."""

    min: float
    max: float
    mean: float
    variance: float


class AloneRow(TypedDict):
    """The loss of an output of the float model, where only one tensor is quantized: its SQNR in dB."""

    output: str
    sqnr_db: float | None


class SplitRow(TypedDict):
    """The error of a stored tensor in the integer model by where it comes from, as shares of its mean square."""

    inherited: float
    weight: float
    bias: float
    clipping: float
    rounding: float
    overflow: float
    rescale: float


class ChannelRow(TypedDict):
    """One channel of a tensor or weight: as the rows of whole ones, in real units."""

    channel: int
    sqnr_db: float | None
    rounding: float
    clipping: float
    saturated: float
    min: float
    max: float


class CauseRow(TypedDict):
    """The cost of a stored tensor, a weight or a bias."""

    tensor: str
    kind: CauseKind
    node: str
    role: str
    bits: int
    alone: float
    samples: int
    outputs: list[AloneRow]
    rounding: float | None
    clipping: float | None
    accumulated: float | None
    local_rounding: float | None
    local_clipping: float | None
    saturated: float | None
    overflow: float
    split: SplitRow | None
    before: MomentsRow | None
    after: MomentsRow | None
    channels: list[ChannelRow] | None
    fault: str


class AccumulatorRow(TypedDict):
    """The size of a sum of products: its static bound, and the accumulator's shares of it and of the largest bias."""

    node: str
    tensor: str
    accumulator: str
    bound: float
    used: float
    bias: float | None
    overflowed: float | None


class AdviceRow(TypedDict):
    """The measured gain and cost of a change of the configuration."""

    role: str
    members: list[str]
    change: str
    overrides: list[str]
    loss_before: float
    loss_after: float
    gain: float
    accuracy_after: float | None
    cost_before: float | None
    cost_after: float | None
    advised: bool
    reason: str


class UnmeasuredRow(TypedDict):
    """A change that might help, and would have cost too much to measure."""

    change: str
    overrides: list[str]


class DiagnosisPart(TypedDict):
    """The section of a report whose result misses: the reason, the largest losses, and their remedies.

    Attributes:
        why: The missed targets, in sentences.
        samples: The samples of the search on which all of it was measured.
        loss: The loss of the result on these samples.
        loss_before_recovery: The loss without recovery, which culprits and advice refer to; None without recovery.
        culprits: The most costly of the tensors with the most noise of their own, worst first.
        advice: Changes that are worth it, the best first.
        unmeasured: Changes of the whole run that may help as well.
        passes: The cost of the diagnosis, in passes of the float model over the search samples.
        seconds: The time of the diagnosis.
    """

    why: list[str]
    samples: int
    loss: float
    loss_before_recovery: float | None
    culprits: list[CauseRow]
    advice: list[AdviceRow]
    unmeasured: list[UnmeasuredRow]
    passes: float
    seconds: float


class AccuracyPart(TypedDict):
    """The share of right answers on the samples of the search."""

    float: float | None
    run: float | None


class ExplainReport(TypedDict):
    """The whole answer."""

    version: str
    model: str
    file: str | None
    hardware: str
    shortfall: str | None
    loss: float
    loss_before_recovery: float | None
    loss_by_scales: float | None
    accuracy: AccuracyPart
    samples: int
    doubts: list[str]
    causes: list[CauseRow]
    accumulators: list[AccumulatorRow]
    advice: list[AdviceRow]
    evaluations: int
    passes: float
    seconds: float
