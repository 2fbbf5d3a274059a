"""A pattern: Conv + bias + HardSwish, one kernel of the device. Nothing is stored between its parts."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from quantpipe.extend import Array, DeviceOp, NodeFacts, Numbers, Site, function

REFERENCE = function("""
    <domain: "example.npu", opset_import: ["" : 17]>
    ConvHardSwish <dilations, group, kernel_shape, pads, strides> (x, w, b) => (y) {
        sum = Conv <dilations: ints = @dilations, group: int = @group, kernel_shape: ints = @kernel_shape,
                    pads: ints = @pads, strides: ints = @strides> (x, w, b)
        y = HardSwish (sum)
    }
""")

INTEGERS = function("""
    <domain: "example.npu", opset_import: ["" : 17]>
    ConvHardSwishInteger <dilations, group, kernel_shape, pads, strides>
    (x, w, x_zero, bias, scale, sixth, half, none, all, per_step, zero, low, high, like) => (y) {
        products = ConvInteger <dilations: ints = @dilations, group: int = @group, kernel_shape: ints = @kernel_shape,
                                pads: ints = @pads, strides: ints = @strides> (x, w, x_zero)
        sum = Add (products, bias)
        float_sum = Cast <to = 1> (sum)
        real = Mul (float_sum, scale)
        sloped = Mul (real, sixth)
        raised = Add (sloped, half)
        gate = Clip (raised, none, all)
        swished = Mul (real, gate)
        steps = Mul (swished, per_step)
        whole = Round (steps)
        stored = Add (whole, zero)
        clipped = Clip (stored, low, high)
        y = CastLike (clipped, like)
    }
""")


def numbers(site: Site) -> Numbers:
    """Return the bias in accumulator steps and the scale of each channel, and the constants of the epilogue."""
    x, w, out = site.operands["x"], site.weight, site.result
    if w is None:
        raise ValueError("the weight is missing")
    rank = len(site.facts.shapes["w"]) - 2
    channels = site.facts.shapes["w"][0]
    scale = np.broadcast_to(np.float64(x.scale) * w.scale.astype(np.float64), (channels,))
    bias = np.rint(site.facts.constants["b"] / scale).astype(np.int32)
    along = (1, channels, *[1] * rank)
    return {
        "x_zero": np.asarray(x.zero_point, x.dtype.numpy),
        "bias": bias.reshape(along),
        "scale": scale.astype(np.float32).reshape(along),
        "sixth": np.float32(1 / 6),
        "half": np.float32(0.5),
        "none": np.float32(0),
        "all": np.float32(1),
        "per_step": np.float32(1 / np.float64(out.scale)),
        "zero": np.float32(out.zero_point),
        "low": np.float32(site.low),
        "high": np.float32(site.high),
        "like": np.zeros((), out.dtype.numpy),
    }


def interpret(stored: Mapping[str, Array], numbers: Numbers, attributes: Mapping[str, Any]) -> Array:
    """Return the sums by a plain walk over the window, then the epilogue in float32, operation by operation."""
    x, w = stored["x"] - int(numbers["x_zero"]), stored["w"]
    kernel, rank = w.shape[2:], w.ndim - 2
    pads, strides = attributes.get("pads", [0] * 2 * rank), attributes.get("strides", [1] * rank)
    dilations, group = attributes.get("dilations", [1] * rank), attributes.get("group", 1)
    x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    sizes = [(n - k) // s + 1 for n, k, s in zip(x.shape[2:], spans, strides, strict=True)]
    sums = np.zeros((len(x), group, len(w) // group, *sizes), np.int64)
    grouped = x.reshape(len(x), group, w.shape[1], *x.shape[2:])
    for tap in np.ndindex(*kernel):
        window = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, dilations, sizes, strides, strict=True)
        )
        own = w.reshape(group, len(w) // group, *w.shape[1:])[(..., *tap)]
        sums += np.einsum("ngc...,goc->ngo...", grouped[(slice(None), slice(None), slice(None), *window)], own)
    sums = sums.reshape(len(x), len(w), *sizes) + numbers["bias"]
    real = sums.astype(np.float32) * numbers["scale"]
    gate = np.clip(real * numbers["sixth"] + numbers["half"], np.float32(0), np.float32(1))
    steps = np.rint(real * gate * numbers["per_step"]) + numbers["zero"]
    return np.asarray(np.clip(steps, numbers["low"], numbers["high"]), np.int64)


def refuse(facts: NodeFacts) -> str | None:
    """Return why the device cannot run a convolution: it pads by numbers only."""
    return None if "auto_pad" not in facts.attributes else "its pads are left to auto_pad"


def macs(facts: NodeFacts) -> int:
    """Return the multiply-accumulates of a sample."""
    _, _, *size = facts.shapes["x"]
    strides = facts.attributes.get("strides") or [1] * len(size)
    return prod(facts.shapes["w"]) * prod(-(-n // s) for n, s in zip(size, strides, strict=True))


CONV_HARD_SWISH = DeviceOp(
    REFERENCE, numbers, INTEGERS, interpret, weight="w", constants=("b",), pattern=True, refuse=refuse, macs=macs
)
