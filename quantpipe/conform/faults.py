"""List faults outside hardware files: mistakes, and fields that change no number of a plan."""

from __future__ import annotations

from dataclasses import dataclass

from quantpipe.types import Limit


@dataclass(frozen=True)
class Fault:
    """Describe how one kernel departs from its plan.

    `shift`: By how many places windows are moved along each axis of the map. `pads_zero`: The pads hold the integer 0,
    where 0 is not the zero point. `wraps`: Stored values keep the low bits of their type, instead of a clamp to the
    bits' own bounds. `limit`: The accumulator's treatment of sums, instead of the plan's. `no_bias`: The bias is left
    out. `no_clamp`: The bounds of the Relu or Clip after the kernel are left out. `no_zero_point`: The zero point of
    the operands is not subtracted.
    """

    shift: tuple[int, ...] = ()
    pads_zero: bool = False
    wraps: bool = False
    limit: Limit | None = None
    no_bias: bool = False
    no_clamp: bool = False
    no_zero_point: bool = False


NONE = Fault()
