"""Types of report.json. The comments are the meanings of the keys in docs/artifacts.md.

They are plain dictionaries, since that is what is stored and read back. A float that is not finite is null in the file.
The JSON Schemas in `quantpipe/artifacts/schemas` are made from these types (`python -m website.schemas`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NotRequired, TypedDict, cast

from quantpipe.types.baseline import BaselinePart
from quantpipe.types.explained import DiagnosisPart
from quantpipe.types.report_parts import DeploymentPart, DetectionsPart, EffortPart, LatencyPart, SpeedPart
from quantpipe.types.report_rows import (
    ChoiceRow,
    FloatNodeRow,
    FormRow,
    ImportedPart,
    LayerRow,
    LoadedPart,
    OutputRow,
    OverflowRow,
    RaisedRow,
    ReasonRow,
    RectifiedRow,
    RescaleRow,
    SessionRow,
    StepRow,
    TableRow,
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
from quantpipe.types.search_report import PrecisionRecord, RecoveryGain, ReplayedSearch, SearchReport


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
    """One model compared with the float model by the output of the metrics; of a detector, by its detections."""

    # null without labels
    top1: float | None
    # in nats, mean over samples; null for outputs that are not floats
    kl: float | None
    # null for the float model itself
    sqnr_db: float | None
    # mean over samples of the cosine between the two outputs, with a sample's elements as one vector; null if something
    # is not finite
    cosine: float | None
    # for a detector: average precision, with the confident detections of the float model as objects
    detections: NotRequired[float | None]
    # `map`, `map50`: mean average precision over overlaps of 0.5 to 0.95, and at 0.5; for a detector with labels of
    # objects (null without the extra `coco`)
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

    # `tensors`, `elements`: integer tensors, and elements compared
    tensors: int
    elements: int
    # samples compared
    samples: int
    # how many of the elements are floats that leave the integers
    real_elements: int
    # elements that differ for another reason than the rounding of float32; must be 0
    differing: int
    # elements made by nodes in float (or quantized from their results) that differ within the bound of float32's
    # rounding
    behind_float: int
    # float results of kernels that differ within the bound of a float32 sum
    real_inexact: int
    # largest difference in integer steps
    max_lsb: float
    # first tensor that differs, or null
    first_tensor: str | None
    # row per kind of session
    sessions: list[SessionRow]
    # first tensor in which the simulated model has NaN and the realized one a number, or null
    undefined: NotRequired[str | None]


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
    drawn: NotRequired[list[str]]


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

    # for a detector: the places of `boxes` and `scores`, their `layout`, `nms_iou`, `score_above`, `note` (how they
    # were recognized), `lost`, `pixels`, `pixels_95`. `objects` of the float model in the evaluation samples, and
    # `labelled` ones (null without labels) ([detectors](howto/detectors.md))
    detections: DetectionsPart
    # summary of the certificate: `kernels`, `proved`, `checked` (on `samples` only), `float_nodes`, `departing`,
    # `on_samples` ([{`node`, `reason`}] of all kernels without proof)
    proof: ProofPart
    # row for each of several [forms](forms.md)
    forms: list[FormRow]
    # only if state is carried: `top1`, `kl`, `sqnr_db`, `cosine` of the realized model with its own states
    free_running: ModelMetrics
    # only if the carried state is a cache: the first `steps` of a sequence (at most 8), compared with one
    # run over the same tokens. `differing` elements in all; `outputs`: row per output with `output`, `elements`,
    # `differing`, `largest` (difference). `one_token`: the same of steps of one token (at most 48), if samples have
    # several. `kernels`: number of `equal` kernels, and names of the `differing` ones (at
    # most 8). `unmatched`: number of kernels whose axes do not show which rows a step computes. `by_samples`: nodes
    # whose scale follows from all rows of a run. `counts_hidden`: kernels that give places of a cache of fixed length a
    # share before they are written. `reason`: why nothing was compared
    steps: StepsPart
    # only on devices with `cache`: row per cache of a decoder with `input`, and `output`, `holds`, `stored`, `scale`,
    # `zero_point`; or the `reason` why its ports are floats
    caches: list[CacheRow]
    # only for decoders (a cache as input, and scores per token): `samples`, `tokens`, `perplexity` (`float`,
    # `realized`), `difference` of the mean losses in nats with its `standard_error` over samples, `agreement` of the
    # greedy token. `continuations`: `prompt`, the `float` and `realized` text, `tokens`, and how many are `equal`
    # before the first that differs. Tokens are shown as characters in vocabularies of up to 256, else as numbers
    next_tokens: NextTokensPart
    # only for [models that were quantized already](howto/quantized_models.md)
    imported: ImportedPart
    # where time and memory of the run went
    effort: EffortPart
    # comparison with [onnxruntime's own quantization](search.md#compared-with-onnxruntimes-own-quantization), if made:
    # `samples`, `rows`
    baseline: BaselinePart
    # if the result misses its objective or loses too much (`evaluate.explain`)
    diagnosis: DiagnosisPart


class RunReport(OptionalParts):
    """report.json without its origin."""

    # of quantpipe
    version: str
    # `model` (file name), `model_path`, `model_hash`, `command`, `seed`, `folder`, `float_on` (where nodes left in
    # float run), `samples` (evaluated). Options of the groups: `dataset`, `hardware`, `schema`, `threshold`, `search`,
    # `objective`, `recover`, `train`, `precision`, `realize`, `executor`, `effort`, `tracking`. `realized_samples`:
    # samples of the realized model's metrics, if `evaluate.realized_samples` limits them. `output`: the output of the
    # metrics, if there are several
    run: RunPart
    # accuracy of the models `float`, `simulated`, `realized`, and `default_session`
    metrics: Metrics
    # row per output of the model
    outputs: list[OutputRow]
    # comparison of simulated and realized integers
    agreement: AgreementPart
    # by split, as in data.json, without indices: `samples`, `digest`, `source`, `skipped` (how many), `skipped_names`
    # (at most ten), `duplicates` (how many), `state`, `sequences`, `drawn`
    data: dict[str, DataPart]
    # model → [low, high]: the 95 % interval of its accuracy (Wilson)
    intervals: dict[str, list[float]]
    # objections to the samples as a whole, in sentences; also the first of the warnings
    doubts: list[str]
    # null if a loss is not finite. `metric`, loss against the float model on the `search` and the `report` split. Their
    # `difference`, its `standard_error`, `parted` (larger than two of these), `search_samples`, `report_samples`
    generalization: GeneralizationPart | None
    # `seconds`, `samples`, `float_pass_seconds`, `peak_rss_mb` (of the process); null without calibration. With
    # `profile.load`, `loaded`: `file`, `format` (`quantpipe`, `glow`, `onnxruntime`, `tensorrt`), `derived` (tensor →
    # its source tensors), `unknown` (names that the model does not have), `warnings`
    calibrate: CalibratePart
    # decisions before the search
    precision: PrecisionRecord | None
    # search. Of a replayed candidate only `algorithm`, `trial`, `best_value`, `best_cost`, `metrics`, `weights`,
    # `threshold_rules`
    search: SearchReport | ReplayedSearch
    # `float_bytes` (your file with its external data; of a quantized file, its equivalent float model),
    # `realized_bytes`, `macs`, `bops`, `mean_weight_bits`, `mean_activation_bits`, `float_nodes`, `integer_nodes`
    model: ModelPart
    # `bits`, `weight_bytes`, `stored_bytes`, `bops`, `cycles`, `peak_activation_bytes` of the strategy;
    # `predicted_latency`, `energy` if the hardware file has [figures](hardware.md#measured-layer-times)
    cost: CostPart
    # `by` (`latency` or `cycles`), `ratio` (realized / float), `slower` ([when](search.md#slower-than-float)); null if
    # unknown
    speed: SpeedPart | None
    # `float_ms`, `realized_ms` (medians), `ratio` (median of the pairs' ratios), `ratio_low` and `ratio_high` (their
    # quartiles), `runs`, `threads`, `processor`; batch 1, interleaved. `of`: `device`, or `reference` if the device is
    # not this machine's onnxruntime. Texts give no verdict if 1 is between them. Empty for models with a fixed larger
    # batch
    latency: LatencyPart
    # [{`node`, `op`, `reason`}]; `type` if it computes in float16
    float_nodes: list[FloatNodeRow]
    # nodes without a direct kernel in onnxruntime: `node`, `op`, `reasons`
    without_kernel: list[WithoutKernelRow]
    # how `model.onnx` is run in onnxruntime: `file`, `form`, `options` (session option → value), `sentence` (the same
    # in words), `code` that loads it, `command` that made the run, `files` of all forms. SHIP.md, the page, the
    # terminal and `result.session_options` show this
    deployment: DeploymentPart
    # tensors that change between floats, stored integers and accumulators in a run: `ends` (of the model), `inside`;
    # `rescales`: operands brought to another scale
    conversions: ConversionsPart
    # `rescales`, `raised`: as in plan.json: `node`, `tensor`, `from`, `to`; and `node`, `tensor`, `channels`, `factor`,
    # `reason`
    rescales: list[RescaleRow]
    raised: list[RaisedRow]
    # [tables](hardware.md#tables) for lookups of rows: `tensor`, `rows`, `columns`, `bits`, `offset`, `numbers`,
    # `layout`, `float_bytes`, `bytes`, `sqnr_db` of its values (null if nothing is lost)
    tables: list[TableRow]
    # steps of recovery: `step`, `kl_before`, `kl_after`, `gain`, `kept`, `seconds`, `on` (the changed parts), `reason`
    # (why it was not possible), `limited` (left out by `effort.recover_passes`), `curve` (of training: the loss by
    # epochs)
    recover: list[StepRow]
    # recovery after a missed objective, else null: `metric`, `least_value` (needed), `before`, `after`,
    # `accuracy_before`, `accuracy_after`, `met`, `kept`, `seconds`, `evaluations`
    recovery: RecoveryGain | None
    # ranges changed by a common scale: `tensor`, `group`, `from`, `to`, `reason`
    rectified: list[RectifiedRow]
    # number of evaluate samples for `layers`: `evaluate.layer_samples`, fewer if tensors are large
    layer_samples: int
    # per stored tensor that a node makes: its errors
    layers: list[LayerRow]
    # per accumulator that some input could overflow: `node`, `tensor`, `accumulator` (type), `overflow` (`wrap`,
    # `saturate`), `bound` (largest sum of any input), and on the evaluation samples `elements`, `overflowed`, `share`.
    # Pairs that saturate on `isa: avx2` are listed as int16, `saturate`
    overflow: list[OverflowRow]
    # [groups of samples](data.md#groups-what-an-average-hides): `rows`, and `worst`, the samples that lose most at each
    # output: `output`, `row`, `name`, `loss`
    groups: GroupsPart
    # values beyond stored ranges
    beyond: list[BeyondRow]
    # [whether the calibration set is enough](data.md#is-the-calibration-set-enough)
    enough: EnoughPart | None
    # per choice of bits: `key`, `kind` (`activation`, `weight`, `table`), `value` (bits), `threshold` (null for
    # per-channel weights), `edges`; tensors in float by choice have no row. Per structural choice: `key` (node or
    # weight), `kind` (`float`, `add`, `granularity`), `value` (the option)
    choices: list[ChoiceRow]
    # warnings, in sentences
    warnings: list[str]
    # requirements of the model on a CPU like the one at hand, if that adds products in another way than the device
    # ([pairs that saturate](hardware.md#pairs-that-saturate)); else null
    host: str | None
