"""The functions that gates and states go through, by the names that ONNX gives them, and the ops that compute them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from quantpipe.intake.rewrites.recurrent.writer import StepWriter


@dataclass(frozen=True)
class Function:
    """Name a function and its numbers; None where it has no such number."""

    name: str
    alpha: float | None = None
    beta: float | None = None

    def written(self, writer: StepWriter, value: ir.Value, name: str) -> ir.Value:
        """Write the function of a value."""
        op = OPS.get(self.name)
        if op is not None:
            numbers = dict(zip(op.numbers, (self.alpha, self.beta), strict=False))
            return writer.op(op.name, value, name=name, **numbers)
        inner, outer = (self.beta, self.alpha) if self.name == "ScaledTanh" else (self.alpha, self.beta)
        scale = writer.constant(f"{name.rpartition('/')[2]}_inner", np.asarray(inner, np.float32))
        shift = writer.constant(f"{name.rpartition('/')[2]}_outer", np.asarray(outer, np.float32))
        scaled = writer.op("Mul", value, scale, name=f"{name}_scaled")
        if self.name == "Affine":
            return writer.op("Add", scaled, shift, name=name)
        return writer.op("Mul", writer.op("Tanh", scaled, name=f"{name}_tanh"), shift, name=name)


@dataclass(frozen=True)
class _Op:
    name: str
    numbers: tuple[str, ...] = ()


OPS: Mapping[str, _Op] = {
    "Relu": _Op("Relu"),
    "Tanh": _Op("Tanh"),
    "Sigmoid": _Op("Sigmoid"),
    "Softsign": _Op("Softsign"),
    "Softplus": _Op("Softplus"),
    "LeakyRelu": _Op("LeakyRelu", ("alpha",)),
    "ThresholdedRelu": _Op("ThresholdedRelu", ("alpha",)),
    "Elu": _Op("Elu", ("alpha",)),
    "HardSigmoid": _Op("HardSigmoid", ("alpha", "beta")),
}
"""Function -> the op of the same meaning. ScaledTanh is alpha·tanh(beta·x), Affine alpha·x + beta."""

NUMBERS: Mapping[str, tuple[float | None, float | None]] = {
    "LeakyRelu": (0.01, None),
    "ThresholdedRelu": (1.0, None),
    "Elu": (1.0, None),
    "HardSigmoid": (0.2, 0.5),
    "ScaledTanh": (1.0, 1.0),
    "Affine": (1.0, 0.0),
}
"""Function -> what its alpha and beta are where a node gives none; None: it has no such number."""


def functions_of(names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]) -> tuple[Function, ...] | None:
    """Return the functions of a layer in order; None if one is unknown.

    `alphas` and `betas` belong, in order, to the functions that have them; missing ones have the default.
    """
    known = {name.lower(): name for name in (*OPS, *NUMBERS)}
    given: tuple[Iterator[float], Iterator[float]] = (iter(alphas), iter(betas))
    found = []
    for name in names:
        own = known.get(name.lower())
        if own is None:
            return None
        defaults = NUMBERS.get(own, (None, None))
        numbers: list[Any] = [None if d is None else next(g, d) for g, d in zip(given, defaults, strict=True)]
        found.append(Function(own, *numbers))
    return tuple(found)
