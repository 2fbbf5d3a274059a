"""Narrow a sum to a stored integer, as C expressions."""

from __future__ import annotations

import numpy as np

from quantpipe.errors import HardwareError
from quantpipe.realize.c import helpers
from quantpipe.realize.c.source import CSource, integer
from quantpipe.types import DType, FixedPoint, Limit, Requantize, RequantizeKind


def limited(source: CSource, acc: str, limit: Limit | None) -> str:
    """Return a sum as an accumulator's type holds it."""
    if limit is None:
        return acc
    return f"{source.use(helpers.LIMIT[limit.overflow.value])}({acc}, {limit.width})"


MOST_SHIFT = 62
"""Beyond, int64 has no power of two; of values of 32 bits it leaves what any longer shift leaves."""


def shifted(source: CSource, value: str, shift: int, rounding: str) -> str:
    """Return value / 2^shift, rounded; a negative shift multiplies."""
    if shift == 0:
        return value
    if shift < 0:
        return f"({value}) * {integer(1 << -shift)}"
    return f"{source.use(helpers.SHIFT[rounding])}({value}, {min(shift, MOST_SHIFT)})"


def times_fixed(source: CSource, value: str, fixed: FixedPoint, rounding: str, *, channel: str) -> str:
    """Return value · multiplier · 2^(shift - 31), rounded as the device does.

    `rounding` is `double`, `single` or `single_away`; HardwareError for any other. `channel` is the channel, if there
    are several numbers.
    """
    if rounding not in helpers.KNOWN_FIXED:
        raise HardwareError(
            f"the C form does not know the fixed-point rounding {rounding!r}; legal are "
            f"{', '.join(sorted(helpers.KNOWN_FIXED))}, or another realize",
            stage="realize",
        )
    m = per_channel(source, fixed.multiplier, DType.INT32, channel)
    shift = per_channel(source, fixed.shift, DType.INT8, channel)
    return f"{source.use(helpers.FIXED[rounding])}({value}, {m}, {shift})"


def per_channel(source: CSource, values: np.ndarray, dtype: DType, channel: str) -> str:
    """Return a number, or the element of a constant array that belongs to the channel."""
    flat = np.asarray(values).reshape(-1)
    if flat.size == 1 or np.all(flat == flat[0]):
        return f"{float(flat[0]).hex()}f" if dtype.is_float else integer(int(flat[0]))
    return f"{source.array(flat, dtype)}[{channel}]"


def narrowed(source: CSource, r: Requantize, acc: str, *, channel: str) -> str:
    """Return the stored integer of a sum (a name or an expression), as an expression.

    `channel` is the channel, if numbers differ from channel to channel.
    """
    if r.kind is RequantizeKind.FLOAT_MULTIPLIER:
        stored = _real(source, r, acc, channel)
    else:
        if r.kind is RequantizeKind.SHIFT:
            scaled = shifted(source, acc, r.shift, str(r.rounding))
        else:
            if r.fixed is None:
                raise HardwareError("a fixed-point multiplier is missing from the plan", stage="realize")
            scaled = times_fixed(source, acc, r.fixed, str(r.rounding), channel=channel)
        stored = f"{source.use('qp_clamp')}({_plus(scaled, r.zero_point)}, {r.low}, {r.high})"
    if r.by_channel is None:
        return stored
    low, high = (per_channel(source, bound, DType.INT32, channel) for bound in r.by_channel)
    return f"{source.use('qp_clamp')}({stored}, {low}, {high})"


def _real(source: CSource, r: Requantize, acc: str, channel: str) -> str:
    """Return one float32 product, rounded, with the zero point added before or after rounding."""
    product = f"{source.use('qp_product')}((float)({acc}), {per_channel(source, r.multiplier, DType.FLOAT32, channel)})"
    return stored_real(source, r, f"{product} + {r.zero_point}.0f" if r.zero_first and r.zero_point else product)


def stored_real(source: CSource, r: Requantize, real: str) -> str:
    """Return the stored integer of a float in steps of the result; with `zero_first` the zero point is included."""
    rounded = f"{source.use(helpers.ROUND[str(r.rounding)])}({real})"
    whole = source.use("qp_whole")
    if r.zero_first:
        return f"{whole}({rounded}, {r.low}, {r.high})"
    return _plus(f"{whole}({rounded}, {r.low - r.zero_point}, {r.high - r.zero_point})", r.zero_point)


def _plus(text: str, value: int) -> str:
    return text if not value else f"{text} + {value}" if value > 0 else f"{text} - {-value}"
