"""Types of evaluate/figures.json, the data of a report's figures. docs/artifacts.md has more."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class GraphNode(TypedDict):
    """A node of the clean model. `bits`: of its result, null in float; `sqnr_db`: of that, null where not stored."""

    name: str
    op: str
    bits: int | None
    sqnr_db: float | None


class GraphFigure(TypedDict):
    """The model: nodes in an order in which each follows what it reads, and edges as pairs of their numbers."""

    nodes: list[GraphNode]
    edges: list[list[int]]


class HistogramFigure(TypedDict):
    """Calibration statistics of a tensor: counts of equal bins over [low, high], and the range and codes it got."""

    tensor: str
    bits: int
    low: float
    high: float
    counts: list[int]
    clip_low: float
    clip_high: float
    scale: float
    saturated: float


class ConfusionFigure(TypedDict):
    """How often the float model gives the class of a row and the realized model the class of a column."""

    classes: list[int]
    counts: list[list[int]]
    changed: int
    samples: int


class ChangedSample(TypedDict):
    """A sample that got another class. `image`: a picture of it as a PNG in base64, where its input is one."""

    index: int
    label: int | None
    float_class: int
    found_class: int
    image: str | None


class WorstFigure(TypedDict):
    """A sample that loses most at an output; `image` as above."""

    output: str
    row: int
    name: str
    loss: float
    image: str | None


class TimelineRow(TypedDict):
    """A stage: when it began and how long it took, in seconds; the memory held at its end, in MiB."""

    stage: str
    start: float
    seconds: float
    memory_mb: float | None


class StageErrors(TypedDict):
    """The errors of stored tensors as an earlier stage left them: SQNR in dB, null without noise or signal."""

    stage: str
    sqnr_db: dict[str, float | None]


class Figures(TypedDict):
    """Hold all figures. `shares`: the share of the device's cycles of the kernel that makes a stored tensor, 0 to 1."""

    # `nodes` with `name`, `op`, `bits` (null in float), `sqnr_db`; `edges` as pairs of their numbers
    graph: GraphFigure
    # `tensor`, `bits`, `counts` of equal bins over [`low`, `high`], the stored range `clip_low` to `clip_high`, its
    # `scale`, the share `saturated`
    histograms: list[HistogramFigure]
    # `counts` by class of the float model (rows) and of the realized one, for `classes`; `changed` of `samples`
    confusion: ConfusionFigure | None
    # samples with another class: `index`, `label`, `float_class`, `found_class`, `image`, a PNG in base64
    changed: list[ChangedSample]
    # samples that lose most at an `output`: `row`, `name`, `loss`, `image`
    worst: NotRequired[list[WorstFigure]]
    # per `stage` its `start` and `seconds`, and `memory_mb` at its end
    timeline: list[TimelineRow]
    # per `stage` before the last, `sqnr_db` of each stored tensor; one stage if recovery changed anything
    stages: NotRequired[list[StageErrors]]
    # of the device's cycles, by stored tensor
    shares: NotRequired[dict[str, float]]
