"""A device function: Squash(x) = x / (1 + |x|), a table over the stored codes in a small memory of the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from quantpipe.extend import Array, DeviceOp, Numbers, Site, function
from quantpipe.types import Range

REFERENCE = function("""
    <domain: "example.npu", opset_import: ["" : 17]>
    Squash (x) => (y) {
        one = Constant <value = float {1.0}> ()
        size = Abs (x)
        below = Add (size, one)
        y = Div (x, below)
    }
""")

TABLE = function("""
    <domain: "example.npu", opset_import: ["" : 17]>
    SquashTable (x, least, table) => (y) {
        wide = Cast <to = 6> (x)
        place = Sub (wide, least)
        y = Gather (table, place)
    }
""")
"""6 is INT32. The simulated and the realized model both look up; a device does so by its kernel SquashTable."""


def numbers(site: Site) -> Numbers:
    """Return the table of all codes that the operand's type holds."""
    data, out = site.operands["x"], site.result
    codes = np.arange(data.dtype.qmin, data.dtype.qmax + 1)
    real = (codes - data.zero_point) * np.float64(data.scale)
    stored = np.rint(real / (1 + np.abs(real)) / np.float64(out.scale)) + out.zero_point
    table = np.clip(stored, site.low, site.high).astype(out.dtype.numpy)
    return {"table": table, "least": np.int32(data.dtype.qmin)}


def interpret(stored: Mapping[str, Array], numbers: Numbers, attributes: Mapping[str, Any]) -> Array:
    """Return the entries of the table."""
    return np.asarray(numbers["table"])[stored["x"] - int(numbers["least"])].astype(np.int64)


def within_one(found: Range) -> Range:
    """Return a range that does not reach beyond what the function can give."""
    return Range(max(found.low, -1.0), min(found.high, 1.0))


SQUASH = DeviceOp(REFERENCE, numbers, TABLE, interpret, rectify=within_one, fixed=(-1.0, 1.0))
