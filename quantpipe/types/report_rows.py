"""Types of the rows of the lists in report.json. docs/artifacts.md describes every key."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class OutputPartRow(TypedDict):
    """The accuracy of a part of an output that is a quantity of its own; `tensor` holds the part."""

    tensor: str
    axis: int
    first: int
    last: int
    sqnr_db: float | None


class OutputRow(TypedDict):
    """The accuracy of an output of the realized model, compared with the float model's."""

    output: str
    sqnr_db: float | None
    mse: float | None
    cosine: float | None
    equal: NotRequired[float]
    miou: NotRequired[float | None]
    keypoints: NotRequired[int]
    pixels: NotRequired[float]
    pixels_95: NotRequired[float]
    other_shape: NotRequired[int]
    parts: NotRequired[list[OutputPartRow]]


class ContributionRow(TypedDict):
    """What one changed choice contributed: the result, compared with the result with this choice as it began.

    `gain`: how much value it gains, null where the result does not work without it; `saved`: how much cost.
    """

    choice: str
    before: int | str
    after: int | str
    gain: float | None
    saved: float


class ConfirmationPart(TypedDict):
    """Whether the ranges that a search changed gain more than chance explains, on samples that it has not seen.

    `samples`: number of samples that judge. `changed`: number of ranges that the search changed. `deviations`: by how
    many standard errors the estimated ranges lose more (null: no number). `kept`: whether the result has the changed
    ranges.
    """

    samples: int
    changed: int
    deviations: float | None
    kept: bool


class StartPart(TypedDict):
    """What `search.start` gave: the digest of the file, and how many points of it were asked."""

    start: str
    points: int


class FloatNodeRow(TypedDict):
    """A node that stays in float. `type` is there where it computes in float16."""

    node: str
    op: str
    reason: str
    type: NotRequired[str]


class WithoutKernelRow(TypedDict):
    """A node that the runtime has no kernel of its own for."""

    node: str
    op: str
    reasons: list[str]


class RaisedRow(TypedDict):
    """A weight whose scale was raised so that its bias fits."""

    node: str
    tensor: str
    channels: int
    factor: float
    reason: str


RescaleRow = TypedDict("RescaleRow", {"node": str, "tensor": str, "from": float, "to": float})
"""An operand that is brought to a common scale."""

RectifiedRow = TypedDict(
    "RectifiedRow", {"tensor": str, "group": str, "from": list[float], "to": list[float], "reason": str}
)
"""A range that a common scale changed."""


class TableRow(TypedDict):
    """A table of which rows are looked up, as it is stored: bytes before and after, and what its numbers lost."""

    tensor: str
    rows: int
    columns: int
    bits: int
    offset: bool
    numbers: str
    layout: str
    float_bytes: int
    bytes: int
    sqnr_db: float | None


class ThresholdRuleRow(TypedDict):
    """A rule of `threshold.rules`, and what it decides."""

    rule: str
    tensors: list[str]
    overruled: list[str]


class FormRow(TypedDict):
    """One form of the plan: its file, and how its integers compare with the simulated model's.

    `seconds` is the time of writing it; `samples` and the keys after it are null where it was not executed, for the
    reason `why_not`. `inexact` is the reason why a form does not compute the searched numbers; its differences are
    counted and do not decide.
    """

    form: str
    file: str
    bytes: int
    seconds: float
    exact: bool
    inexact: str | None
    samples: int | None
    tensors: int | None
    elements: int | None
    differing: int | None
    max_lsb: float | None
    first_tensor: str | None
    latency_ms: float | None
    why_not: str | None
    facts: dict[str, float | int | str]


class OverflowRow(TypedDict):
    """An accumulator that some input could overflow, and how often the samples did."""

    node: str
    tensor: str
    accumulator: str
    overflow: str
    bound: int
    elements: int
    overflowed: int
    share: float


class LayerRow(TypedDict):
    """The errors of a stored tensor."""

    tensor: str
    bits: int
    scale: float
    zero_point: int
    sqnr_db: float | None
    rounding: float
    saturation: float
    saturated: float
    overflow: float


class ChoiceRow(TypedDict):
    """A decision: bits of a tensor, or a structural option."""

    key: str
    kind: str
    value: int | str
    threshold: float | None
    edges: list[str]


class StepRow(TypedDict):
    """A step of recovery: the loss before and after it, and whether it was kept; `curve`: the loss by epochs."""

    step: str
    kl_before: float
    kl_after: float | None
    kept: bool
    seconds: NotRequired[float]
    gain: NotRequired[float]
    on: NotRequired[str]
    reason: NotRequired[str]
    curve: NotRequired[list[float]]


class RecoveredLayerRow(TypedDict):
    """The error of a layer before and after recovery."""

    node: str
    bits: int
    error_nearest: float
    error_recovered: float
    uncertainty: float


class ReasonRow(TypedDict):
    """A node and why nothing is proved of it."""

    node: str
    reason: str


class FinalistRow(TypedDict):
    """A candidate that was recovered, and what that made of it."""

    trial: int
    cost: float
    value: float
    recovered: float
    picked: bool


class LossRow(TypedDict):
    """How an output counts in the loss; `parts`: the tensors whose parts of it count each by itself."""

    output: str
    kind: str
    weight: float
    parts: NotRequired[list[str]]


class SessionRow(TypedDict):
    """The results of the realized model in sessions of one kind; `same_as`: another one that has the same kernels."""

    session: str
    decides: bool
    samples: int
    elements: int
    differing: int
    inexact: int
    first_tensor: str | None
    refused: str | None
    watched: bool
    same_as: NotRequired[str | None]


class RoleRow(TypedDict):
    """Nodes of one role that stay in float: how many, which share of the multiplications, and why."""

    role: str
    nodes: int
    share: float | None
    why: str


class FindingRow(TypedDict):
    """A finding about the ranges of a node before anything is measured."""

    kind: str
    node: str
    tensor: str
    note: str


class PrecisionTrialRow(TypedDict):
    """A measured set of nodes in float."""

    what: str
    loss: float
    cost: float
    nodes: int


class LoadedPart(TypedDict):
    """The file that statistics were loaded from."""

    file: str
    format: str
    derived: dict[str, list[str]]
    unknown: list[str]
    warnings: list[str]


class ImportedChangeRow(TypedDict):
    """A tensor or weight of a quantized model that is another one in the realized model."""

    name: str
    kind: str
    given: str
    here: str
    reason: str
    elements: int
    differing: int | None
    sqnr_db: float | None


class ImportedLostRow(TypedDict):
    """A tensor or weight of a quantized model that the clean model does not have."""

    name: str
    reason: str


class ImportedOutputRow(TypedDict):
    """An output compared with the output of the quantized model as onnxruntime runs it."""

    output: str
    elements: int
    differing: int
    sqnr_db: float | None


class ImportedComparedPart(TypedDict):
    """The realized model's integers compared with the integers of the quantized model it was imported from.

    `differing_with_real_softmax`: the remaining differences where onnxruntime does not approximate a Softmax between
    integers; null without such a Softmax, or where nothing differs.
    """

    samples: int
    tensors: int
    elements: int
    differing: int
    differing_with_real_softmax: int | None
    first_tensor: str | None
    outputs: list[ImportedOutputRow]


class ImportedPart(TypedDict):
    """The imported parts of a quantized model, the changes to them, and the differences."""

    forms: list[str]
    keep: str
    tensors: int
    weights: int
    dynamic: int
    changed: list[ImportedChangeRow]
    lost: list[ImportedLostRow]
    weight_integers: int
    weight_differing: int
    compared: ImportedComparedPart | None
    why_not: str | None
