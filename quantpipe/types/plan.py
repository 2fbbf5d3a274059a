"""The plan: every number of the integer model, and nothing else. Simulation and all back ends read it and add none."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import EXACT_FLOAT32, along
from quantpipe.types.dtype import DType
from quantpipe.types.embedding_table import RowTable
from quantpipe.types.hardware_fields import Accumulator, FunctionKind, Rounding
from quantpipe.types.narrowing import FixedPoint, Requantize, Scale
from quantpipe.types.program import Step
from quantpipe.types.recurrent_loop import LoopProduct
from quantpipe.types.report_rows import RaisedRow, RescaleRow
from quantpipe.types.topology import Form


@dataclass(frozen=True, eq=False)
class Quantizer:
    """State how one stored tensor is written: real = scale · (q - zero_point), qmin <= q <= qmax.

    The bounds follow from the bits, inside the type.
    """

    tensor: str
    scale: Scale
    zero_point: int
    dtype: DType
    bits: int
    qmin: int
    qmax: int

    @property
    def low(self) -> int:
        """Return the minimum centred value q - zero_point."""
        return self.qmin - self.zero_point

    @property
    def high(self) -> int:
        """Return the maximum centred value q - zero_point."""
        return self.qmax - self.zero_point


@dataclass(frozen=True, eq=False)
class BlockGrid:
    """State how the blocks of a weight make its integers: v = multiplier · (code - zero_point).

    `size` input channels make a block. `multiplier` (1 to `most`) and `zero_point` are int64 `[C, B]`, B blocks for
    each of C output channels; `low`, `high` bound the codes.
    """

    size: int
    multiplier: NDArray[np.int64]
    zero_point: NDArray[np.int64]
    most: int
    low: int
    high: int


@dataclass(frozen=True, eq=False)
class WeightTensor:
    """Hold the integers of a weight: real = scale · (q - zero_point).

    `values` are q, in the float weight's shape and the NumPy type of `dtype`; `zero_point` is int64, in the shape of
    `scale` or `()`. `block`: where channels are divided into blocks, q is the multiplied value, and `bits` are the bits
    of the codes that q is made of. Where each block has a float scale of its own, `scale` is `[C, B]` and q is the
    code: real = scale · (q - block.zero_point).
    """

    tensor: str
    values: NDArray[Any] = field(repr=False)
    scale: Scale
    axis: int | None
    dtype: DType
    bits: int
    zero_point: NDArray[np.int64] = field(default_factory=lambda: np.zeros((), np.int64))
    block: BlockGrid | None = None

    @property
    def has_zero_point(self) -> bool:
        """Return whether some zero point is not 0."""
        return bool(np.any(self.zero_point))

    @property
    def has_real_blocks(self) -> bool:
        """Return whether each block has a float scale of its own."""
        return self.block is not None and self.scale.ndim == 2

    @property
    def stored_bits(self) -> int:
        """Return as how many bits each integer, or the code that it is made of, is stored."""
        coded = self.block is not None and not self.has_real_blocks
        return self.dtype.bits if not coded else 4 if self.bits <= 4 else 8

    @property
    def zero(self) -> NDArray[Any]:
        """Return the zero point in the type of the weights and the shape of their scale."""
        return np.broadcast_to(self.zero_point, self.scale.shape).astype(self.dtype.numpy)

    @cached_property
    def digest(self) -> bytes:
        """Return a digest that is equal for equal numbers of one tensor.

        Plans share weights, so it is made once for many.
        """
        names = repr((self.tensor, self.values.shape, self.axis, self.dtype, self.bits))
        digest = hashlib.blake2b(names.encode(), digest_size=16)
        blocks = () if self.block is None else (self.block.multiplier, self.block.zero_point)
        for numbers in (self.values, self.scale, self.zero_point, *blocks):
            digest.update(np.ascontiguousarray(numbers).data)
        return digest.digest()

    def centred(self, rows: slice = slice(None)) -> NDArray[Any]:
        """Return q - zero_point of some rows along axis 0, in a signed type that holds it.

        Where all zero points are 0, the result is a view of `values`.
        """
        values = self.values[rows]
        if not self.has_zero_point:
            return values
        zero = self.zero_point
        if zero.ndim:
            zero = along(zero, self.axis or 0, values.ndim)[rows if self.axis == 0 else slice(None)]
        wide = np.int16 if self.dtype.bits <= 8 else np.int32
        return np.asarray(values.astype(wide) - zero.astype(wide))


@dataclass(frozen=True)
class Limit(Accumulator):
    """State what an accumulator does with sums that its type cannot hold.

    Plans name it only where some input can make such a sum.

    `label` names it in plan.json. wrap: v - 2^b·floor((v + 2^(b-1)) / 2^b), whatever the order of the additions.
    saturate: the whole sum is clamped.
    """


@dataclass(frozen=True, eq=False)
class Pairs:
    """Hold R pairs of products that are added in int16 with saturation before the rest of the sum.

    `weight`: each pair's two integer weights among zeros, `[R, C, *kernel]` (group 1), or `[K, R]` of a dense layer;
    `total`: their sum, `[R]`; `owner`: the output channel, `[R]`.
    """

    weight: NDArray[np.int8]
    total: NDArray[np.int64]
    owner: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Accumulate:
    """Describe a Conv, Gemm or MatMul by a weight: acc = Σ (q_x - z_x)·q_w + bias, in integers.

    `bound` is the maximum |partial sum| of any input; under 2^24 float32 arithmetic is exact. `acc_scale` is s_x·s_w,
    `()` or `[C]`. `output` None: the result stays an accumulator. `limit` None: no input can make a sum that the
    accumulator does not hold. `pairs` None: no pair of products can saturate on the way.
    """

    node: str
    weight: str
    bias: NDArray[np.int64] | None
    acc_scale: Scale
    bound: int
    output: Requantize | None
    limit: Limit | None = None
    pairs: Pairs | None = None

    @property
    def exact_in_float32(self) -> bool:
        """Return whether float32 holds every partial sum (and the rounding constant of a shift) exactly."""
        return _exact_in_float32(self.bound, self.output)


def _exact_in_float32(bound: int, output: Requantize | None) -> bool:
    half = 1 << (output.shift - 1) if output is not None and output.shift > 0 else 0
    return bound + half < EXACT_FLOAT32


@dataclass(frozen=True, eq=False)
class Contract:
    """Describe a MatMul of two stored tensors: acc = Σ (q_a - z_a)·(q_b - z_b).

    `bound`, `acc_scale` and `output` mean the same as in `Accumulate`.
    """

    node: str
    acc_scale: Scale
    bound: int
    output: Requantize | None

    @property
    def exact_in_float32(self) -> bool:
        """Return whether float32 holds every partial sum (and the rounding constant of a shift) exactly."""
        return _exact_in_float32(self.bound, self.output)


@dataclass(frozen=True, eq=False)
class Lookup:
    """Describe an element-wise function as a table `[rows, codes]` of stored integers.

    Codes ascend from the smallest that the input's storage holds. Rows are channels along `axis` (one row where it is
    None). `low` and `high` bound the entries, clamps of fused nodes included. `defined`: the function has a value for
    every code. `kind`: how the device makes the entries. With `table` they are the results of the float op, to the
    nearest integer, or, `interpolated`, on lines between some of those.
    """

    node: str
    table: NDArray[Any] = field(repr=False)
    axis: int | None
    low: int
    high: int
    defined: bool
    kind: FunctionKind = FunctionKind.TABLE
    interpolated: bool = False


@dataclass(frozen=True, eq=False)
class Term:
    """Describe one operand of an addition.

    It is brought to the common scale by a left shift (> 0) or a rounding right shift (< 0).

    `ratio` is s_operand / s_output for additions that rescale inside, in float32, `()` or `[C]`; negative for what is
    subtracted. `fixed` is the multiplier of those that do it in fixed point, after the left shift by `shift`.
    """

    tensor: str
    form: Form
    scale: Scale
    zero_point: int
    shift: int
    ratio: Scale
    fixed: FixedPoint | None = None


@dataclass(frozen=True, eq=False)
class Sum:
    """Describe an addition.

    `scale` is the common scale of the integer form; where it is None, the kernel rescales inside, in float32, and
    `offset` is the constant of its formula. `rounding` applies to shifted terms. `whole`: the multipliers of terms are
    integers, so that the sum is rounded once.
    """

    node: str
    terms: tuple[Term, ...]
    scale: Scale | None
    offset: np.float32
    bound: int
    output: Requantize | None
    rounding: Rounding = Rounding.HALF_UP
    limit: Limit | None = None
    whole: bool = False

    @property
    def is_kernel_arithmetic(self) -> bool:
        """Return whether onnxruntime's own kernel adds like this: two stored operands, rescaled in float32."""
        return self.scale is None and all(t.form is Form.QUANTIZED for t in self.terms)


