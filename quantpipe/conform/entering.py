"""List alternative conversions of floats to integers at the inputs of a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.arrays import Array
from quantpipe.conform.network import Network
from quantpipe.types import Rounding


def entering_alternatives(
    net: Network, tensor: str, inputs: Mapping[str, Array]
) -> Iterator[tuple[str, str, NDArray[np.int64]]]:
    """Yield (field, value, integers) of other ways to quantize an input of the model; nothing for other tensors."""
    if tensor not in inputs or tensor not in net.plan.quantizers:
        return
    q = net.plan.quantizers[tensor]
    steps = np.asarray(inputs[tensor], np.float32) / np.float32(q.scale)
    for rounding in Rounding:
        whole = intmath.round_real(steps, rounding)
        yield "input rounding", str(rounding), np.clip(whole + q.zero_point, q.qmin, q.qmax).astype(np.int64)
    whole = intmath.round_real(steps)
    yield "input rounding", "towards zero", np.clip(np.trunc(steps) + q.zero_point, q.qmin, q.qmax).astype(np.int64)
    yield "input zero_point", "left out", np.clip(whole, q.qmin, q.qmax).astype(np.int64)
    limits = q.dtype.qmin, q.dtype.qmax
    yield "input range", f"{limits[0]} to {limits[1]}", np.clip(whole + q.zero_point, *limits).astype(np.int64)
    wrapped = intmath.wrap(np.clip(whole, -(1 << 40), 1 << 40).astype(np.int64) + q.zero_point, q.dtype)
    yield "input range", "wraps", wrapped.astype(np.int64)
