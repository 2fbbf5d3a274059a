"""The fields of a hardware file and their legal words, as frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from quantpipe.types.dtype import DType


class ChipType(StrEnum):
    """Name the kind of a device; `none`: a file that describes no device."""

    CPU = "cpu"
    GPU = "gpu"
    NPU = "npu"
    DSP = "dsp"
    FPGA = "fpga"
    MCU = "mcu"
    NONE = "none"


@dataclass(frozen=True)
class Chip:
    """Name the device that a hardware file describes."""

    type: ChipType
    provider: str
    chip: str


class Scales(StrEnum):
    """Name the scales that a device can work with: any positive number, or powers of two alone."""

    ANY = "any"
    POWER_OF_TWO = "power_of_two"


class Unify(StrEnum):
    """Name the way in which the operands of an addition come to one scale.

    They take the larger scale (no overflow, but low bits are lost), the smaller one (which needs head-room in the
    accumulator), or `free`: the kernel rescales inside, in float.
    """

    MAX_SCALE = "max_scale"
    MIN_SCALE = "min_scale"
    FREE = "free"


class RequantizeKind(StrEnum):
    """Name how an accumulator is narrowed: times a float32, times a 31-bit integer and shifted, or shifted alone."""

    FLOAT_MULTIPLIER = "float_multiplier"
    FIXED_POINT = "fixed_point"
    SHIFT = "shift"


class Rounding(StrEnum):
    """Name how a fraction becomes an integer.

    Ties go to the even neighbour, up, or away from zero; `floor` does not round.
    """

    HALF_EVEN = "half_even"
    HALF_UP = "half_up"
    HALF_AWAY = "half_away"
    FLOOR = "floor"


class FixedRounding(StrEnum):
    """Name how often a fixed-point product is rounded.

    `double` (gemmlowp) rounds after the multiplication and again after the shift; `single` rounds once, ties up;
    `single_away` once, ties away from zero. `common_shift` is for additions alone: their operands are multiplied by
    integers, added, and shifted right once, ties up.
    """

    DOUBLE = "double"
    SINGLE = "single"
    SINGLE_AWAY = "single_away"
    COMMON_SHIFT = "common_shift"


class FunctionKind(StrEnum):
    """Name how a device computes a real function from integers (docs/numerics.md, functions).

    `table`: an entry for each code of 8 bits; of 16 bits 513 entries with a straight line between two of them.
    `polynomial`: second-order polynomials in integers (I-BERT). `shift`: powers of two by shifts (I-ViT). `tflite`: as
    TensorFlow Lite's reference kernels and CMSIS-NN. `integer_sqrt`: integer mean and variance, integer square root.
    `division`: a whole quotient with bits of fraction, narrowed once. Of an average: the sum of the window's stored
    integers over their number, ties away from zero, stored at the scale of its input.
    `sum`: an exact sum, narrowed once (means and sums over axes; they have no other way, so a file need not name it).
    `float`: the function is left in float.
    """

    TABLE = "table"
    POLYNOMIAL = "polynomial"
    SHIFT = "shift"
    TFLITE = "tflite"
    INTEGER_SQRT = "integer_sqrt"
    DIVISION = "division"
    SUM = "sum"
    FLOAT = "float"


class AddInputs(StrEnum):
    """Name the operands of an element-wise addition that are quantized.

    `both`: both operands. `residual_only`: the one that does not come straight from a convolution or dense layer; the
    other one is an accumulator. `none`: neither, the addition runs in float.
    """

    BOTH = "both"
    RESIDUAL_ONLY = "residual_only"
    NONE = "none"


class BiasScale(StrEnum):
    """Name the scale at which a bias is stored.

    `product`: the scale of the products that it is added to. `own`: a power of two of its own, from which the device
    shifts it to the scale of the products.
    """

    PRODUCT = "product"
    OWN = "own"


class Isa(StrEnum):
    """Name what the CPU does inside a sum of uint8 x int8 products.

    `vnni`: the sum is exact. `avx2` (x86 without VNNI): pairs of products are added in int16 with saturation first.
    `any`: the model has to run on both, so its weights are chosen such that no pair saturates.
    """

    ANY = "any"
    VNNI = "vnni"
    AVX2 = "avx2"


class PadValue(StrEnum):
    """Name what the device writes around a padded map: the integer 0, or its input's zero point (the real zero)."""

    ZERO = "zero"
    ZERO_POINT = "zero_point"


