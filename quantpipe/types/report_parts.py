"""Parts of report.json: latency and the verdict on it, how the file is run, a detector, and the account of a run."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


class EffortRow(TypedDict):
    """A stage, or a named part of one (`part`).

    `seconds` by the clock and `processor_seconds` of all cores; null for a recovery step, which times itself. `passes`:
    the seconds in float passes over the evaluation samples. `memory_mb` is held at the end in MiB; `peak_mb` is the
    process's peak up to the end.
    """

    stage: str
    part: str | None
    seconds: float
    processor_seconds: float | None
    passes: float | None
    memory_mb: float | None
    peak_mb: float | None


class EffortPart(TypedDict):
    """Where time and memory of a run went, up to its report."""

    # `samples`, `float_pass_seconds`: evaluation samples, and the seconds of one float pass over them; null if an
    # interrupted evaluation had all of its outputs
    samples: int
    float_pass_seconds: float | None
    # `seconds`, `processor_seconds`: by the clock, and of all cores
    seconds: float
    processor_seconds: float
    # everything after calibration, in float passes
    passes: float | None
    # `effort.passes`
    limit: float
    # what was not measured because of the [limits](effort.md#limits), in sentences
    left_out: list[str]
    # `peak_mb`, `estimated_peak_mb`: peak memory of the process, MiB, and its [estimate](effort.md#memory) before
    # calibration
    peak_mb: float
    estimated_peak_mb: NotRequired[float | None]
    # per stage, and per named part of it: `stage`, `part` (null for the whole stage), `seconds`, `processor_seconds`,
    # `passes`, `memory_mb` (held at the end), `peak_mb` (peak up to the end). A step of recovery has seconds and passes
    # only
    rows: list[EffortRow]


class DetectionsPart(TypedDict):
    """The layout of a detector's boxes, and the float model's detections on the evaluation samples.

    `lost`: the share of the float model's objects without a detection of their class at an IoU of 0.5. `pixels`: by how
    much the sides of the others move, the mean of the maximum of the four; `pixels_95`: its 95 % quantile.
    `note`: what is to be known of that; `labelled`: objects by the labels, null without.
    """

    boxes: str
    scores: str
    layout: str
    nms_iou: float | None
    score_above: float
    objects: int
    lost: float | None
    pixels: float | None
    pixels_95: float | None
    labelled: int | None
    note: str | None


class DeploymentPart(TypedDict):
    """How model.onnx is run.

    Attributes:
        file: Its name in the folder realize.
        form: Its form.
        options: Session options of onnxruntime that it needs, by name.
        sentence: The same in words, with what a session without the options would change.
        code: Python that loads the file and runs one sample of zeros, in the folder of the file.
        command: The command line, or the call, that made the run.
        files: The files of every form.
    """

    file: str
    form: str
    options: dict[str, str]
    sentence: str
    code: str
    command: str
    files: list[str]


class LatencyPart(TypedDict, total=False):
    """Medians of interleaved pairs at batch 1; empty without any. `of` names what ran; ratios have quartiles."""

    float_ms: float
    realized_ms: float
    ratio: float
    ratio_low: float
    ratio_high: float
    runs: int
    threads: int
    processor: str
    of: Literal["device", "reference"]


class SpeedPart(TypedDict):
    """The speed of the realized model, compared with the float one."""

    by: Literal["latency", "cycles"]
    ratio: float
    slower: bool
