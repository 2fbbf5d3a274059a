"""What accuracy recovery puts in the place of numbers that a plan would make by itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantpipe.types import WeightTensor


@dataclass(frozen=True, eq=False)
class Overrides:
    """Integer weights and real biases that take the place of what rounding to the nearest would give (accuracy
    recovery)."""

    weights: dict[str, WeightTensor]
    biases: dict[str, NDArray[np.float64]]


NO_OVERRIDES = Overrides({}, {})
