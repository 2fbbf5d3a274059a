"""Rounding by its definition, in exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

from quantpipe.intmath import Rounding


def rounded(x: Fraction, mode: Rounding) -> int:
    if mode is Rounding.HALF_EVEN:
        return round(x)
    if mode is Rounding.HALF_UP:
        return math.floor(x + Fraction(1, 2))
    if mode is Rounding.HALF_AWAY:
        return math.floor(abs(x) + Fraction(1, 2)) * (1 if x >= 0 else -1)
    return math.floor(x)
