"""Read narrowing off the graph, op by op, where that shows more at once than running it on many accumulators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from quantpipe.verify.ops import attribute, target
from quantpipe.verify.realized_model import Model

WHOLE_SINGLES = 1 << 24
"""Up to here every integer is a float32."""


def is_specified(model: Model, result: str, sources: Mapping[str, Any], numbers: Mapping[str, Any]) -> bool:
    """Return whether the ops from the one accumulator to its result match the specification, one by one.

    They are a float32 of the accumulator, its product with the multiplier, rounding with ties to even, the zero point
    and the clamp: what docs/numerics.md specifies for `float_multiplier`. Each op's own meaning is ONNX's.

    Returns False as well where the model narrows in another order that may be right.
    """
    if (numbers["kind"], numbers["rounding"]) != ("float_multiplier", "half_even") or numbers.get("zero_first"):
        return False
    (low, high), zero = (int(v) for v in numbers["range"]), int(numbers["zero_point"])
    if len(sources) != 1 or max(abs(low), abs(high), abs(zero)) >= WHOLE_SINGLES:
        return False
    walk = _Back(model, result, next(iter(sources)))
    return (
        walk.casts_to_integers(low, high)
        and walk.has("Clip", low, high)
        and (walk.has("Add", zero) or zero == 0)
        and walk.has("Round")
        and walk.multiplies(np.asarray(numbers["multiplier"], np.float32).reshape(-1))
        and walk.casts_to_single()
        and walk.arrived
    )


class _Back:
    """Walk from a value to the one that it is made of, over one op at a time if it is the one that is asked for."""

    def __init__(self, model: Model, value: str, source: str) -> None:
        self._model, self._value, self._source = model, value, source

    @property
    def arrived(self) -> bool:
        """Return whether nothing is left between here and the source."""
        return self._value == self._source

    def casts_to_integers(self, low: int, high: int) -> bool:
        """Step over a cast to integers that hold all from `low` to `high`."""
        node = self._node("Cast")
        if node is None or target(node).kind not in "iu":
            return False
        held = np.iinfo(target(node))
        return held.min <= low and high <= held.max and self._over(node)

    def casts_to_single(self) -> bool:
        """Step over a cast to float32."""
        node = self._node("Cast")
        return node is not None and target(node) == np.float32 and self._over(node)

    def has(self, op: str, *wanted: float) -> bool:
        """Step over an op with these single constants."""
        node = self._node(op)
        found = None if node is None else self._constants(node)
        if node is None or found is None or [c.size for c in found] != [1] * len(wanted):
            return False
        return [c.item() for c in found] == list(wanted) and self._over(node)

    def multiplies(self, wanted: np.ndarray[Any, Any]) -> bool:
        """Step over a product with these float32 numbers."""
        node = self._node("Mul")
        found = None if node is None else self._constants(node)
        if node is None or not found:
            return False
        return found[0].dtype == np.float32 and np.array_equal(found[0].reshape(-1), wanted) and self._over(node)

    def _node(self, op: str) -> onnx.NodeProto | None:
        node = None if self.arrived else self._model.producer.get(self._value)
        known = node is not None and node.op_type == op and node.domain in ("", "ai.onnx")
        return node if known and node is not None and attribute(node, "saturate", 1) == 1 else None

    def _constants(self, node: onnx.NodeProto) -> list[np.ndarray[Any, Any]] | None:
        """What an op reads next to its first input; None where that is no constant."""
        rest = list(node.input[1:])
        return [self._model.constant(i) for i in rest] if all(i and self._model.is_constant(i) for i in rest) else None

    def _over(self, node: onnx.NodeProto) -> bool:
        self._model.see(node)
        self._value = node.input[0]
        return True
