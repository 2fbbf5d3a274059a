"""Types of report.json. docs/artifacts.md describes every key.

They are plain dictionaries, since that is what is stored and read back. A float that is not finite is null in the file.
The JSON Schemas in `quantpipe/artifacts/schemas` are made from these types (`python -m website.schemas`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NotRequired, TypedDict, cast

from quantpipe.types.baseline import BaselinePart
from quantpipe.types.deployment import DeploymentPart
from quantpipe.types.detected import DetectionsPart
from quantpipe.types.effort import EffortPart
from quantpipe.types.explained import DiagnosisPart
from quantpipe.types.report_rows import (
    ChoiceRow,
    ConfirmationPart,
    ContributionRow,
    FinalistRow,
    FindingRow,
    FloatNodeRow,
    FormRow,
    ImportedPart,
    LayerRow,
    LoadedPart,
    LossRow,
    OutputRow,
    OverflowRow,
    PrecisionTrialRow,
    RaisedRow,
    ReasonRow,
    RecoveredLayerRow,
    RectifiedRow,
    RescaleRow,
    RoleRow,
    SessionRow,
    StartPart,
    StepRow,
    TableRow,
    ThresholdRuleRow,
    WithoutKernelRow,
)
from quantpipe.types.sample_rows import (
    BeyondRow,
    CacheRow,
    EnoughPart,
    GeneralizationPart,
    GroupsPart,
    NextTokensPart,
    StepsPart,
)
from quantpipe.types.speed import LatencyPart, SpeedPart

ObjectiveForm = Literal["least_cost_within_tolerance", "best_value_within_cost", "weighted", "pareto"]


class PrecisionRecord(TypedDict, total=False):
    """The nodes that stay in float, decided before the search, and the measurements for that; or `why_not`."""

    mode: str
    why_not: str
    loss_before: float
    loss_after: float
    cost_before: float
    cost_after: float
    evaluations: int
    seconds: float
    roles: list[RoleRow]
    findings: list[FindingRow]
    trials: list[PrecisionTrialRow]
    notes: list[str]
    ranges: list[str]
    raised: list[str]
    float: list[str]


class LeftOutPart(TypedDict, total=False):
    """Options that the device would gain nothing from; empty where none are."""

    options: int
    choices: int


class DevicePart(TypedDict):
    """The benefit of the search by the hardware's own cost."""

    cost: str
    start: float
    result: float
    asked: str
    left_out: LeftOutPart
    sentence: str | None


class SearchReport(TypedDict):
    """How a strategy was found: the part `search` of a report, and of the results in strategy.json."""

    algorithm: str
    evaluations: int
    seconds: float
    evaluations_per_second: float | None
    pruned: int
    weights: str
    evaluator: str
    workers: int
    float_pass_seconds: float
    best_value: float
    best_cost: float
    feasible: bool
    shortfall: str | None
    least_value: float | None
    stopped: Literal["done", "budget", "target", "interrupted"]
    space_size: float | None
    space_log10: float
    metrics: dict[str, float]
    metric: str
    losses: list[LossRow]
    cost: str
    pinned: dict[str, int | str]
    form: ObjectiveForm
    notes: list[str]
    trace: list[list[float]]
    trace_cost: list[list[float]]
    finalists: NotRequired[list[FinalistRow]]
    front: NotRequired[list[list[float]]]
    picked: NotRequired[int]
    pick: NotRequired[str]
    trial: NotRequired[int]
    precision: NotRequired[PrecisionRecord]
    device: NotRequired[DevicePart]
    contributions: NotRequired[list[ContributionRow]]
    confirmation: NotRequired[ConfirmationPart]
    changed_choices: NotRequired[int]
    start: NotRequired[StartPart]
    threshold_rules: NotRequired[list[ThresholdRuleRow]]


class FrontPart(TypedDict, total=False):
    """The additions of a search for a Pareto front; empty for any other."""

    front: list[list[float]]
    picked: int
    pick: str
    shortfall: str | None


class ReplayedSearch(TypedDict, total=False):
    """The record of a replayed candidate of a log; empty for a strategy without a record of how it was found."""

    algorithm: str
    trial: int
    best_value: float
    best_cost: float
    metrics: dict[str, float]
    weights: str
    threshold_rules: NotRequired[list[ThresholdRuleRow]]


class RecoveryGain(TypedDict):
    """The cost and gain of recovery for a missed objective."""

    metric: str
    least_value: float
    before: float
    after: float
    accuracy_before: float | None
    accuracy_after: float | None
    met: bool
    kept: bool
    seconds: float
    evaluations: int


class RecoveryRecord(TypedDict):
    """The record of recovery: recover/steps.json, and `recover` in the results of strategy.json; empty without."""

    steps: NotRequired[list[StepRow]]
    layers: NotRequired[list[RecoveredLayerRow]]
    weights: NotRequired[str | None]
    metrics: NotRequired[dict[str, float]]
    gain: NotRequired[RecoveryGain]


class RunPart(TypedDict):
    """The settings of the run. The keys from `dataset` on are the options of the groups of the configuration."""

    model: str
    model_path: str
    model_hash: str
    command: Literal["run", "replay"]
    seed: int
    folder: str
    dataset: NotRequired[str]
    hardware: NotRequired[str]
    schema: str
    threshold: NotRequired[str | None]
    search: NotRequired[str | None]
    objective: NotRequired[str | None]
    recover: NotRequired[str]
    train: NotRequired[str]
    precision: NotRequired[str]
    realize: str
    executor: NotRequired[str]
    effort: NotRequired[str]
    tracking: NotRequired[str]
    float_on: str
    samples: int
    realized_samples: NotRequired[int]
    output: NotRequired[str]


