"""Types of plan.json. The comments are the meanings of the keys in docs/artifacts.md."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from quantpipe.types.report_rows import RaisedRow, RescaleRow

Numbers = float | list[float]
"""One number, or a list of one per channel."""


class QuantizerPart(TypedDict):
    """The integers of a stored tensor."""

    scale: Numbers
    zero_point: int
    dtype: str
    bits: int
    range: list[int]


class BlockPart(TypedDict):
    """The blocks of a weight."""

    size: int
    codes: list[int]
    multiplier: NotRequired[list[list[int]]]
    zero_point: int | str | list[list[int]]


class WeightPart(TypedDict):
    """The integers of a weight."""

    # a number or a list each; digests if the blocks have float scales
    scale: Numbers | str
    # a number or a list; 0 if the blocks have zero points of their own
    zero_point: int | list[int]
    # of the scales; null for one scale
    axis: int | None
    # of its output channels
    channel_axis: int
    # type of the stored integers
    dtype: str
    # bits of an integer, or of the code that it is made of
    bits: int
    # digest of the integers, which are in `model.onnx`
    values: str
    # only for weights [in blocks](numerics.md#weights-in-blocks): `size`, `multiplier` and `zero_point` (lists per
    # output channel and block), `codes` (the smallest and the largest one). If the blocks have float scales,
    # `zero_point` is a digest, and there is no `multiplier`
    block: NotRequired[BlockPart]


class RowTablePart(TypedDict):
    """How a table of rows is stored."""

    shape: list[int]
    nodes: list[str]
    bits: int
    dtype: str
    numbers: str
    layout: str
    values: str
    scale: str
    offset: str | None


class WeightedPart(TypedDict):
    """A node in float that reads an integer weight."""

    op: str
    weight: str
    state_weight: NotRequired[str]
    dynamic: NotRequired[bool]


class LoopProductPart(TypedDict):
    """A product with the state in the body of a loop."""

    node: str
    weight: str
    scale: Numbers
    accumulator_bound: int


class LoopPart(TypedDict):
    """The products of states in the body of a loop."""

    state: str
    carried: NotRequired[list[str]]
    products: list[LoopProductPart]


class CachePart(TypedDict):
    """A cache whose input and output are integers."""

    input: str
    output: str
    stored: str
    holds: str


class FixedPart(TypedDict, total=False):
    """A multiplier in fixed point."""

    # `q31`, `left_shift`: in fixed point; the multiplier is q31 · 2^(left_shift - 31)
    q31: list[int]
    left_shift: list[int]
    # bits of the multiplier, if they are not 31
    multiplier_bits: int
    # true if a ratio in float32 determines the multiplier
    single_ratio: bool


class RequantizePart(FixedPart):
    """How an accumulator becomes a stored integer."""

    # `float_multiplier`, `shift` or `fixed_point`
    kind: str
    # factor from the accumulator's scale to the stored one; of a `shift` 2^-shift
    multiplier: Numbers
    # of a `shift`: division by 2^shift
    shift: int
    # of the stored integers
    zero_point: int
    # bounds of the stored integer, [minimum, maximum]
    range: list[int]
    # how a fraction is rounded
    rounding: str
    # the zero point is added before rounding
    zero_first: bool
    # bounds of each channel, if channels have their own
    channel_range: NotRequired[list[list[int]]]


class TermPart(FixedPart):
    """An operand of an addition."""

    tensor: str
    form: str
    scale: Numbers
    zero_point: int
    shift: int
    ratio: Numbers


class ProgramStepPart(TypedDict):
    """A step of a program."""

    # `add`, `mul`, `shift`, `table`, …: `StepOp` in `quantpipe/types/program.py`
    op: str
    # indices of earlier values, the kernel's inputs first
    operands: list[int]
    # bounds that no input exceeds
    range: list[int]
    # constants of the step
    numbers: NotRequired[Any]
    # axes that it reduces or multiplies over
    axes: NotRequired[list[int]]
    # only of a `shift`
    rounding: NotRequired[str]


class ReadPart(TypedDict):
    """An input of a kernel."""

    tensor: str
    form: str
    port: NotRequired[int]


class ResultPart(TypedDict):
    """The output of a kernel."""

    tensor: str
    form: str


class OverflowPart(TypedDict):
    """An accumulator that some input can exceed."""

    accumulator: str
    overflow: str


class PlacedPart(TypedDict):
    """Where a kernel is in the model."""

    # op of the node
    op: str
    # inputs: `tensor`, `form`; for a `move` also `port`
    reads: list[ReadPart]
    # output: `tensor`, `form`
    result: ResultPart
    # name of the weight, if it has one
    weight: NotRequired[str]


class NumbersPart(TypedDict, total=False):
    """The numbers of a kernel; its kind decides which there are."""

    # one of `accumulate`, `contract` (a MatMul of two activations), `sum`, `product`, `average`, `lookup`, `program`,
    # `move`, `device` (an op of a plug-in package)
    kind: str
    # of all kinds but `lookup` and `move`, if the result is stored; without it the last value of a `program` is the
    # stored integer
    requantize: RequantizePart
    # no partial sum of any input exceeds it in magnitude: all kinds but `lookup`, `move` and `device`
    accumulator_bound: int
    # of `accumulate`, `contract`, `program`: scale of the sums
    accumulator_scale: Numbers
    # of `accumulate`, `sum`: null, or `accumulator` (its type) and `overflow` (`wrap` or `saturate`) if some input
    # exceeds the accumulator
    overflow: OverflowPart | None
    # of `accumulate`: one integer per output channel, or null
    bias: list[int] | None
    # of `accumulate`: number of pairs of products that can saturate in int16
    saturating_pairs: int
    # of `sum`, per operand: `tensor`, `form`, `scale`, `zero_point`, `shift`, `ratio`; in fixed point also `q31`,
    # `left_shift`, `multiplier_bits`, `single_ratio`, as in `requantize`
    terms: list[TermPart]
    # of `sum`: the common scale; null in float32
    scale: Numbers | None
    # of `sum`: constant of its formula in float32
    offset: float
    # of `sum`: how shifted operands are rounded
    rounding: str
    # of `sum`: true if the multipliers are integers, so that the sum is rounded once; absent otherwise
    whole: bool
    # of `average`: number of elements
    count: int
    # of `lookup`: rows of entries, by ascending code
    table: list[list[int]]
    # of `lookup`: axis of the channels that have rows of their own; null for one row
    axis: int | None
    # of `lookup`: each code has a value
    defined: bool
    # of `lookup`, `program`: the device's method
    formed: str
    # of `program`: its [steps](#planjson), in order
    steps: list[ProgramStepPart]
    # of `lookup`, `move`: bounds of the result; null without a clamp
    range: list[int | None]
    # of `device`: the plug-in package
    package: str
    # of `device`: the numbers of its own integer form, by name
    numbers: dict[str, Any]


class PlannedKernel(PlacedPart, NumbersPart):
    """A kernel with all its numbers."""


class PlanFile(TypedDict):
    """plan.json without its origin."""

    # stored tensor → `scale`, `zero_point`, `dtype`, `bits`, `range` [minimum, maximum]
    quantizers: dict[str, QuantizerPart]
    # weight → its integers
    weights: dict[str, WeightPart]
    # only if present: lookup table → `shape`, `nodes` that look rows up, `bits`, `dtype`, `numbers`, `layout`, and
    # digests of its integers (`values`), `scale` and `offset` (null without)
    tables: NotRequired[dict[str, RowTablePart]]
    # constant that a kernel reads as data → digest of its integers
    constants: dict[str, str]
    # tensor that is passed on as accumulator → its scale
    accumulators: dict[str, Numbers]
    # such a tensor with readers of its stored form → as `requantize` of a kernel
    narrowings: dict[str, RequantizePart]
    # node → its kernel
    kernels: dict[str, PlannedKernel]
    # only if present: node in float with an integer weight → `op`, `weight`, `state_weight` (of a recurrent layer),
    # `dynamic` (true only: the input has a [scale of each run](forms.md#scales-of-a-run))
    weighted: NotRequired[dict[str, WeightedPart]]
    # only if present: [loop](numerics.md#products-in-loops) → `state` (the tensor of its states), `carried`,
    # `products`. `carried`: the tensors that show the states, only if steps pass integers. `products`: `node` of the
    # body, `weight`, `scale` (a number or one per column), `accumulator_bound`
    loops: NotRequired[dict[str, LoopPart]]
    # only if present: list of the [caches in integers](hardware.md#caches-of-decoders) with `input`, `output`, `stored`
    # (type at both ports), `holds` (`keys`, `values`). Their numbers are in `quantizers`
    caches: NotRequired[list[CachePart]]
    # operands brought to a common scale: `node`, `tensor`, `from`, `to`
    rescales: list[RescaleRow]
    # weights with a scale raised so that the bias fits: `node`, `tensor`, `channels`, `factor`, `reason`
    raised: list[RaisedRow]
