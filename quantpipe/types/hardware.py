"""A hardware file as frozen data: what a device can run, and what its integers do."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from quantpipe.types.dtype import DType
from quantpipe.types.schema import Granularity


class Scales(StrEnum):
    ANY = "any"
    POWER_OF_TWO = "power_of_two"


class Unify(StrEnum):
    """How operands of an addition come to one scale: the larger (no overflow, loses low bits), the smaller (needs
    head-room in the accumulator), or `free`: the kernel rescales inside, in float."""

    MAX_SCALE = "max_scale"
    MIN_SCALE = "min_scale"
    FREE = "free"


class RequantizeKind(StrEnum):
    """How an accumulator is narrowed: times a float32, times a 31-bit integer and shifted, or shifted alone."""

    FLOAT_MULTIPLIER = "float_multiplier"
    FIXED_POINT = "fixed_point"
    SHIFT = "shift"


class Rounding(StrEnum):
    """How a fraction becomes an integer. Halves go to the even neighbour, up, away from zero; `floor`: no rounding."""

    HALF_EVEN = "half_even"
    HALF_UP = "half_up"
    HALF_AWAY = "half_away"
    FLOOR = "floor"


class FixedRounding(StrEnum):
    """How a fixed-point product is rounded: twice (gemmlowp: after the multiplication, then after the shift) or
    once."""

    DOUBLE = "double"
    SINGLE = "single"


class AddInputs(StrEnum):
    """What of an element-wise addition is quantized: both operands; only the one that does not come straight from a
    convolution or dense layer (that one hands on its accumulator); nothing, the addition runs in float."""

    BOTH = "both"
    RESIDUAL_ONLY = "residual_only"
    NONE = "none"


class BiasScale(StrEnum):
    """A bias is stored at the scale of the products it is added to, or at a power of two of its own, from which the
    device shifts it there."""

    PRODUCT = "product"
    OWN = "own"


class Isa(StrEnum):
    """What happens inside a sum of uint8 x int8 products: exact (`vnni`), or pairs of products are added in int16 with
    saturation first (`avx2`: x86 without VNNI)."""

    VNNI = "vnni"
    AVX2 = "avx2"


class PadValue(StrEnum):
    """What the device writes around a padded map: the integer 0, or its input's zero point (the real zero)."""

    ZERO = "zero"
    ZERO_POINT = "zero_point"


class FloatOn(StrEnum):
    """Where nodes that stay in float run; `none`: nowhere, so that a model must be all integers."""

    CPU = "cpu"
    GPU = "gpu"
    DEVICE = "device"
    NONE = "none"


class Overflow(StrEnum):
    """What an accumulator does with sums that it cannot hold; `never`: plans that could reach it are refused."""

    WRAP = "wrap"
    SATURATE = "saturate"
    NEVER = "never"


@dataclass(frozen=True)
class OpSignature:
    """One way a device runs an op.

    `inputs`: dtype per data port, the last one repeating (bias ports are described by `HardwareSpec.bias`).
    `outputs`: the dtypes its result may be stored in, the preferred one first.
    `when`: conditions on the node, e.g. ("group", "any"), ("pad_max", "15"), ("window", "power_of_two").
    """

    inputs: tuple[DType, ...]
    outputs: tuple[DType, ...]
    when: tuple[tuple[str, str], ...] = ()

    @property
    def is_integer(self) -> bool:
        return not any(d.is_float for d in self.inputs)

    def input(self, port: int) -> DType:
        return self.inputs[min(port, len(self.inputs) - 1)]


@dataclass(frozen=True)
class WeightLimits:
    symmetric: bool = True
    granularity: tuple[Granularity, ...] = (Granularity.PER_TENSOR,)
    bits: int = 8
    narrow: bool = True
    reduce_range: bool = False
    """`bits` is one fewer than the file says, so that pairs of products fit int16."""


@dataclass(frozen=True)
class ActivationLimits:
    symmetric: bool = True
    bits: int = 8
    narrow: bool = True
    signed: bool | None = None
    """Whether stored activations are signed; None: as the types in `ops` say."""


@dataclass(frozen=True)
class Padding:
    """`max`: the widest pad that the device makes; None: any."""

    value: PadValue = PadValue.ZERO_POINT
    max: int | None = None


@dataclass(frozen=True)
class Skip:
    """What stays in float on the device unless told otherwise: its first or last convolution or dense layer, ops."""

    first: bool = False
    last: bool = False
    ops: tuple[str, ...] = ()


@dataclass(frozen=True)
class RequantizeSpec:
    """`rounding`: a `FixedRounding` where kind is fixed_point, else a `Rounding`."""

    kind: RequantizeKind = RequantizeKind.FLOAT_MULTIPLIER
    max_shift: int = 31
    rounding: Rounding | FixedRounding = Rounding.HALF_EVEN


@dataclass(frozen=True)
class Accumulator:
    dtype: DType = DType.INT32
    overflow: Overflow = Overflow.WRAP


@dataclass(frozen=True)
class Cost:
    """What running costs. `macs_per_cycle` by operand width; `channel_block`: channels are padded to multiples of
    it. `launch_cycles`: what starting a node costs; `clock_hz` turns cycles into seconds (None: not known)."""

    macs_per_cycle: Mapping[str, float] = field(default_factory=lambda: {"int8": 1.0, "float32": 1.0})
    bytes_per_cycle: float = 1.0
    channel_block: int = 1
    clock_hz: float | None = None
    launch_cycles: float = 0.0
    scale_bytes: float = 0.0
    """What each scale of a weight adds to what the device loads."""


@dataclass(frozen=True)
class HardwareSpec:
    """One target. Field by field in docs/hardware.md."""

    name: str
    description: str
    source: str
    preferred_schema: str
    realize: str
    ops: Mapping[str, tuple[OpSignature, ...]]
    weights: WeightLimits
    activations: ActivationLimits
    scales: Scales
    unify: Unify
    bias: DType
    requantize: RequantizeSpec
    accumulator: Accumulator
    fuse: tuple[tuple[str, ...], ...]
    cost: Cost
    add_inputs: AddInputs | None = None
    """None: as `fuse` and the signatures of the addition say."""
    add_variants: tuple[AddInputs, ...] = ()
    """Where the device can do it in several ways: all of them, `add_inputs` first."""
    bias_scale: BiasScale = BiasScale.PRODUCT
    isa: Isa = Isa.VNNI
    pad: Padding = field(default_factory=Padding)
    skip: Skip = field(default_factory=Skip)
    float_on: FloatOn = FloatOn.CPU
    channel_bounds: bool = False
    """Whether what is stored behind a layer can be bounded by a minimum and a maximum per channel."""

    def is_wide(self, dtype: DType) -> bool:
        """Whether a type is real or an accumulator, rather than a stored activation."""
        return dtype.is_float or dtype.bits >= self.accumulator.dtype.bits or dtype.bits > 16

    def hands_on(self, first: str, addition: str, treatment: AddInputs | None) -> bool:
        """Whether the accumulator of the op `first` goes straight into the addition behind it, which is treated so."""
        if treatment is None:
            return self.fuses(first, addition)
        return treatment is AddInputs.RESIDUAL_ONLY

    def fuses(self, first: str, second: str) -> bool:
        """Whether some chain of `fuse` has the two ops one after the other."""
        return any((first, second) in itertools.pairwise(chain) for chain in self.fuse)
