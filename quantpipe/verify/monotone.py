"""Whether a chain of element-wise ops never falls as its source rises, and never wraps: then a few points prove it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from quantpipe.verify.files import Wrong, expect
from quantpipe.verify.ops import attribute, target
from quantpipe.verify.realized_model import Model

Array = NDArray[Any]


class Course(Enum):
    """Name how a whole-numbered value moves with its source.

    STRICT: it rises with each step; UP: it never falls; DOWN: it never rises; BIT: it is 0 or 1.
    """

    CONSTANT = 0
    STRICT = 1
    UP = 2
    DOWN = 3
    BIT = 4


RISING = (Course.STRICT, Course.UP)
KEEPING = frozenset({"Round", "Floor", "Clip", "Max", "Min", "DequantizeLinear", "QuantizeLinear", "Identity"})


def expect_rising(model: Model, value: str, sources: Mapping[str, tuple[Array, Array]]) -> None:
    """Check that a value never falls where its sources rise.

    `sources`: minimum and maximum value of each source, `[C, 1]` each.
    """
    walk = _Walk(model, sources)
    expect(walk.course(value) in RISING, value, "its steps are not known to rise with the accumulator")


class _Walk:
    def __init__(self, model: Model, sources: Mapping[str, tuple[Array, Array]]) -> None:
        self._model = model
        self._known = dict.fromkeys(sources, Course.STRICT)
        ends = [{name: pair[side].astype(object) for name, pair in sources.items()} for side in (0, 1)]
        self._ends: list[dict[str, Array]] = ends
        self._types: dict[str, np.dtype[Any]] = {name: pair[0].dtype for name, pair in sources.items()}

    def course(self, value: str) -> Course:
        if value not in self._known:
            self._known[value] = self._course(value)
        return self._known[value]

    def _course(self, value: str) -> Course:
        model = self._model
        if model.is_constant(value):
            array = model.constant(value)
            constant = array.reshape(()) if array.size == 1 else array.reshape(-1, 1)
            for end in self._ends:
                end[value] = constant.astype(object) if constant.dtype.kind in "iu" else constant
            self._types[value] = array.dtype
            return Course.CONSTANT
        node = model.producer.get(value)
        if node is None:
            raise Wrong(value, "nothing makes it")
        courses = [self.course(i) for i in node.input if i]
        self._follow(node, value)
        return self._of(node, courses)

    def _of(self, node: onnx.NodeProto, courses: list[Course]) -> Course:
        first, rest = courses[0], courses[1:]
        constant = all(c is Course.CONSTANT for c in rest)
        op = node.op_type
        if op == "BitShift" and constant:
            sign = attribute(node, "direction") == b"RIGHT" and self._is_sign(node)
            return Course.DOWN if sign else Course.UP
        if op == "Cast":
            widened = self._types[node.input[0]].kind in "iu" and target(node).kind in "iu"
            return first if first is not Course.STRICT or widened else Course.UP
        if op == "Mod" and constant and np.all(self._model.constant(node.input[1]) == 2):
            return Course.BIT
        if op == "Mul" and constant and first is not Course.CONSTANT:
            return self._times(node, first)
        if op in ("Add", "Sub"):
            return _summed(node, first, rest[0])
        if op in KEEPING and constant and first in RISING:
            return Course.UP
        raise Wrong(node.name, f"{op} is no step of narrowing that is known to rise")

    def _times(self, node: onnx.NodeProto, first: Course) -> Course:
        factor = self._model.constant(node.input[1])
        expect(bool(np.all(factor >= 0)), node.name, "it multiplies by a negative number")
        if first is Course.BIT:
            return Course.BIT if np.all(factor <= 1) else _fail(node)
        return first if first is not Course.STRICT or (factor.dtype.kind in "iu" and np.all(factor > 0)) else Course.UP

    def _is_sign(self, node: onnx.NodeProto) -> bool:
        """The highest bit of a signed number seen as an unsigned one: 1 where it is negative."""
        bits = self._types[node.input[0]].itemsize * 8
        cast = self._model.producer.get(node.input[0])
        signed = cast is not None and cast.op_type == "Cast" and self._types[cast.input[0]].kind == "i"
        return signed and bool(np.all(self._model.constant(node.input[1]) == bits - 1))

    # --- no wrap: both ends in whole numbers -----------------------------------------------------------------------

    def _follow(self, node: onnx.NodeProto, value: str) -> None:
        """Compute the exact value at both ends; Wrong where its type cannot hold it.

        Unsigned numbers may wrap as long as they are only added to; before they are shifted they must be in place.
        """
        types = [self._types[i] for i in node.input if i]
        kind = target(node) if node.op_type == "Cast" else types[-1] if node.op_type == "QuantizeLinear" else types[0]
        if node.op_type == "DequantizeLinear":
            kind = np.dtype(np.float32)
        self._types[value] = kind
        for end in self._ends:
            inputs = [end[i] for i in node.input if i]
            if any(t.kind == "f" for t in types) or kind.kind == "f" or any(v is None for v in inputs):
                _expect_held(node, types[0], inputs[0])
                end[value] = None  # type: ignore[assignment]  # floats round, and do not wrap
                continue
            end[value] = self._exactly(node, inputs, types[0])
            if kind.kind == "i":
                _expect_held(node, kind, end[value])

    def _exactly(self, node: onnx.NodeProto, inputs: list[Array], kind: np.dtype[Any]) -> Array:
        op = node.op_type
        if op == "Cast":
            if target(node).kind == "i" and target(node).itemsize > kind.itemsize:  # else the low bits are all of it
                _expect_held(node, kind, inputs[0])
            return inputs[0]
        if op == "BitShift":
            if attribute(node, "direction") == b"RIGHT":
                if self._is_sign(node):
                    return np.asarray((inputs[0] < 0).astype(int), object)
                _expect_held(node, kind, inputs[0])
                return np.asarray(inputs[0] >> inputs[1])
            return np.asarray(inputs[0] << inputs[1])
        if op in _EXACT:
            return np.asarray(_EXACT[op](*inputs))
        if op == "Clip":
            return np.asarray(np.minimum(np.maximum(inputs[0], inputs[1]), inputs[2]))
        raise Wrong(node.name, f"{op} is not followed in integers")


_EXACT: Mapping[str, Any] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Mod": lambda a, b: a % b,
    "Max": np.maximum,
    "Min": np.minimum,
    "Identity": lambda a: a,
}


def _summed(node: onnx.NodeProto, first: Course, second: Course) -> Course:
    """A sum or difference of two courses."""
    if node.op_type == "Sub":
        turned = {Course.UP: Course.DOWN, Course.STRICT: Course.DOWN, Course.DOWN: Course.UP}
        second = turned.get(second, second)
        if second is Course.BIT:
            return _fail(node)
    pair = {first, second}
    if pair == {Course.CONSTANT}:
        return Course.CONSTANT
    if Course.CONSTANT in pair:
        return (pair - {Course.CONSTANT}).pop()
    if pair == {Course.STRICT, Course.BIT}:
        return Course.UP
    if pair <= set(RISING):
        return Course.STRICT if Course.STRICT in pair else Course.UP
    return _fail(node)


def _fail(node: onnx.NodeProto) -> Course:
    raise Wrong(node.name, f"{node.op_type} is no step of narrowing that is known to rise")


def _expect_held(node: onnx.NodeProto, kind: np.dtype[Any], value: Array | None) -> None:
    if value is None or kind.kind not in "iu":
        return
    limits = np.iinfo(kind)
    held = bool(np.all((value >= int(limits.min)) & (value <= int(limits.max))))
    expect(held, node.name, f"some accumulator wraps in {kind} here")
