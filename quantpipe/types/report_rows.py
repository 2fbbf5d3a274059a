"""Types of the rows of the lists in report.json. The comments are the meanings of the keys in docs/artifacts.md."""

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

    # its name
    output: str
    # null if nothing differs
    sqnr_db: float | None
    # as a share of the float output's variance
    mse: float | None
    # as above
    cosine: float | None
    # for outputs that are not floats, instead of the three before: the share of equal elements
    equal: NotRequired[float]
    # samples excluded because the shapes differ, if any. In metrics and losses such a sample counts as the mean of the
    # float output everywhere. More than one in a hundred gives a warning
    other_shape: NotRequired[int]
    # of class maps: mean over classes of the intersection over union with the float model's map; they have `equal`,
    # too. Classes of less than 0.1 % of the pixels do not count
    miou: NotRequired[float | None]
    # `keypoints`, `pixels`, `pixels_95`: of heat maps: number of peaks, and by how many pixels they move: mean and 95 %
    # quantile
    keypoints: NotRequired[int]
    pixels: NotRequired[float]
    pixels_95: NotRequired[float]
    # for an output that joins different quantities: `tensor` that holds the part, elements `first` to `last` - 1 along
    # `axis`, `sqnr_db`
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
    """One form of the plan: its file, and how its integers compare with the simulated model's."""

    # `form`, `file`: name and file
    form: str
    file: str
    # size of all its files
    bytes: int
    # time of writing
    seconds: float
    # it computes what was searched. If not, its differences are counted but decide nothing
    exact: bool
    # why it is not exact
    inexact: str | None
    # `samples`, `tensors`, `elements`, `differing`, `max_lsb`, `first_tensor`: as in `agreement`; null if it was not
    # executed
    samples: int | None
    tensors: int | None
    elements: int | None
    differing: int | None
    max_lsb: float | None
    first_tensor: str | None
    # why it was not executed
    why_not: str | None
    # of a run at batch 1, if measured
    latency_ms: float | None
    # for C: `constant_bytes`, `memory_bytes`, `arithmetic`
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

    # `tensor`, `bits`, `scale`, `zero_point`: the tensor and its integers
    tensor: str
    bits: int
    scale: float
    zero_point: int
    # all errors up to this tensor
    sqnr_db: float | None
    # `rounding`, `saturation`: error of quantizing this tensor alone, as a share of its mean square
    rounding: float
    saturation: float
    # share of elements clipped
    saturated: float
    # share of elements that overflowed its accumulator, 0 if impossible
    overflow: float


class ChoiceRow(TypedDict):
    """A decision: bits of a tensor, or a structural option."""

    key: str
    kind: str
    value: int | str
    threshold: float | None
    edges: list[str]


class StepRow(TypedDict):
    """A step of recovery: the loss before and after it, and whether it was kept; `curve`: the loss by epochs.

    `limited`: it was left out by `effort.recover_passes`.
    """

    step: str
    kl_before: float
    kl_after: float | None
    kept: bool
    seconds: NotRequired[float]
    gain: NotRequired[float]
    on: NotRequired[str]
    reason: NotRequired[str]
    limited: NotRequired[bool]
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

    # its options, or `default`
    session: str
    # whether its differences decide
    decides: bool
    # `samples`, `elements`, `differing`, `first_tensor`: as above
    samples: int
    elements: int
    differing: int
    first_tensor: str | None
    # elements that differ within the bound
    inexact: int
    # why the runtime rejects such a session
    refused: str | None
    # every integer is an output; else the file is unchanged
    watched: bool
    # the session with the same kernels on this processor; this one was not run (`samples` is 0). Else null
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

    # `forms`, `keep`: how the file is written; `import.keep`
    forms: list[str]
    keep: str
    # `tensors`, `weights`, `dynamic`: numbers of tensors, weights and `dynamic` ranges
    tensors: int
    weights: int
    dynamic: int
    # [{`name`, `kind`, `given`, `here`, `reason`, `elements`, `differing`, `sqnr_db`}] of everything that differs here
    changed: list[ImportedChangeRow]
    # [{`name`, `reason`}] of everything removed by the clean-up
    lost: list[ImportedLostRow]
    # `weight_integers`, `weight_differing`: integers of weights that have the file's scales, and how many of them
    # differ
    weight_integers: int
    weight_differing: int
    # comparison with the file in onnxruntime: `samples`, `tensors` whose scale is the file's, `elements`, `differing`,
    # `differing_with_real_softmax`, `first_tensor`, `outputs` (`output`, `elements`, `differing`, `sqnr_db`)
    compared: ImportedComparedPart | None
    # why the file cannot run; `compared` is then null
    why_not: str | None
