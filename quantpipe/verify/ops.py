"""What ONNX's element-wise ops compute, on NumPy arrays: enough to run by hand what stands between two kernels.

Arrays are `[channels or 1, values]`. Constants with several elements follow the channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

Array = NDArray[Any]

BYTES = {"INT2": np.int8, "INT4": np.int8, "UINT2": np.uint8, "UINT4": np.uint8}
SHORT = {code: BYTES[name] for name, code in onnx.TensorProto.DataType.items() if name in BYTES}
"""Types of less than a byte that the installed onnx has, and what holds them here."""


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """Return the value of a node's attribute, or `default` where it is not set."""
    for found in node.attribute:
        if found.name == name:
            return onnx.helper.get_attribute_value(found)
    return default


BFLOAT16 = 16
"""The code of the type in ONNX."""


def to_bfloat16(x: Array) -> Array:
    """Return floats rounded to bfloat16, ties to even, in float32: half of the bits of a float32 are left."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(x), rounded.view(np.float32), x).astype(np.float32)


def target(node: onnx.NodeProto) -> np.dtype[Any]:
    """Return the type that a Cast gives."""
    code = attribute(node, "to")
    if code in SHORT:
        return np.dtype(SHORT[code])
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(code))


def apply(node: onnx.NodeProto, inputs: Sequence[Array | None]) -> Array:
    """Return the result of one element-wise node.

    `inputs`: its inputs, of shapes that broadcast; None for an absent one. Raises KeyError for an op that is not
    element-wise.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(_OPS[node.op_type](node, *inputs))


def is_elementwise(node: onnx.NodeProto) -> bool:
    """Return whether this program can follow the op element by element."""
    return node.op_type in _OPS and node.domain in ("", "ai.onnx")


def _clip(node: onnx.NodeProto, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def _shift(node: onnx.NodeProto, x: Array, count: Array) -> Array:
    if np.any(count >= x.dtype.itemsize * 8):
        raise ValueError("it shifts by more bits than its type has")
    left = attribute(node, "direction") == b"LEFT"
    return np.left_shift(x, count) if left else np.right_shift(x, count)


def _gather(node: onnx.NodeProto, table: Array, index: Array) -> Array:
    flat = table.reshape(-1)
    if np.any(index < 0) or np.any(index >= flat.size):
        raise IndexError
    return np.asarray(flat[index])


def _quantize(node: onnx.NodeProto, x: Array, scale: Array, zero: Array | None = None) -> Array:
    zero = np.zeros((), np.uint8) if zero is None else zero
    limits = np.iinfo(zero.dtype)
    steps = np.rint(x / scale).astype(np.float64) + zero.astype(np.float64)
    return np.clip(steps, limits.min, limits.max).astype(zero.dtype)


def _dequantize(node: onnx.NodeProto, x: Array, scale: Array, zero: Array | None = None) -> Array:
    centred = x.astype(np.int64) - (0 if zero is None else zero.astype(np.int64))
    return np.asarray(centred.astype(np.float32) * scale)


_OPS: Mapping[str, Callable[..., Any]] = {
    "Cast": lambda n, x: to_bfloat16(x) if attribute(n, "to") == BFLOAT16 else x.astype(target(n)),
    "Add": lambda n, a, b: a + b,
    "Sub": lambda n, a, b: a - b,
    "Mul": lambda n, a, b: a * b,
    "Div": lambda n, a, b: a / b if a.dtype.kind == "f" else np.trunc(a / b).astype(a.dtype),
    "Mod": lambda n, a, b: np.mod(a, b),
    "Neg": lambda n, x: -x,
    "Abs": lambda n, x: np.abs(x),
    "Sign": lambda n, x: np.sign(x),
    "Floor": lambda n, x: np.floor(x),
    "Round": lambda n, x: np.rint(x),
    "Max": lambda n, a, b: np.maximum(a, b),
    "Min": lambda n, a, b: np.minimum(a, b),
    "Identity": lambda n, x: x,
    "Clip": _clip,
    "BitShift": _shift,
    "Gather": _gather,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
}