@dataclass(frozen=True, eq=False)
class Product:
    """Describe a Mul of two stored tensors: acc = (q_a - z_a)·(q_b - z_b)."""

    node: str
    bound: int
    output: Requantize


@dataclass(frozen=True, eq=False)
class Average:
    """Describe an average over `count` elements: acc = Σ (q_x - z_x).

    The 1/count sits in the multiplier or the shift.
    """

    node: str
    count: int
    bound: int
    output: Requantize


@dataclass(frozen=True, eq=False)
class Move:
    """Describe an op that moves or selects values and keeps the scale; `low`, `high` bound q (clamps in integers)."""

    node: str
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, eq=False)
class Program:
    """Describe a function of rows as a program on the integers q - z of its operands.

    The last value is the result: an accumulator of scale `acc_scale` that `output` narrows, or, where `output` is None,
    the stored integers q themselves. `bound` is its maximum magnitude.
    """

    node: str
    kind: FunctionKind
    operands: int
    steps: tuple[Step, ...]
    acc_scale: Scale
    bound: int
    output: Requantize | None


@dataclass(frozen=True, eq=False)
class Device:
    """Describe an op of a plug-in package: the numbers of its own integer form, by name and in that order."""

    node: str
    package: str
    numbers: tuple[tuple[str, NDArray[Any]], ...] = field(repr=False)


