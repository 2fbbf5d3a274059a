"""Tables of functions, entry by entry against the function's own definition, computed in float64.

The float op that filled a table computes in float32; so where the exact result lies within a few float32 steps of the
boundary between two integers, either of them is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.verify.files import Wrong, expect

Array = NDArray[Any]
Attributes = Mapping[str, Any]
SLACK = 2.0**-19
"""Relative error of a float32 function that is put up with (sixteen steps of its last bit)."""
SINGLE = 2.0**-22
"""Error of a float32 sum, relative to the largest of its terms (two steps of its last bit)."""


def expect_table(table: Array, function: Mapping[str, Any], data: tuple[Array, float], out: tuple[float, int, int, int],
                 *, where: str) -> None:  # fmt: skip
    """Check that a table holds the function of each code.

    `table`: the entries, `[rows, codes]`. `data`: q - z of each code, and its scale. `out`: scale, zero point, minimum
    and maximum entry.
    """
    scale, zero, low, high = out
    real = (data[0].astype(np.float32) * np.float32(data[1])).astype(np.float64)
    exact = value_of(function, real, len(table))
    defined = np.isfinite(exact) | np.isinf(exact)
    steps = np.where(defined, exact, 0.0) / float(np.float32(scale))
    terms = TERMS[str(function["op"])](real, function["attributes"]) if str(function["op"]) in TERMS else 0.0
    slack = SLACK * (1.0 + np.abs(steps)) + SINGLE * terms / float(np.float32(scale))
    least, most = (np.clip(np.rint(steps + s * slack) + zero, low, high) for s in (-1, 1))
    wrong = np.argwhere((table < least) | (table > most))
    if len(wrong):
        row, code = wrong[0]
        raise Wrong(where, f"the table's entry {code} of row {row} is {table[row, code]}, {function['op']} gives "
                    f"{least[row, code]:.0f}")  # fmt: skip


def value_of(function: Mapping[str, Any], real: Array, rows: int) -> Array:
    """Return the values of a function, in float64.

    `real`: the arguments, `[codes]`. Returns `[rows, codes]`; NaN where the function has no value.
    """
    name = str(function["op"])
    expect(name in FUNCTIONS, "certificate.json", f"the function {name} has no definition here")
    parameters = [np.asarray(p, np.float64).reshape(-1, 1) for p in function["parameters"]]
    with np.errstate(all="ignore"):
        found = FUNCTIONS[name](real.reshape(1, -1), function["attributes"], parameters)
    return np.asarray(np.broadcast_to(found, (rows, real.size)), np.float64)


def _each(function: Callable[[float], float]) -> Callable[..., Array]:
    return lambda x, a, p: np.vectorize(function, otypes=[np.float64])(x)


def _gelu(x: Array, a: Attributes, p: Sequence[Array]) -> Array:
    if a.get("approximate", "none") == "tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    return np.asarray(0.5 * x * np.vectorize(lambda v: 1 + math.erf(v / math.sqrt(2)))(x))


def _selu(x: Array, a: Attributes, p: Sequence[Array]) -> Array:
    alpha, gamma = a.get("alpha", 1.6732632423543772), a.get("gamma", 1.0507009873554805)
    return np.asarray(gamma * np.where(x > 0, x, alpha * np.expm1(x)))


FUNCTIONS: Mapping[str, Callable[[Array, Attributes, Sequence[Array]], Array]] = {
    "Sigmoid": lambda x, a, p: 1 / (1 + np.exp(-x)),
    "Tanh": lambda x, a, p: np.tanh(x),
    "HardSwish": lambda x, a, p: x * np.clip(x / 6 + 0.5, 0, 1),
    "HardSigmoid": lambda x, a, p: np.clip(a.get("alpha", 0.2) * x + a.get("beta", 0.5), 0, 1),
    "Softplus": lambda x, a, p: np.logaddexp(x, 0),
    "Softsign": lambda x, a, p: x / (1 + np.abs(x)),
    "Mish": lambda x, a, p: x * np.tanh(np.logaddexp(x, 0)),
    "Gelu": _gelu,
    "Swish": lambda x, a, p: x / (1 + np.exp(-a.get("alpha", 1.0) * x)),
    "Selu": _selu,
    "Elu": lambda x, a, p: np.where(x > 0, x, a.get("alpha", 1.0) * np.expm1(x)),
    "Celu": lambda x, a, p: np.maximum(x, 0) + np.minimum(0, a.get("alpha", 1.0) * np.expm1(x / a.get("alpha", 1.0))),
    "LeakyRelu": lambda x, a, p: np.where(x >= 0, x, a.get("alpha", 0.01) * x),
    "PRelu": lambda x, a, p: np.where(x >= 0, x, p[0] * x),
    "ThresholdedRelu": lambda x, a, p: np.where(x > a.get("alpha", 1.0), x, 0.0),
    "Erf": _each(math.erf),
    "Exp": lambda x, a, p: np.exp(x),
    "Log": lambda x, a, p: np.log(x),
    "Sqrt": lambda x, a, p: np.sqrt(x),
    "Reciprocal": lambda x, a, p: 1 / x,
    "Pow": lambda x, a, p: np.power(x, p[0]),
    "Abs": lambda x, a, p: np.abs(x),
    "Neg": lambda x, a, p: -x,
    "Sign": lambda x, a, p: np.sign(x),
    "Floor": lambda x, a, p: np.floor(x),
    "Ceil": lambda x, a, p: np.ceil(x),
    "Round": lambda x, a, p: np.rint(x),
    "Sin": lambda x, a, p: np.sin(x),
    "Cos": lambda x, a, p: np.cos(x),
}

TERMS: Mapping[str, Callable[[Array, Attributes], Array]] = {
    "HardSigmoid": lambda x, a: np.minimum(np.abs(a.get("alpha", 0.2) * x), 1) + abs(a.get("beta", 0.5)),
    "HardSwish": lambda x, a: np.minimum(np.abs(x), 3),
    "Sigmoid": lambda x, a: np.ones_like(x),  # runtimes compute a half plus an odd function
    "Swish": lambda x, a: np.minimum(np.abs(x), 32),
    "Mish": lambda x, a: np.minimum(np.abs(x), 32),
    "Gelu": lambda x, a: np.minimum(np.abs(x), 8),
    "Elu": lambda x, a: np.abs(a.get("alpha", 1.0)) * (x < 0),
    "Celu": lambda x, a: np.abs(a.get("alpha", 1.0)) * (x < 0),
    "Selu": lambda x, a: 2.0 * (x < 0),
}
"""How large the terms are that nearly cancel where a result is small, by op."""
