"""Types of explain.json. The comments are the meanings of the keys in docs/artifacts.md."""

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

    # kernel's operands
    inherited: float
    # `weight`, `bias`: its weight, its bias
    weight: float
    bias: float
    # `clipping`, `rounding`: storing the result
    clipping: float
    rounding: float
    # sum
    overflow: float
    # arithmetic between (multipliers, shifts, tables), compared with exact rounding
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

    # `tensor`, `kind`, `bits`: kinds: `tensor`, `weight`, `bias`, `raw`, `float`
    tensor: str
    kind: CauseKind
    bits: int
    # node that makes or reads it
    node: str
    # the same for nodes at the same place of repeated blocks
    role: str
    # `alone`, `samples`: loss of the float model with only this quantized, on this number of samples
    alone: float
    samples: int
    # in that model, per compared `output`, `sqnr_db`
    outputs: list[AloneRow]
    # `rounding`, `clipping`: losses of these two parts, measured separately for the worst rows, else null. They need
    # not add up
    rounding: float | None
    clipping: float | None
    # `accumulated`, `local_rounding`, `local_clipping`, `saturated`, `overflow`: as `sqnr_db`, `rounding`,
    # `saturation`, `saturated`, `overflow` of [`layers`](#errors-per-tensor). For a file's bias, `overflow` is the
    # share of its integers at the ends of their type
    accumulated: float | None
    local_rounding: float | None
    local_clipping: float | None
    saturated: float | None
    overflow: float
    # `before`, `after`: `min`, `max`, `mean`, `variance` of its values in the float and in the quantized model
    before: MomentsRow | None
    after: MomentsRow | None
    # for the worst tensors and for sums that overflow: the sources of the error in the integer model, as shares of the
    # mean square (below)
    split: SplitRow | None
    # with `explain.per_channel`, a row per channel: `channel`, `sqnr_db`, `rounding`, `clipping`, `saturated`, `min`,
    # `max`
    channels: list[ChannelRow] | None
    # fault in words, if the numbers show it, else empty: values far beyond the range, outliers, a mask, parts far
    # apart, a raised weight scale, sums that overflow
    fault: str


class AccumulatorRow(TypedDict):
    """The size of a sum of products: its static bound, and the accumulator's shares of it and of the largest bias."""

    # `node`, `tensor`, `accumulator`: node, tensor, type of the accumulator
    node: str
    tensor: str
    accumulator: str
    # largest sum over all inputs
    bound: float
    # `used`, `bias`: share of the type used by that bound, and by the largest bias; above 1 it can overflow
    used: float
    bias: float | None
    # share that overflowed on samples; null if impossible, and for a file
    overflowed: float | None


class AdviceRow(TypedDict):
    """The measured gain and cost of a change of the configuration."""

    # `role`, `members`: tensors or weights concerned; empty if the change is about the whole run
    role: str
    members: list[str]
    # in words
    change: str
    # to append to the run's own command
    overrides: list[str]
    # `loss_before`, `loss_after`, `gain`: `gain` is the share of the loss removed, negative if the loss grows
    loss_before: float
    loss_after: float
    gain: float
    # accuracy with the change
    accuracy_after: float | None
    # `cost_before`, `cost_after`: hardware's cost (null for a file)
    cost_before: float | None
    cost_after: float | None
    # whether it removes 2 % of the loss or, in a run that meets its objective, saves 2 % of the cost and still meets it
    advised: bool
    # fault it addresses; for a change of the whole run, the fault of the worst place (empty if unknown)
    reason: str


class UnmeasuredRow(TypedDict):
    """A change that might help, and would have cost too much to measure."""

    change: str
    overrides: list[str]


class DiagnosisPart(TypedDict):
    """The section of a report whose result misses: the reason, the largest losses, and their remedies."""

    # reasons, in sentences
    why: list[str]
    # rows of `causes` as in [explain.json](#explainjson), worst first
    culprits: list[CauseRow]
    # rows as in explain.json, only advised ones
    advice: list[AdviceRow]
    # changes of the whole run that may help as well (`change`, `overrides`)
    unmeasured: list[UnmeasuredRow]
    # `samples`, `loss`: search samples of all measurements, and the loss of the result on them
    samples: int
    loss: float
    # if there was recovery; culprits and advice are about the result without it
    loss_before_recovery: float | None
    # `passes`, `seconds`: effort; `passes` of the float model over the search samples
    passes: float
    seconds: float


class AccuracyPart(TypedDict):
    """The share of right answers on the samples of the search."""

    float: float | None
    run: float | None


class ExplainReport(TypedDict):
    """The whole answer."""

    # `version`, `model`, `hardware`: of quantpipe, and of the run; for a file `hardware` is its form, such as `QDQ`
    version: str
    model: str
    hardware: str
    # quantized file, null for a run
    file: str | None
    # by how much the run misses its objective, in a sentence; null if it does not
    shortfall: str | None
    # `loss`, `accuracy`: of the run, on its search samples; `accuracy` has `float` and `run`, null without labels
    loss: float
    accuracy: AccuracyPart
    # loss without recovery, if recovery changed the run's numbers; else null. `causes` and `advice` are then about the
    # run without recovery, because its biases compensate errors elsewhere
    loss_before_recovery: float | None
    # for a file: the loss of the float model with all its scales and integers, the starting point of `advice`; else
    # null
    loss_by_scales: float | None
    # number of samples for `alone` and `advice`
    samples: int
    # objections to the samples or their preprocessing, to settle first
    doubts: list[str]
    # one row per stored tensor, weight and bias, worst first; then results passed on as accumulators, and results of
    # nodes in float
    causes: list[CauseRow]
    # one row per sum of products, or of two tensors
    accumulators: list[AccumulatorRow]
    # one row per measured change, the best first
    advice: list[AdviceRow]
    # `evaluations`, `seconds`, `passes`: effort; `passes`: of the errors alone, in whole passes of the float model over
    # `samples`
    evaluations: int
    seconds: float
    passes: float
