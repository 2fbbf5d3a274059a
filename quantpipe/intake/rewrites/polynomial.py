"""Values that are polynomials of another one, in whatever order an exporter wrote their products and sums."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from quantpipe.graph.edit import CLOSE, constant, is_op, rank

Polynomial = dict[int, float]
"""Coefficient of each power."""

DEEPEST = 6
"""Nodes between a value and what it is a polynomial of; the tanh form of Gelu has five."""
HIGHEST = 4


def argument(value: ir.Value | None, wanted: Mapping[int, float]) -> ir.Value | None:
    """Return the tensor x where a value is the wanted polynomial of x."""
    return next((x for x in _above(value, DEEPEST) if _same(_polynomial(value, x, DEEPEST), wanted)), None)


def _same(found: Polynomial | None, wanted: Mapping[int, float]) -> bool:
    if found is None or found.keys() != wanted.keys():
        return False
    return all(math.isclose(found[power], wanted[power], rel_tol=CLOSE) for power in wanted)


def _above(value: ir.Value | None, deep: int) -> Iterator[ir.Value]:
    """Yield the tensors from which arithmetic computes a value, each once, the nearest first."""
    row, seen = [value], set[int]()
    for _ in range(deep + 1):
        following: list[ir.Value | None] = []
        for one in row:
            if one is None or id(one) in seen or constant(one) is not None:
                continue
            seen.add(id(one))
            yield one
            node = one.producer()
            following += (
                node.inputs if node is not None and is_op(node, "Add", "Sub", "Mul", "Div", "Pow", "Neg") else ()
            )
        row = following


def _polynomial(value: ir.Value | None, of: ir.Value, deep: int) -> Polynomial | None:
    """Return the polynomial of `of` that a value is; None where something else goes into it."""
    if value is of:
        return {1: 1.0}
    number = _number(value, of)
    if number is not None:
        return {0: number} if number else {}
    node = value.producer() if value is not None else None
    if node is None or deep == 0:
        return None
    if is_op(node, "Pow"):
        return _power(_polynomial(node.inputs[0], of, deep - 1), _number(node.inputs[1], of))
    if is_op(node, "Neg"):
        return _product(_polynomial(node.inputs[0], of, deep - 1), {0: -1.0})
    if not is_op(node, "Add", "Sub", "Mul", "Div"):
        return None
    first, second = (_polynomial(v, of, deep - 1) for v in node.inputs)
    if is_op(node, "Add", "Sub"):
        return _sum(first, second, 1.0 if node.op_type == "Add" else -1.0)
    if is_op(node, "Div"):
        second = {0: 1.0 / second[0]} if second is not None and second.keys() == {0} else None
    return _product(first, second)


def _number(value: ir.Value | None, of: ir.Value) -> float | None:
    """Return a constant with one element that does not add axes to what it meets."""
    array = constant(value)
    if array is None or array.size != 1 or array.dtype.kind not in "fi" or array.ndim > (rank(of) or 0):
        return None
    return float(array.reshape(()))


def _sum(first: Polynomial | None, second: Polynomial | None, sign: float) -> Polynomial | None:
    if first is None or second is None:
        return None
    total = {p: first.get(p, 0.0) + sign * second.get(p, 0.0) for p in first.keys() | second.keys()}
    return {p: c for p, c in total.items() if c}


def _product(first: Polynomial | None, second: Polynomial | None) -> Polynomial | None:
    if first is None or second is None:
        return None
    result: Polynomial = {}
    for p, a in first.items():
        for q, b in second.items():
            result[p + q] = result.get(p + q, 0.0) + a * b
    return result if max(result, default=0) <= HIGHEST else None


def _power(base: Polynomial | None, exponent: float | None) -> Polynomial | None:
    if exponent is None or exponent not in (1.0, 2.0, 3.0):
        return None
    result = base
    for _ in range(int(exponent) - 1):
        result = _product(result, base)
    return result
