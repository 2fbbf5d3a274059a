"""Ranges that are known before calibration: those a user gives, and those that an op's function has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quantpipe import intmath
from quantpipe.annotate.constraints import WHERE, Constraint, Kind
from quantpipe.errors import ConfigError
from quantpipe.graph.view import Graph
from quantpipe.oprules import rule_of
from quantpipe.types import DType, Kernel, Range, Schema


@dataclass(frozen=True)
class Pin:
    """A range that is not up to calibration; with `bits` the number of bits is settled, too."""

    range: Range
    bits: int | None
    reason: str

    def agrees(self, other: Pin) -> bool:
        """Whether both can hold at once."""
        return self.range == other.range and (self.bits == other.bits or None in (self.bits, other.bits))


def pins_of(
    graph: Graph,
    kernels: Sequence[Kernel],
    dtypes: Mapping[str, DType],
    constraints: Mapping[str, Constraint],
    schema: Schema,
    fixed_outputs: bool,
) -> dict[str, Pin]:
    """Stored tensor -> its pin. ConfigError for a uniform constraint that the stored type or schema cannot express."""
    found: dict[str, Pin] = {}
    for tensor, dtype in dtypes.items():
        producer = graph.producers.get(tensor)
        rule = rule_of(producer) if producer is not None else None
        if fixed_outputs and rule is not None and rule.fixed is not None:
            found[tensor] = _fixed(rule.fixed, dtype, schema)
        constraint = constraints.get(tensor)
        if constraint is not None and constraint.kind is Kind.CALIBRATED:
            found[tensor] = Pin(Range(constraint.low, constraint.high), None, WHERE)
        elif constraint is not None and constraint.kind is Kind.UNIFORM:
            found[tensor] = _uniform(tensor, constraint, dtype, schema)
    pinned = {t for t, c in constraints.items() if c.kind in (Kind.CALIBRATED, Kind.UNIFORM)}
    asked = {c.pattern for t, c in constraints.items() if t in pinned}
    reached = {constraints[t].pattern for t in pinned & set(dtypes)}
    for pattern in sorted(asked - reached):
        raise ConfigError(
            f"{pattern!r} names no tensor that is held in integers here: it is in float, inside a fused kernel, or an "
            "accumulator; constrain the tensor behind the fused clamp, or see float_nodes in the report",
            where=WHERE,
        )
    return found


def _fixed(limits: tuple[float, float], dtype: DType, schema: Schema) -> Pin:
    """The usual fixed scale of a function: 2^-b steps of its range, so that its upper end is one step out of reach."""
    low, high = limits
    steps = 1 << dtype.bits
    top = high - (high - low) / steps
    return Pin(Range(low, top), dtype.bits, "the op's function")


def _uniform(tensor: str, constraint: Constraint, dtype: DType, schema: Schema) -> Pin:
    if constraint.dtype is not dtype:
        raise ConfigError(f"{tensor!r} is stored as {dtype} on this hardware, not as {constraint.dtype}", where=WHERE)
    scale, zero = float(np.float32(constraint.scale)), constraint.zero_point
    found = Range((dtype.qmin - zero) * scale, (dtype.qmax - zero) * scale)
    made, made_zero, _, _ = intmath.scale_zero_point(found, dtype.bits, dtype, schema.activations)
    if float(made) != scale or made_zero != zero:
        top = (1 << (dtype.bits - 1)) * scale
        for limit in (top, top - scale):
            found = Range(-limit, limit)
            made, made_zero, _, _ = intmath.scale_zero_point(found, dtype.bits, dtype, schema.activations)
            if float(made) == scale and made_zero == zero:
                break
        else:
            raise ConfigError(
                f"{tensor!r} cannot have scale {scale} and zero point {zero} under the schema {schema.name} "
                f"({schema.activations.symmetry}); nearest is scale {float(made)} with zero point {made_zero}",
                where=WHERE,
            )
    return Pin(found, dtype.bits, WHERE)
