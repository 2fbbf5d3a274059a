"""Counts of compared elements while batches go by: equal, explained by rounding, differing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import Array


class Counter:
    """Count elements that were compared.

    `elements` compared, `real_elements` of them floats; `differing`; `behind`: made by float nodes and explained by
    their rounding. `inexact`: made by kernels and explained by the order of a sum. `first`: the first tensor that
    differs. `undefined`: the first tensor with NaN where a number is found, which no rounding explains.
    """

    def __init__(self) -> None:
        self.elements = self.real_elements = self.differing = self.behind = self.inexact = 0
        self.max_lsb = 0.0
        self.first: str | None = None
        self.undefined: str | None = None

    def integers(self, tensor: str, expected: Array, found: Array, excused: bool | Callable[[], Array] = False) -> None:
        """Compare integers, given in float types that hold them.

        `excused` marks elements that rounding in float nodes explains (True: all); it is called only where some differ.
        """
        self.elements += found.size
        if np.array_equal(expected, found):
            return
        different = _different(expected, found)
        if expected.shape == found.shape:
            self.max_lsb = max(self.max_lsb, float(np.max(np.abs(expected - found.astype(np.float64)))))
        allowed = excused() if callable(excused) else np.asarray(excused)
        self._take(tensor, different, allowed & self._defined(tensor, expected, found), by_float=True)

    def reals(
        self,
        tensor: str,
        expected: Array,
        found: Array,
        *,
        excused: bool | Callable[[], Array] = False,
        by_float: bool = False,
    ) -> None:
        """Compare float values, or other values of an output.

        `excused` is the tolerance of each element (True: any difference); it is called only where some differ.
        `by_float`: float nodes made the values.
        """
        self.elements += found.size
        self.real_elements += found.size
        different = _different(expected, found)
        if not different.any():
            return
        allowed = np.asarray(excused) if isinstance(excused, bool) else np.asarray(False)
        if callable(excused) and expected.shape == found.shape and expected.dtype.kind == "f":
            with np.errstate(invalid="ignore"):
                allowed = np.abs(expected.astype(np.float64) - found.astype(np.float64)) <= excused()
        self._take(tensor, different, allowed & self._defined(tensor, expected, found), by_float)

    def _defined(self, tensor: str, expected: Array, found: Array) -> NDArray[np.bool_]:
        """Return where no number is found in the place of a NaN."""
        if expected.dtype.kind != "f" or expected.shape != found.shape:
            return np.asarray(True)
        lost = np.isnan(expected) & ~(np.isnan(found) if found.dtype.kind == "f" else False)
        if self.undefined is None and lost.any():
            self.undefined = tensor
        return np.asarray(~lost)

    def _take(self, tensor: str, different: Array, allowed: Array, by_float: bool) -> None:
        wrong = int(np.count_nonzero(different & ~allowed))
        explained = int(np.count_nonzero(different)) - wrong
        self.differing += wrong
        if by_float:
            self.behind += explained
        else:
            self.inexact += explained
        if wrong and self.first is None:
            self.first = tensor


def _different(expected: Array, found: Array) -> NDArray[np.bool_]:
    """Return which elements are not equal (two NaN are); all of them if the shapes differ."""
    if expected.shape != found.shape:
        return np.ones(found.shape or (1,), bool) if found.size else np.ones(1, bool)
    different = expected != found
    if expected.dtype.kind == "f" and found.dtype.kind == "f":
        different &= ~(np.isnan(expected) & np.isnan(found))
    return np.asarray(different)