class ModelMetrics(TypedDict):
    """One model compared with the float model, by the output that metrics are about; of a detector, by its detections.

    `detections`: average precision of what the model finds, with what the float model is sure of taken for the objects.
    `map`, `map50`: mean average precision by labels, over overlaps of 0.5 to 0.95 and at 0.5.
    """

    top1: float | None
    kl: float | None
    sqnr_db: float | None
    cosine: float | None
    detections: NotRequired[float | None]
    map: NotRequired[float | None]
    map50: NotRequired[float | None]


class Metrics(TypedDict):
    """The three models side by side; `default_session`: the realized one without the session options it needs."""

    float: ModelMetrics
    simulated: ModelMetrics
    realized: ModelMetrics
    default_session: NotRequired[ModelMetrics]


def by_model(metrics: Metrics) -> Mapping[str, ModelMetrics]:
    """Return the same as a mapping, to go through the models."""
    return cast("Mapping[str, ModelMetrics]", metrics)


class AgreementPart(TypedDict):
    """Whether simulated and realized model hold the same integers."""

    tensors: int
    elements: int
    differing: int
    behind_float: int
    max_lsb: float
    first_tensor: str | None
    samples: int
    real_elements: int
    real_inexact: int
    sessions: list[SessionRow]


class DataPart(TypedDict):
    """The samples of one split."""

    samples: int
    digest: str
    source: NotRequired[str]
    duplicates: int
    skipped: int
    skipped_names: list[str]
    state: NotRequired[dict[str, str]]
    sequences: NotRequired[int]


class CalibratePart(TypedDict):
    """The calibration run; null in a run without one."""

    seconds: float | None
    samples: int | None
    float_pass_seconds: float | None
    peak_rss_mb: float | None
    loaded: NotRequired[LoadedPart]


class ModelPart(TypedDict):
    """Sizes, operations and bits."""

    float_bytes: int
    realized_bytes: int
    macs: int
    bops: float
    mean_weight_bits: float
    mean_activation_bits: float
    float_nodes: int
    integer_nodes: int


class CostPart(TypedDict):
    """The strategy by every measure of cost."""

    bits: float
    weight_bytes: float
    stored_bytes: float
    bops: float
    cycles: float
    peak_activation_bytes: float
    predicted_latency: NotRequired[float]
    energy: NotRequired[float]


class ConversionsPart(TypedDict):
    """How many tensors change their form in a run."""

    ends: int
    inside: int
    rescales: int


class ProofPart(TypedDict):
    """The proved claims of the certificate, and the claims that are checked on samples."""

    kernels: int
    proved: int
    checked: int
    float_nodes: int
    samples: int
    departing: int
    on_samples: list[ReasonRow]


class OptionalParts(TypedDict, total=False):
    """Hold the parts that not every report has.

    Attributes:
        free_running: The realized model with states of its own, where state is carried.
        steps: Its steps with a cache, compared with one run over the same tokens.
        caches: The caches of a decoder, on a device that holds them in integers.
        next_tokens: The predictions and continuations of a decoder, next to the float model's.
        proof: The claims of the certificate.
        imported: The imported parts of a model that was quantized already.
        forms: Every form of the plan, where a run writes several.
        baseline: The result compared with onnxruntime's own quantization, where onnxruntime is the device.
        diagnosis: The faults of a result that misses its objective or loses too much.
        detections: The layout of boxes and scores, where the model is a detector.
        effort: The time and the memory of the run, by stage and part.
    """

    imported: ImportedPart

    free_running: ModelMetrics
    steps: StepsPart
    caches: list[CacheRow]
    next_tokens: NextTokensPart
    proof: ProofPart
    forms: list[FormRow]
    baseline: BaselinePart
    diagnosis: DiagnosisPart
    detections: DetectionsPart
    effort: EffortPart


class RunReport(OptionalParts):
    """report.json without its origin."""

    version: str
    run: RunPart
    metrics: Metrics
    outputs: list[OutputRow]
    intervals: dict[str, list[float]]
    doubts: list[str]
    agreement: AgreementPart
    deployment: DeploymentPart
    data: dict[str, DataPart]
    generalization: GeneralizationPart | None
    calibrate: CalibratePart
    precision: PrecisionRecord | None
    search: SearchReport | ReplayedSearch
    model: ModelPart
    cost: CostPart
    latency: LatencyPart
    speed: SpeedPart | None
    float_nodes: list[FloatNodeRow]
    conversions: ConversionsPart
    without_kernel: list[WithoutKernelRow]
    rescales: list[RescaleRow]
    raised: list[RaisedRow]
    tables: list[TableRow]
    overflow: list[OverflowRow]
    groups: GroupsPart
    beyond: list[BeyondRow]
    enough: EnoughPart | None
    rectified: list[RectifiedRow]
    recover: list[StepRow]
    recovery: RecoveryGain | None
    layers: list[LayerRow]
    layer_samples: int
    choices: list[ChoiceRow]
    host: str | None
    warnings: list[str]
