"""The decisions of a search as numbers in a file: bits and ranges per tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quantpipe.types.statistics import Range
from quantpipe.types.structure import DEFAULT, Structure


@dataclass(frozen=True, eq=False)
class Strategy:
    """Hold enough to build the integer model again, without data.

    `bits`: stored tensor or weight -> bits. `ranges`: scale group -> real range. `weights`: weight ->
    thresholds T of [-T, T], float64 `()` or `[C]`, or ranges (low, high), float64 `[C, 2]` (`[1, 2]` for a tensor with
    one scale), real units. `structure`: what its topology departs from the default in.
    """

    bits: Mapping[str, int]
    ranges: Mapping[str, Range]
    weights: Mapping[str, NDArray[np.float64]] = field(repr=False)
    structure: Structure = DEFAULT
