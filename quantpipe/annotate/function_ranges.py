"""Ranges that results have by the function of their op, whatever the samples are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from quantpipe import intmath
from quantpipe.annotate.fixed_range import FUNCTION, SCALE, FixedRange
from quantpipe.errors import ConfigError
from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import Family, OpRule, rule_of
from quantpipe.oprules.positions import sines_of
from quantpipe.types import Denominator, DType, FunctionKind, HardwareSpec, Kernel, Range, Schema, Symmetry


@dataclass(frozen=True)
class FunctionPins:
    """Hold pins of results of functions: `formed` are the device's own, `usual` those that nothing else overrides."""

    formed: dict[str, FixedRange] = field(default_factory=dict)
    usual: dict[str, FixedRange] = field(default_factory=dict)


def function_pins(
    graph: Graph,
    kernels: Sequence[Kernel],
    stored: Mapping[str, DType],
    *,
    spec: HardwareSpec,
    schema: Schema,
    fixed_outputs: bool,
) -> FunctionPins:
    """Return the pin of each stored tensor that a function of known range makes.

    `stored`: tensor -> the widest type that it may have; a pin has a range for each narrower one, too.
    `fixed_outputs`: whether functions have their usual range where the device does not ask for it.
    """
    found = FunctionPins()
    made = {k.node for k in kernels}
    sines = set(sines_of(graph)) - made
    for tensor, dtype in stored.items():
        node = graph.producers.get(tensor)
        rule = rule_of(node) if node is not None else None
        if node is None or rule is None:
            continue
        if node.name in sines:
            found.usual[tensor] = FixedRange(Range(-1.0, 1.0), None, FUNCTION)
        elif node.name in made and (pin := _formed(spec, node, rule, dtype=dtype, schema=schema)) is not None:
            found.formed[tensor] = pin
        elif fixed_outputs and rule.fixed is not None:
            types = _types(spec, node, dtype) if node.name in made else (dtype,)
            found.usual[tensor] = _joined([_fixed(rule.fixed, d, spec, schema) for d in types])
    return found


def has_own_range(spec: HardwareSpec, node: Node, family: Family) -> bool:
    """Return whether the device forms the node with a result of one scale, whatever the samples are."""
    kinds = {spec.function_of(s, node.op) for s in spec.signatures_of(node.name, node.op)}
    return family is Family.ROWS or FunctionKind.TFLITE in kinds


def _formed(spec: HardwareSpec, node: Node, rule: OpRule, *, dtype: DType, schema: Schema) -> FixedRange | None:
    """The pin that the device gives a result, in each type that it may have; None: it gives none."""
    types = _types(spec, node, dtype)
    exact = [_of_device(spec, node, d, schema) for d in types]
    usual = rule.fixed if has_own_range(spec, node, rule.family) or any(exact) else None
    pins = [e or (None if usual is None else _fixed(usual, d, spec, schema)) for e, d in zip(exact, types, strict=True)]
    given = [pin for pin in pins if pin is not None]
    return _joined(given) if given else None


def _joined(pins: Sequence[FixedRange]) -> FixedRange:
    """The pin of the widest type, which has the ranges of the others by their bits."""
    narrower = tuple((pin.bits, pin.range) for pin in pins[1:] if pin.bits is not None)
    return replace(pins[0], narrower=narrower)


def _types(spec: HardwareSpec, node: Node, widest: DType) -> tuple[DType, ...]:
    """The types that a node's result may have, of one sign and at most the device's bits, the widest first."""
    named = {d for s in spec.signatures_of(node.name, node.op) if s.is_integer for d in s.outputs}
    most = min(widest.bits, spec.activations.bits)
    alike = [d for d in named if not d.is_float and d.signed == widest.signed and d.bits <= most]
    return tuple(sorted(alike, key=lambda d: -d.bits)) or (widest,)


def _of_device(spec: HardwareSpec, node: Node, dtype: DType, schema: Schema) -> FixedRange | None:
    """The scale and zero point that the device gives a node's result, whatever the samples are; None: it gives none."""
    for signature in spec.signatures_of(node.name, node.op):
        if signature.fixed_scale is not None and dtype in signature.outputs:
            return exact_range(node.outputs[0], signature.fixed_scale, dtype, schema, where=SCALE)
    return None


def _fixed(limits: tuple[float, float], dtype: DType, spec: HardwareSpec, schema: Schema) -> FixedRange:
    """The usual fixed scale of a function, as TFLite's quantization specification has it.

    One step is 2^-b of its range, with 8 bits: Softmax, Sigmoid 1/256 (z = qmin), Tanh, LpNormalization 1/128 (z = 0),
    LogSoftmax 16/256 (z = qmax); the end of the range that is not 0 is one step out of reach. With 16 signed bits
    functions within [-1, 1] have 1/32768, z = 0. Symmetric storage has 2^(b-1) steps from 0 to the end of the range.
    """
    low, high = limits
    bits = min(dtype.bits, spec.activations.bits)
    end, long = max(-low, high), bits == 16 and dtype.signed
    how = schema.activations
    affine = how.symmetry is Symmetry.ASYMMETRIC or (how.symmetry is Symmetry.SYMMETRIC_UNSIGNED and low >= 0)
    if not affine:
        steps = 1 << (bits if low >= 0 and not dtype.signed else bits - 1)
        top = end if how.denominator is Denominator.RANGE else end * (steps - 1) / steps
        return FixedRange(Range(-top if low < 0 else 0.0, top), bits, FUNCTION)
    step = end / (1 << 15) if long and end <= 1 else (high - low) / (1 << bits)
    least = 0 if low >= 0 and (not dtype.signed or not long) else -(1 << (bits - 1))
    if high == 0:
        least = 1 - (1 << bits)
    # A divisor of 2^b wants the end that is out of reach.
    count = (1 << bits) - (how.denominator is Denominator.MAX)
    return FixedRange(Range(least * step, (least + count) * step), bits, FUNCTION)


def exact_range(tensor: str, grid: tuple[float, int], dtype: DType, schema: Schema, *, where: str) -> FixedRange:
    """Return the range from which this very scale and zero point follow.

    Raises ConfigError where none does.
    """
    scale, zero = float(np.float32(grid[0])), grid[1]
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
                where=where,
            )
    return FixedRange(found, dtype.bits, where)
