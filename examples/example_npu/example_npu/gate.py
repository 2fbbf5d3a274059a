"""An op of two activations: Gate(x, g) = x · clip(g / 4 + 1/2, 0, 1), in integers from end to end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from quantpipe.extend import Array, DeviceOp, Numbers, Site, function

ONE = 1 << 12
"""The gate is open at this number: Q12."""
SHIFT = 24
"""The product's multiplier is a whole number of 2^-24."""

REFERENCE = function("""
    <domain: "example.npu", opset_import: ["" : 17]>
    Gate (x, g) => (y) {
        slope = Constant <value = float {0.25}> ()
        half = Constant <value = float {0.5}> ()
        zero = Constant <value = float {0.0}> ()
        one = Constant <value = float {1.0}> ()
        scaled = Mul (g, slope)
        raised = Add (scaled, half)
        open = Clip (raised, zero, one)
        y = Mul (x, open)
    }
""")

INTEGERS = function("""
    <domain: "example.npu", opset_import: ["" : 17]>
    GateInteger
    (x, g, x_zero, g_zero, slope, half, closed, open, multiplier, round, step, zero, low, high, like) => (y) {
        x_wide = Cast <to = 7> (x)
        g_wide = Cast <to = 7> (g)
        x_own = Sub (x_wide, x_zero)
        g_own = Sub (g_wide, g_zero)
        sloped = Mul (g_own, slope)
        raised = Add (sloped, half)
        narrow = Cast <to = 6> (raised)
        gate = Clip (narrow, closed, open)
        gate_wide = Cast <to = 7> (gate)
        product = Mul (x_own, gate_wide)
        scaled = Mul (product, multiplier)
        lifted = Add (scaled, round)
        steps = Div (lifted, step)
        stored = Add (steps, zero)
        short = Cast <to = 6> (stored)
        clipped = Clip (short, low, high)
        y = CastLike (clipped, like)
    }
""")
"""6 is INT32, 7 is INT64. `round` lifts the product above zero, where Div rounds down; `zero` takes it off again."""


def numbers(site: Site) -> Numbers:
    """Return zero points, the gate's slope and offset in Q12, and the multiplier of the product in Q24."""
    x, g, out = site.operands["x"], site.operands["g"], site.result
    multiplier = round(float(x.scale) / float(out.scale) / ONE * 2**SHIFT)
    lift = 1 << (SHIFT + 16)
    return {
        "x_zero": np.int64(x.zero_point),
        "g_zero": np.int64(g.zero_point),
        "slope": np.int64(round(float(g.scale) / 4 * ONE)),
        "half": np.int64(ONE // 2),
        "closed": np.int32(0),
        "open": np.int32(ONE),
        "multiplier": np.int64(multiplier),
        "round": np.int64(lift + (1 << (SHIFT - 1))),
        "step": np.int64(1 << SHIFT),
        "zero": np.int64(out.zero_point - (lift >> SHIFT)),
        "low": np.int32(site.low),
        "high": np.int32(site.high),
        "like": np.zeros((), out.dtype.numpy),
    }


def interpret(stored: Mapping[str, Array], numbers: Numbers, attributes: Mapping[str, Any]) -> Array:
    """Return the same by Python's own shift of whole numbers."""
    n = {name: int(value) for name, value in numbers.items()}
    gate = np.clip((stored["g"] - n["g_zero"]) * n["slope"] + n["half"], 0, ONE)
    scaled = (stored["x"] - n["x_zero"]) * gate * n["multiplier"]
    steps = ((scaled + (1 << (SHIFT - 1))) >> SHIFT) + n["zero"] + (1 << 16)
    return np.asarray(np.clip(steps, n["low"], n["high"]), np.int64)


GATE = DeviceOp(REFERENCE, numbers, INTEGERS, interpret, steps=2)
"""The gate has 12 bits, and its slope is rounded: two steps are what that can cost."""
