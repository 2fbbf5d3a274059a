"""A range that is known before calibration."""

from __future__ import annotations

from dataclasses import dataclass

from quantpipe.types import Range

FUNCTION, SCALE = "the op's function", "hardware: fixed_scale"
OF_DEVICE = (FUNCTION, SCALE)
"""Reasons of ranges that results of some ops have on a device, as against those that a user or a file states."""


@dataclass(frozen=True)
class FixedRange:
    """A range that is not up to calibration; with `bits` the number of bits is settled, too.

    `yields`: where tensors of two such ranges share a scale on a device that cannot bring one to the other, both take
    the hull of the two. What a user states does not yield. `narrower`: fewer bits that the tensor may have instead,
    each with its range.
    """

    range: Range
    bits: int | None
    reason: str
    yields: bool = False
    narrower: tuple[tuple[int, Range], ...] = ()

    @property
    def is_of_device(self) -> bool:
        """Return whether the device gives it to the result of an op, whatever the samples are."""
        return self.reason in OF_DEVICE

    def agrees(self, other: FixedRange) -> bool:
        """Return whether both can hold at once."""
        return self.range == other.range and (self.bits == other.bits or None in (self.bits, other.bits))

    def joined(self, other: FixedRange) -> FixedRange:
        """Return the hull of both ranges, in the fewer bits; the range of either where they are equal."""
        given = [b for b in (self.bits, other.bits) if b is not None]
        hull = Range(min(self.range.low, other.range.low), max(self.range.high, other.range.high))
        return FixedRange(hull, min(given, default=None), self.reason, True)
