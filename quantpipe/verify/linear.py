"""Sums as the model file makes them: whole-numbered combinations of products, read off its Add, Sub, Mul and Cast.

A value is linear where it is Σ coefficient · product + constant; the products are what Conv, MatMul and the like give.
The accumulator of a kernel is the last linear value on the way to its result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from quantpipe.verify.files import Wrong, expect
from quantpipe.verify.ops import is_elementwise, target
from quantpipe.verify.realized_model import Model

Ints = NDArray[np.int64]


def held(dtype: np.dtype[Any]) -> int:
    """Return the largest integer up to which a type holds them all."""
    if dtype.kind == "f":
        return (1 << 24) - 1 if dtype.itemsize == 4 else (1 << 53) - 1
    return int(np.iinfo(dtype).max)


@dataclass(frozen=True, eq=False)
class Linear:
    """Σ `factors[value]` · value + `constant`; factors and constant are int64, `()` or `[C]`."""

    factors: dict[str, Ints]
    constant: Ints
    dtype: np.dtype[Any]

    def same(self, other: Linear) -> bool:
        """Return whether two linear values have the same constant and the same factors."""
        if set(self.factors) != set(other.factors):
            return False
        pairs = [(self.constant, other.constant), *((f, other.factors[n]) for n, f in self.factors.items())]
        return all(a.shape == b.shape and np.array_equal(a, b) for a, b in pairs)


class Sums:
    """Hold the linear values that make `result`.

    `heads`: the products' values and types; `wraps`: the type whose overflow the device models by wrapping, so that a
    cast to it is no part of the sum.
    """

    def __init__(
        self,
        model: Model,
        result: str,
        stops: set[str],
        heads: dict[str, np.dtype[Any]],
        *,
        wraps: np.dtype[Any] | None,
    ) -> None:
        self._model, self._stops, self._heads, self._wraps = model, stops, heads, wraps
        self._known: dict[str, Linear | None] = {}
        self.casts: list[tuple[onnx.NodeProto, Linear]] = []
        self.frontier = self._find(result)

    def _find(self, result: str) -> dict[str, Linear]:
        """The linear values that something not linear reads (or the result itself), all of one form."""
        if (whole := self.of(result)) is not None:
            return {result: whole}
        found: dict[str, Linear] = {}
        for value in self._model.back(result, self._stops | set(self._heads)):
            node = self._model.producer.get(value)
            if node is None or self.of(value) is not None:
                continue
            for read in node.input:
                form = self.of(read) if read and not self._model.is_constant(read) else None
                if form is not None:
                    found[read] = form
        expect(bool(found), result, "no sum of products leads to it")
        first = next(iter(found.values()))
        expect(all(first.same(f) for f in found.values()), result, "it is made of several different sums")
        expect(set(first.factors) == set(self._heads), result, "not all of its products are in its sum")
        return found

    def of(self, value: str) -> Linear | None:
        """Return a value as a linear one, or None where it is not."""
        if value not in self._known:
            self._known[value] = self._of(value)
        return self._known[value]

    def _of(self, value: str) -> Linear | None:
        if value in self._heads:
            return Linear({value: np.asarray(1, np.int64)}, np.zeros((), np.int64), self._heads[value])
        node = self._model.producer.get(value)
        if value in self._stops or node is None or not is_elementwise(node):
            return None
        if node.op_type == "Cast":
            return self._cast(node)
        if node.op_type not in ("Add", "Sub", "Mul") or len(node.input) != 2:
            return None
        a, b = (self._constant(i) if self._model.is_constant(i) else self.of(i) for i in node.input)
        if a is None or b is None:
            return None
        whole = {*a.factors, *b.factors} == set(self._heads)
        if node.op_type == "Mul" and whole:  # what multiplies the whole sum narrows it
            return None
        self._model.see(node)
        if node.op_type == "Mul":
            return _product(a, b)
        return _sum(a, b, -1 if node.op_type == "Sub" else 1)

    def _cast(self, node: onnx.NodeProto) -> Linear | None:
        inner, kind = self.of(node.input[0]), target(node)
        if inner is None or kind not in (np.int32, np.int64, np.float64):
            return None  # a cast to float32 rounds, which is part of narrowing
        if kind == self._wraps and kind.itemsize < inner.dtype.itemsize:
            return None
        self._model.see(node)
        found = Linear(inner.factors, inner.constant, kind)
        self.casts.append((node, found))
        return found

    def _constant(self, value: str) -> Linear | None:
        array = self._model.constant(value)
        whole = np.asarray(array, np.float64)
        if not np.all(np.isfinite(whole)) or np.any(whole != np.rint(whole)) or np.any(np.abs(whole) >= 2.0**53):
            return None
        flat = array.reshape(()) if array.size == 1 else array.reshape(-1)
        return Linear({}, flat.astype(np.int64), array.dtype)


def _sum(a: Linear, b: Linear, sign: int) -> Linear | None:
    factors = dict(a.factors)
    for name, factor in b.factors.items():
        factors[name] = np.asarray(factors.get(name, np.int64(0)) + sign * factor)
    try:
        return Linear(factors, np.asarray(a.constant + sign * b.constant), a.dtype)
    except ValueError:
        raise Wrong("model.onnx", "numbers per channel of different lengths are added") from None


def _product(a: Linear, b: Linear) -> Linear | None:
    if a.factors and b.factors:
        return None
    one, number = (b, a.constant) if not a.factors else (a, b.constant)
    if not one.factors:
        return None
    factors = {n: np.asarray(f * number) for n, f in one.factors.items()}
    return Linear(factors, np.asarray(one.constant * number), one.dtype)
