"""Samples of an input, and the empty cache that a decoder's sequence begins with."""

from __future__ import annotations

import warnings

import numpy as np

from quantpipe.evaluate.calibration_checks import _Seen


def test_an_empty_cache_is_left_out() -> None:
    seen = _Seen()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen.add(np.zeros((2, 0, 4), np.float32))
        seen.add(np.ones((2, 1, 4), np.float32))
    assert seen.count == 1 and seen.means == [1.0]