class FloatType(StrEnum):
    """Name the type in which nodes that stay in float compute."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"


class FloatOn(StrEnum):
    """Name where nodes that stay in float run; `none`: nowhere, so that a model must be all integers."""

    CPU = "cpu"
    GPU = "gpu"
    DEVICE = "device"
    NONE = "none"


class Overflow(StrEnum):
    """Name how an accumulator treats sums that it cannot hold; `never`: plans that could reach it are rejected."""

    WRAP = "wrap"
    SATURATE = "saturate"
    NEVER = "never"


MULTIPLIER_BITS = 31
"""Bits of a fixed-point multiplier by default."""


@dataclass(frozen=True)
class RequantizeSpec:
    """State how a device, or one of its kernels, narrows an accumulator.

    `rounding`: a `FixedRounding` where kind is fixed_point, else a `Rounding`. `zero_first`: whether a float multiplier
    adds the zero point before it rounds; None: as onnxruntime's kernel of the op does. `multiplier_bits`: of a
    fixed-point multiplier, which has no sign. `single_ratio`: whether it is made of a ratio computed in float32.
    """

    kind: RequantizeKind = RequantizeKind.FLOAT_MULTIPLIER
    max_shift: int = 31
    rounding: Rounding | FixedRounding = Rounding.HALF_EVEN
    zero_first: bool | None = None
    multiplier_bits: int = MULTIPLIER_BITS
    single_ratio: bool = False

    @property
    def is_kernel_arithmetic(self) -> bool:
        """Return whether onnxruntime's own kernels narrow like this: a float32 product, ties to even."""
        plain = self.kind is RequantizeKind.FLOAT_MULTIPLIER and self.rounding is Rounding.HALF_EVEN
        return plain and self.zero_first is None


@dataclass(frozen=True)
class OpSignature:
    """Describe one way in which a device runs an op.

    `inputs`: dtype per data port, the last one repeating (bias ports are described by `HardwareSpec.bias`).
    `outputs`: the dtypes its result may be stored in, the preferred one first.
    `when`: conditions on the node, e.g. ("group", "any"), ("pad_max", "15"), ("window", "power_of_two").
    `requantize`, `function`, `accumulator`: how this kernel narrows its sums, forms its function, holds its sums, where
    it does so in another way than the device's others. `fixed_scale`: scale and zero point of its result, where the
    device has no others.
    """

    inputs: tuple[DType, ...]
    outputs: tuple[DType, ...]
    when: tuple[tuple[str, str], ...] = ()
    requantize: RequantizeSpec | None = None
    function: FunctionKind | None = None
    accumulator: Accumulator | None = None
    fixed_scale: tuple[float, int] | None = None

    @property
    def has_own(self) -> bool:
        """Return whether the plan of a node depends on this signature beyond its types."""
        own = (self.requantize, self.function, self.accumulator, self.fixed_scale)
        return any(said is not None for said in own)

    @property
    def is_integer(self) -> bool:
        """Return whether all inputs are integers."""
        return not any(d.is_float for d in self.inputs)

    @property
    def is_weight_only(self) -> bool:
        """Return whether floats are multiplied by integer weights."""
        return self.inputs[0].is_float and not self.inputs[-1].is_float

    def input(self, port: int) -> DType:
        """Return the type of the input at `port`; ports beyond the list have the type of its last entry."""
        return self.inputs[min(port, len(self.inputs) - 1)]


@dataclass(frozen=True)
class Padding:
    """Limit the pads that the device makes; `max` is the widest one, None: any."""

    value: PadValue = PadValue.ZERO_POINT
    max: int | None = None


@dataclass(frozen=True)
class Skip:
    """State what stays in float on the device by default.

    That can be its first or last convolution or dense layer, and some ops.
    """

    first: bool = False
    last: bool = False
    ops: tuple[str, ...] = ()


@dataclass(frozen=True)
class Accumulator:
    """State the type that sums are formed in and what happens to sums that it cannot hold.

    `bits`: how many bits the sums have, the sign included; 0: all that the type has. `dtype` holds them.
    """

    dtype: DType = DType.INT32
    overflow: Overflow = Overflow.WRAP
    bits: int = 0

    @property
    def width(self) -> int:
        """Return the bits of a sum, the sign bit included."""
        return self.bits or self.dtype.bits

    @property
    def qmin(self) -> int:
        """Return the smallest sum that is held."""
        return -(1 << (self.width - 1))

    @property
    def qmax(self) -> int:
        """Return the largest sum that is held."""
        return (1 << (self.width - 1)) - 1

    @property
    def label(self) -> str:
        """Return the name of the width, such as int18."""
        return f"int{self.width}"


@dataclass(frozen=True)
class Cost:
    """State what running a model costs on the device.

    `macs_per_cycle` is given by operand width; channels are padded to multiples of `channel_block`; `launch_cycles` is
    what starting a node costs; `clock_hz` turns cycles into seconds (None: not known).
    """

    macs_per_cycle: Mapping[str, float] = field(default_factory=lambda: {"int8": 1.0, "float32": 1.0})
    bytes_per_cycle: float = 1.0
    channel_block: int = 1
    clock_hz: float | None = None
    launch_cycles: float = 0.0
    scale_bytes: float = 0.0
    """What each scale of a weight adds to what the device loads."""
    vector_steps: Mapping[str, float] = field(default_factory=dict)
    """What adding, narrowing and comparing take per vector of a result; empty: nothing."""
    layers: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    """Quantity (latency, energy) -> kind of kernel -> what a unit of each amount of work takes."""
