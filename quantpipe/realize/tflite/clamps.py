"""Bounds of stored integers: an activation that a kernel fuses where it means the same, else Maximum and Minimum."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from quantpipe.intake.tflite.layout import Order, laid, place
from quantpipe.intake.tflite.operators import ACTIVATIONS
from quantpipe.realize.tflite.walk import TfliteWalk
from quantpipe.types import Form, Kernel, Quantizer, Requantize

ALONE: Mapping[str, int] = {"RELU": 2, "RELU6": 2}
"""Activations that int8 has an operator of its own for, and its version."""

Write = Callable[[int, int], None]
"""(result, activation): writes a kernel that fuses an activation."""


def clamped(
    walk: TfliteWalk, kernel: Kernel, output: Requantize, order: Order, *, write: Write, fuses: bool = True
) -> None:
    """Write a kernel whose result is narrowed to bounds, and keep it.

    `order` is the order of its result, `write` writes the kernel itself, and `fuses`: it can fuse an activation.
    """
    q = walk.plan.quantizers[kernel.output]
    name = fused(q, output.low, output.high)
    name = name if fuses or name == "NONE" else None
    steps = [] if name is not None else bounds(q, output.low, output.high)
    if output.by_channel is not None:
        shape = np.ones(len(order), np.int64)
        shape[place(1, order)] = -1
        steps += [(op, b.reshape(shape)) for op, b in zip(("MAXIMUM", "MINIMUM"), output.by_channel, strict=True)]
    result = walk.make(kernel.output, order)
    shape_of = laid(walk.graph.shapes[kernel.output], order)
    first = result if not steps else walk.temporary(f"{kernel.output} (wide)", shape_of, kernel.output)
    write(first, walk.file.enum("ActivationFunctionType", name or "NONE"))
    limited(walk, kernel.output, first, result, steps=steps)
    walk.keep(kernel.output, Form.QUANTIZED, order, result)


def limited(
    walk: TfliteWalk, like: str, value: int, result: int, *, steps: list[tuple[str, NDArray[np.int64]]]
) -> None:
    """Write Maximum and Minimum with constants, one after the other, from `value` to `result`.

    All of them have the scale and type of the stored tensor `like`; `steps` are the operators with their bounds.
    """
    q = walk.plan.quantizers[like]
    for number, (op, bound) in enumerate(steps):
        last = number + 1 == len(steps)
        target = result if last else walk.temporary(f"{like} (bound {number})", walk.file.shape(value), like)
        name = f"{like}/{op.lower()}"
        limit = walk.file.constant(name, bound.astype(q.dtype.numpy), q.dtype, walk.grid(like))
        walk.file.operator(op, [value, limit], [target], 2, kind="MaximumMinimumOptions")
        value = target


def bounds(q: Quantizer, low: int, high: int) -> list[tuple[str, NDArray[np.int64]]]:
    """Return the operators that bound integers of a type, those that change nothing left out."""
    found = []
    if low > q.dtype.qmin:
        found.append(("MAXIMUM", np.asarray(low, np.int64)))
    if high < q.dtype.qmax:
        found.append(("MINIMUM", np.asarray(high, np.int64)))
    return found


def fused(q: Quantizer, low: int, high: int) -> str | None:
    """Return the activation whose bounds these are as TFLite's kernels form them, or None."""
    for name, ends in ACTIVATIONS.items():
        least, most = (None if e is None else _steps(e, q) for e in ends)
        own = (
            q.dtype.qmin if least is None else max(q.dtype.qmin, least),
            q.dtype.qmax if most is None else min(q.dtype.qmax, most),
        )
        if own == (low, high):
            return name
    return None


def _steps(bound: float, q: Quantizer) -> int:
    """Return a real bound as TFLite quantizes it: the float32 quotient, ties away from zero."""
    steps = np.float64(np.float32(bound) / np.float32(q.scale))
    return q.zero_point + int(np.sign(steps) * np.floor(np.abs(steps) + 0.5))
