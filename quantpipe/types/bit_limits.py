"""The quantized weights and activations that a device takes: symmetry, granularity, and number of bits."""

from __future__ import annotations

from dataclasses import dataclass

from quantpipe.types.dtype import DType
from quantpipe.types.schema import Blocks, Granularity


class Raised:
    """Hold what both have: the default bits, and the bits to which they may be raised."""

    bits: int
    raise_to: int

    @property
    def widest(self) -> int:
        """Return the most bits, raised or not."""
        return max(self.bits, self.raise_to)


@dataclass(frozen=True)
class WeightLimits(Raised):
    """State which quantized weights a device takes: symmetry, granularity, bits and range."""

    symmetric: bool = True
    granularity: tuple[Granularity, ...] = (Granularity.PER_TENSOR,)
    bits: int = 8
    narrow: bool = True
    reduce_range: bool = False
    """`bits` is one fewer than the file says, so that pairs of products fit int16."""
    block: Blocks | None = None
    """None: no two parts of a channel have scales of their own."""
    raise_to: int = 0
    """Bits that a weight gets where its layer reads a tensor that was raised; 0: never more than `bits`."""

    def bits_in(self, dtype: DType, *, raised: bool = False) -> int:
        """Return the most bits of a weight that is stored in a type."""
        return min(dtype.bits, self.widest if raised else self.bits)


@dataclass(frozen=True)
class ActivationLimits(Raised):
    """State which quantized activations a device takes: symmetry, bits, range and sign."""

    symmetric: bool = True
    bits: int = 8
    narrow: bool = True
    signed: bool | None = None
    """Whether stored activations are signed; None: as the types in `ops` say."""
    raise_to: int = 0
    """Bits that a tensor may be raised to where an output loses too much (`precision=auto`); 0: never more than `bits`.
    """
