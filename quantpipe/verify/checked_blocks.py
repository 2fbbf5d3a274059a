"""Weights in blocks: that every integer is a code of few bits, less a zero point, times the multiplier of its block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.verify.files import expect


def expect_blocks(entry: Mapping[str, Any], weight: NDArray[Any], name: str) -> None:
    """Check the integers of a weight against its blocks in plan.json.

    `weight`: its integers, in the layout of the float weight.
    """
    block, axis = entry.get("block"), int(entry["channel_axis"])
    if block is None:
        return
    size, (low, high) = int(block["size"]), block["codes"]
    rows = np.moveaxis(weight, axis, 0)
    rows = rows.reshape(rows.shape[0], rows.shape[1], -1).astype(np.int64)
    multiplier = np.asarray(block["multiplier"], np.int64)
    expect(multiplier.shape == (rows.shape[0], -(-rows.shape[1] // size)), name, "it has another number of blocks")
    expect(bool(np.all(multiplier >= 1)), name, "a multiplier of its blocks is not positive")
    zero = np.broadcast_to(np.asarray(block["zero_point"], np.int64), multiplier.shape)
    factor, offset = (np.repeat(v, size, axis=1)[:, : rows.shape[1], np.newaxis] for v in (multiplier, zero))
    expect(bool(np.all(rows % factor == 0)), name, "an integer is no multiple of the multiplier of its block")
    codes = rows // factor + offset
    expect(bool(np.all((low <= codes) & (codes <= high))), name, "a code is beyond its bits")
    expect_codes(block["codes"], int(entry["bits"]), name)


def expect_codes(ends: Any, bits: int, name: str) -> None:
    """Check that the ends of codes fit a number of bits: of signed ones, the smallest left out or not."""
    half = 1 << (bits - 1)
    expect(
        list(ends) in ([-half, half - 1], [1 - half, half - 1]), name, f"its codes {list(ends)} are not of {bits} bits"
    )
