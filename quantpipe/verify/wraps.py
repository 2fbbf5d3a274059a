"""Where a written model leaves of its sums what the device's accumulator holds of them, by dropping the bits above.

A type of the runtime wraps by a cast. A width that no type has (18 bits, say) is written as m - 2^b·⌊m / 2^(b-1)⌋ of
m = v mod 2^b, which this module recognizes, constant by constant.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx

from quantpipe.verify.numbers import limits, storage
from quantpipe.verify.ops import target
from quantpipe.verify.realized_model import Model


def type_of(accumulator: str) -> np.dtype[Any] | None:
    """Return the NumPy type of an accumulator's name; None for a width that no type has."""
    return storage(accumulator) if limits(accumulator)[1].bit_length() + 1 in (8, 16, 32, 64) else None


def name_of(accumulator: Mapping[str, Any] | str) -> str:
    """Return the name of an accumulator of a hardware file, such as int18."""
    if isinstance(accumulator, str):
        return accumulator
    bits = accumulator.get("bits")
    return f"int{bits}" if bits else str(accumulator.get("dtype", "int32"))


def overflow_of(accumulator: Mapping[str, Any] | str) -> str:
    """Return what an accumulator of a hardware file does with sums beyond it."""
    return "wrap" if isinstance(accumulator, str) else str(accumulator.get("overflow", "wrap"))


def wrapped(
    model: Model, result: str, stops: set[str], sources: Collection[str], *, accumulator: str
) -> dict[str, tuple[str, np.dtype[Any]]]:
    """Return the values between some sums and a result that hold what the accumulator leaves of the sums.

    Returns value -> (the sum that it is left of, its type); empty where nothing wraps.
    """
    kind, found = type_of(accumulator), {}
    for value in model.back(result, stops):
        node = model.producer.get(value)
        if node is None:
            continue
        if kind is not None and node.op_type == "Cast" and node.input[0] in sources and target(node) == kind:
            model.see(node)
            found[value] = node.input[0], kind
        elif kind is None and node.op_type == "Sub":
            source = _odd(model, node, sources, 2 * (limits(accumulator)[1] + 1))
            if source is not None:
                found[value] = source, np.dtype(np.int64)
    return found


def _odd(model: Model, node: onnx.NodeProto, sources: Collection[str], turn: int) -> str | None:
    """The sum v of v mod 2^b - 2^b·⌊(v mod 2^b) / 2^(b-1)⌋, where the node's result is that; None for anything else."""
    rest = model.producer.get(node.input[0])
    beyond = model.producer.get(node.input[1])
    if rest is None or beyond is None or rest.op_type != "Mod" or beyond.op_type != "Mul" or rest.attribute:
        return None
    upper = model.producer.get(beyond.input[0])
    if upper is None or upper.op_type != "Div" or upper.input[0] != node.input[0] or rest.input[0] not in sources:
        return None
    parts = ((rest.input[1], turn), (beyond.input[1], turn), (upper.input[1], turn // 2))
    if not all(model.is_constant(v) for v, _ in parts):
        return None
    arrays = [(model.constant(v), number) for v, number in parts]
    if any(a.dtype != np.int64 or a.size != 1 or int(a.reshape(())) != number for a, number in arrays):
        return None
    for each in (node, rest, beyond, upper):
        model.see(each)
    return str(rest.input[0])
