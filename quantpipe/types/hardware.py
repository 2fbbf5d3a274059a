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
    FLOAT_MULTIPLIER = "float_multiplier"
    SHIFT = "shift"


class Overflow(StrEnum):
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


@dataclass(frozen=True)
class ActivationLimits:
    symmetric: bool = True
    bits: int = 8
    narrow: bool = True


@dataclass(frozen=True)
class RequantizeSpec:
    kind: RequantizeKind = RequantizeKind.FLOAT_MULTIPLIER
    max_shift: int = 31


@dataclass(frozen=True)
class Accumulator:
    dtype: DType = DType.INT32
    overflow: Overflow = Overflow.WRAP


@dataclass(frozen=True)
class Cost:
    """What running costs. `macs_per_cycle` by operand width; `channel_block`: channels are padded to multiples of
    it."""

    macs_per_cycle: Mapping[str, float] = field(default_factory=lambda: {"int8": 1.0, "float32": 1.0})
    bytes_per_cycle: float = 1.0
    channel_block: int = 1


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

    def fuses(self, first: str, second: str) -> bool:
        """Whether some chain of `fuse` has the two ops one after the other."""
        return any((first, second) in itertools.pairwise(chain) for chain in self.fuse)
