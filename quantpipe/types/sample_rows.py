"""Types of the report's parts on samples: groups, and values beyond ranges. docs/artifacts.md describes every key."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class GroupRow(TypedDict):
    """What a group of samples loses at an output; `by` is `all` for the whole output.

    `samples`: of the group, or places that hold the class. Outputs of class scores have `kl` and `equal`, the share of
    equal answers; other floats have `sqnr_db`, null where nothing is lost. Intervals are of 95 %.
    """

    output: str
    by: str
    group: str
    samples: int
    judged: bool
    worse: bool
    sqnr_db: NotRequired[float | None]
    sqnr_interval: NotRequired[list[float] | None]
    kl: NotRequired[float]
    kl_interval: NotRequired[list[float]]
    equal: NotRequired[float]
    equal_interval: NotRequired[list[float]]


class WorstSampleRow(TypedDict):
    """A sample that loses most at an output: its row in the evaluation split, its name, and its loss."""

    output: str
    row: int
    name: str
    loss: float


class GroupsPart(TypedDict):
    """What averages hide: groups of samples, and the samples that lose most."""

    rows: list[GroupRow]
    worst: list[WorstSampleRow]


class BeyondRow(TypedDict):
    """What the stored range [low, high] of a tensor cuts off the samples of a split.

    `share` of the elements, and the SQNR of clipping alone; `cut_off` and `cut_off_sqnr_db`: the same in calibration,
    null where it is not known. `far`: far more than in calibration.
    """

    split: str
    tensor: str
    low: float
    high: float
    share: float
    sqnr_db: float | None
    cut_off: float | None
    cut_off_sqnr_db: float | None
    far: bool


class EnoughPart(TypedDict):
    """How ranges and loss depend on the number of calibration samples.

    `half_db`, `twice_db`: the noise of the stored activations with half and with twice the samples, compared with now.
    `moved`, `moved_most`: the change of ranges from half of them, as a share of their width, in the median and at most;
    `tensors` move most. `more_bits`: ranges that half of the samples would cost a bit.
    """

    samples: int
    half_db: float
    twice_db: float
    moved: float
    moved_most: float
    tensors: list[str]
    more_bits: int
    enough: bool
    sentence: str


class GeneralizationPart(TypedDict):
    """Losses on the samples of the search and on others."""

    metric: str
    search: float
    report: float
    difference: float
    standard_error: float
    parted: bool
    search_samples: int
    report_samples: int


class StepsRow(TypedDict):
    """An output of steps with a cache, compared with one run over the same tokens."""

    output: str
    elements: int
    differing: int
    largest: float


class CacheRow(TypedDict):
    """A cache of a decoder: the integers at its input and its output, or the reason why both are floats."""

    input: str
    output: NotRequired[str]
    holds: NotRequired[str]
    stored: NotRequired[str]
    scale: NotRequired[float]
    zero_point: NotRequired[int]
    reason: NotRequired[str]


class KernelStepsPart(TypedDict):
    """Kernels by whether steps with a cache give the integers of one run over the same tokens.

    `unmatched`: kernels whose axes do not show which rows a step computes. `by_samples`: nodes whose scale follows from
    all rows of a run.
    """

    equal: int
    differing: list[str]
    unmatched: int
    by_samples: list[str]


class StepsPart(TypedDict):
    """The comparison of the first steps of a sequence with one run over the same tokens."""

    steps: int
    differing: int
    outputs: list[StepsRow]
    kernels: NotRequired[KernelStepsPart]


class ContinuationRow(TypedDict):
    """A prompt continued by the float and the realized model; `equal` tokens come before the first that differs."""

    prompt: str
    float: str
    realized: str
    tokens: int
    equal: int


class PerplexityPart(TypedDict):
    """The perplexity of two models."""

    float: float
    realized: float


class NextTokensPart(TypedDict):
    """How the realized model predicts the next token (docs/artifacts.md, next_tokens)."""

    samples: int
    tokens: int
    perplexity: PerplexityPart
    difference: float
    standard_error: float | None
    agreement: float
    continuations: list[ContinuationRow]
