"""Types of the parts of report.json on samples. The comments are the meanings of the keys in docs/artifacts.md."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class GroupRow(TypedDict):
    """What a group of samples loses at an output; `by` is `all` for the whole output."""

    # its name; `OUTPUT: PART` for a part of it
    output: str
    # `by`, `group`: `all`, `worst_decile`, `energy`, `length`, `class`, `groups`, and the group's name there
    by: str
    group: str
    # how many; of `class`: places with this class
    samples: int
    # two samples and more
    judged: bool
    # loses far more than all samples together
    worse: bool
    # `sqnr_db`, `sqnr_interval`: of outputs without class scores; null if nothing is lost
    sqnr_db: NotRequired[float | None]
    sqnr_interval: NotRequired[list[float] | None]
    # `kl`, `kl_interval`: of class scores
    kl: NotRequired[float]
    kl_interval: NotRequired[list[float]]
    # `equal`, `equal_interval`: share of equal answers
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
    """What the stored range [low, high] of a tensor cuts off the samples of a split."""

    # `evaluate`, `search`; in `kit.json` `vectors`
    split: str
    # `tensor`, `low`, `high`: the tensor and its stored range
    tensor: str
    low: float
    high: float
    # `share`, `sqnr_db`: share of the float model's elements beyond it, and the SQNR of clipping alone
    share: float
    sqnr_db: float | None
    # `cut_off`, `cut_off_sqnr_db`: the same in calibration; null if unknown
    cut_off: float | None
    cut_off_sqnr_db: float | None
    # an SQNR below 20 dB, four times the error and twice the share of calibration
    far: bool


class EnoughPart(TypedDict):
    """How ranges and loss depend on the number of calibration samples."""

    # of calibration
    samples: int
    # `half_db`, `twice_db`: change of the activations' noise with half and twice as many
    half_db: float
    twice_db: float
    # `moved`, `moved_most`, `tensors`: change of ranges from half of them, as a share of their width: median, maximum,
    # and the tensors that move most
    moved: float
    moved_most: float
    tensors: list[str]
    # number of ranges that half of them would cost a bit
    more_bits: int
    # `enough`, `sentence`: whether twice as many would gain at most 1.5 dB, and all of it in words
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
    all rows of a run. `counts_hidden`: kernels that give places of a cache a share before they are written.
    """

    equal: int
    differing: list[str]
    unmatched: int
    by_samples: list[str]
    counts_hidden: list[str]


class StepsPart(TypedDict):
    """The comparison of the first steps of a sequence with one run over the same tokens.

    `one_token`: the same tokens once more, one in each step, where samples have several. `reason`: why nothing was
    compared; the numbers are 0 then.
    """

    steps: int
    differing: int
    outputs: list[StepsRow]
    one_token: NotRequired[StepsPart]
    reason: NotRequired[str]
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
