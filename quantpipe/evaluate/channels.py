"""Errors of a tensor or a weight channel by channel."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from quantpipe.arrays import Array
from quantpipe.intmath import round_real
from quantpipe.types import ChannelRow


def channel_axis(rank: int) -> int:
    """Return the axis of an activation's channels: after the batch in maps, the last one in sequences and rows."""
    return 1 if rank == 4 else max(rank - 1, 0)


@dataclass(eq=False)
class ChannelSums:
    """Hold the sums of the channel comparison of one tensor; `low`, `high`: the bounds of its integers."""

    axis: int
    low: Array
    high: Array
    scale: Array
    sums: dict[str, Array] = field(default_factory=dict)

    def add(self, real: Array, held: Array) -> None:
        """Include values `[n, ...]` of the float and of the integer model, both in real units."""
        x, y = (np.moveaxis(a, self.axis, 0).reshape(a.shape[self.axis], -1).astype(np.float64) for a in (real, held))
        clipped = np.clip(x, self.low[:, None], self.high[:, None])
        steps = clipped / self.scale[:, None]
        parts = {
            "signal": (x**2).sum(1),
            "noise": ((x - y) ** 2).sum(1),
            "clipping": ((x - clipped) ** 2).sum(1),
            "rounding": (((steps - round_real(steps)) * self.scale[:, None]) ** 2).sum(1),
            "saturated": (x != clipped).sum(1).astype(np.float64),
            "elements": np.full(len(x), float(x.shape[1])),
        }
        ends = {"min": (np.minimum, x.min(1)), "max": (np.maximum, x.max(1))} if x.size else {}
        for name, array in parts.items():
            self.sums[name] = self.sums[name] + array if name in self.sums else array
        for name, (join, array) in ends.items():
            self.sums[name] = join(self.sums[name], array) if name in self.sums else array

    def rows(self) -> list[ChannelRow]:
        """Return a row per channel, in their order."""
        if "min" not in self.sums:
            return []
        found: list[ChannelRow] = []
        for channel, values in enumerate(zip(*(self.sums[name] for name in _ORDER), strict=True)):
            signal, noise, clipping, rounding, saturated, elements, low, high = map(float, values)
            known = signal > 0 and noise > 0
            found.append(
                {
                    "channel": channel,
                    "sqnr_db": 10.0 * float(np.log10(signal / noise)) if known else None,
                    "rounding": rounding / (signal or 1.0),
                    "clipping": clipping / (signal or 1.0),
                    "saturated": saturated / max(elements, 1.0),
                    "min": low,
                    "max": high,
                }
            )
        return found


def constant_rows(real: Array, held: Array, axis: int) -> list[ChannelRow]:
    """Return a row per output channel of a weight, or per number of a bias; its whole error counts as rounding.

    `real` are the float values and `held` the integers' values, in the same shape.
    """
    count = real.shape[axis] if real.ndim else 1
    shaped = (real, held) if real.ndim else (real.reshape(1), held.reshape(1))
    sums = ChannelSums(axis, np.full(count, -np.inf), np.full(count, np.inf), np.ones(count))
    sums.add(*shaped)
    sums.sums["rounding"] = sums.sums["noise"]
    return sums.rows()


_ORDER = ("signal", "noise", "clipping", "rounding", "saturated", "elements", "min", "max")
