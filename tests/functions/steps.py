"""Integer programs step by step, in Python's own integers and NumPy: the oracle of what graphs make of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quantpipe.types import Program, Step

Array = np.ndarray[Any, Any]


def run_program(program: Program, operands: list[Array]) -> Array:
    """The last value of a program; every value must lie within the bounds that its step states."""
    values = [np.asarray(o).astype(object) for o in operands]
    for step in program.steps:
        found = _STEPS[step.op](step, [values[i] for i in step.operands])
        assert found.min() >= step.low and found.max() <= step.high, (program.node, step.op, step.low, step.high)
        values.append(found)
    return values[-1].astype(np.int64)


def _second(step: Step, given: list[Array]) -> Array:
    return given[1] if len(given) > 1 else np.asarray(step.numbers).astype(object)


def _div(a: int, b: int) -> int:
    assert b > 0
    return abs(a) // b * (1 if a >= 0 else -1)


def _shift(step: Step, given: list[Array]) -> Array:
    (a,), n, mode = given, int(np.asarray(step.numbers)), str(step.rounding)
    assert mode in ("half_up", "floor")
    half = (1 << n) >> 1 if mode == "half_up" else 0
    return np.asarray((a + half) >> n if n else a, object)


def _each(function: Any) -> Any:
    return np.frompyfunc(function, function.__code__.co_argcount, 1)


_STEPS: dict[str, Any] = {
    "constant": lambda s, v: np.asarray(s.numbers).astype(object),
    "add": lambda s, v: v[0] + _second(s, v),
    "sub": lambda s, v: v[0] - _second(s, v),
    "mul": lambda s, v: v[0] * _second(s, v),
    "div": lambda s, v: _each(_div)(v[0], _second(s, v)),
    "shift": _shift,
    "shift_right": lambda s, v: _each(lambda a, n: (a + ((1 << n) >> 1)) >> n)(v[0], _second(s, v)),
    "shift_left": lambda s, v: _each(lambda a, n: a << n)(v[0], _second(s, v)),
    "table": lambda s, v: np.asarray(s.numbers)[v[0].astype(np.int64)].astype(object),
    "clip": lambda s, v: np.clip(v[0], *(int(n) for n in s.numbers)),
    "max_over": lambda s, v: v[0].max(axis=s.axes, keepdims=True),
    "sum_over": lambda s, v: v[0].sum(axis=s.axes, keepdims=True),
    "matmul": lambda s, v: (
        v[0] @ s.numbers
        if s.axes == (-1,)
        else np.moveaxis(np.moveaxis(v[0], s.axes[0], -1) @ s.numbers.T, -1, s.axes[0])
    ),
    "squeeze": lambda s, v: np.squeeze(v[0], axis=s.axes),
    "bits": lambda s, v: _each(lambda a: int(a).bit_length())(v[0]),
    "sqrt": lambda s, v: _each(lambda a: math.isqrt(a))(v[0]),
}