KernelPlan = Accumulate | Contract | Sum | Product | Average | Lookup | Program | Move | Device


@dataclass(frozen=True, eq=False)
class QuantPlan:
    """Hold every number of the integer model: `quantizers` by stored tensor, `weights` by constant, `kernels` by node.

    `raw_scales` belong to accumulators that other kernels read, `narrowings` to accumulators that others read stored.
    `constants` are read as data, and rows of `tables` are looked up; `loops` have products inside. `rescales` and
    `raised` are for the report.
    """

    quantizers: Mapping[str, Quantizer]
    weights: Mapping[str, WeightTensor]
    kernels: Mapping[str, KernelPlan]
    raw_scales: Mapping[str, Scale]
    narrowings: Mapping[str, Requantize] = field(default_factory=dict)
    constants: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)
    rescales: tuple[RescaleRow, ...] = ()
    raised: tuple[RaisedRow, ...] = ()
    tables: Mapping[str, RowTable] = field(default_factory=dict)
    loops: Mapping[str, tuple[LoopProduct, ...]] = field(default_factory=dict)

    @cached_property
    def mean_weight_bits(self) -> float:
        """Return the mean of the bits over all weight elements."""
        sizes = [(w.values.size, w.bits) for w in self.weights.values()]
        total = sum(n for n, _ in sizes)
        return sum(n * b for n, b in sizes) / total if total else 0.0

    @cached_property
    def mean_activation_bits(self) -> float:
        """Return the mean of the bits over all stored tensors."""
        bits = [q.bits for q in self.quantizers.values()]
        return sum(bits) / len(bits) if bits else 0.0
