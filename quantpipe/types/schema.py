"""Quantization schemas: how a real range becomes a scale and a zero point (Glow's four, as data)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Symmetry(StrEnum):
    """Name the place of the zero point: at 0, anywhere, or at the smallest code where no value is negative."""

    SYMMETRIC = "symmetric"
    ASYMMETRIC = "asymmetric"
    SYMMETRIC_UNSIGNED = "symmetric_with_uint8"


class Denominator(StrEnum):
    """Name what a threshold is divided by.

    `range` is 2^(b-sign) (RFC), `max` the largest integer (TFLite, TensorRT).
    """

    RANGE = "range"
    MAX = "max"


class PowerOfTwo(StrEnum):
    """Name how a scale becomes a power of two.

    The ways are `up` (RFC code, Glow), `nearest` (MQBench), `search` (minimum error, Vitis).
    """

    NONE = "none"
    UP = "up"
    NEAREST = "nearest"
    SEARCH = "search"


class Granularity(StrEnum):
    """Name what shares one scale: a whole tensor, or each channel of it."""

    PER_TENSOR = "per_tensor"
    PER_CHANNEL = "per_channel"


@dataclass(frozen=True)
class Blocks:
    """State which weights of an output channel share a scale of their own.

    `size` input channels make a block, with all of their taps; the last block may be shorter. `multiplier_bits`: a
    block has an unsigned multiplier of so many bits on the channel's scale; 0: it has a float scale of its own.
    `given_sizes`: other sizes that the device runs, where a quantized file has them.
    """

    size: int
    multiplier_bits: int = 0
    given_sizes: tuple[int, ...] = ()

    @property
    def are_real(self) -> bool:
        """Return whether each block has a float scale, so that only floats can be multiplied by the weight."""
        return self.multiplier_bits == 0


@dataclass(frozen=True)
class TensorSchema:
    """State how one kind of tensor (activations or weights) is quantized.

    `narrow` drops the most negative integer, so that the range is symmetric around zero.
    """

    symmetry: Symmetry = Symmetry.SYMMETRIC
    granularity: Granularity = Granularity.PER_TENSOR
    narrow: bool = True
    denominator: Denominator = Denominator.MAX
    power_of_two: PowerOfTwo = PowerOfTwo.NONE

    def __post_init__(self) -> None:
        for name, kind in (
            ("symmetry", Symmetry),
            ("granularity", Granularity),
            ("denominator", Denominator),
            ("power_of_two", PowerOfTwo),
        ):
            object.__setattr__(self, name, kind(getattr(self, name)))


@dataclass(frozen=True)
class Schema:
    """Name how activations and how weights are quantized."""

    name: str
    activations: TensorSchema
    weights: TensorSchema
