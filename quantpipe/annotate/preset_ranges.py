"""Ranges that are known before calibration: those a user gives, and those that an op's function has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from quantpipe import intmath
from quantpipe.annotate.constraints import WHERE, Constraint, ConstraintKind
from quantpipe.annotate.fixed_range import FUNCTION, SCALE, FixedRange
from quantpipe.annotate.given import fitted_range
from quantpipe.errors import ConfigError
from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import Family, rule_of
from quantpipe.oprules.positions import sines_of
from quantpipe.types import Denominator, DType, FunctionKind, HardwareSpec, Kernel, Range, Schema, Symmetry


def pins_of(
    graph: Graph,
    kernels: Sequence[Kernel],
    dtypes: Mapping[str, DType],
    constraints: Mapping[str, Constraint],
    *,
    spec: HardwareSpec,
    schema: Schema,
    fixed_outputs: bool,
) -> dict[str, FixedRange]:
    """Return the pin of each stored tensor whose range is known before calibration.

    What a user states comes before what the model gives that was quantized already, and that before an op's function.

    `constraints`: what the user states, by tensor. `spec`: the device, whose own forms of functions have fixed ranges.
    Returns stored tensor -> its pin. Raises ConfigError for a uniform constraint that the stored type or schema cannot
    express.
    """
    found: dict[str, FixedRange] = {}
    kernel_of = {k.node: k for k in kernels}
    sines = {name for name in sines_of(graph) if name not in kernel_of}
    for tensor, dtype in dtypes.items():
        producer = graph.producers.get(tensor)
        rule = rule_of(producer) if producer is not None else None
        formed = False
        if producer is not None and rule is not None and rule.fixed is not None:
            formed = kernel_of.get(producer.name) is not None and has_own_range(spec, producer, rule.family)
            if fixed_outputs or formed:
                found[tensor] = _fixed(rule.fixed, min(dtype.bits, spec.activations.bits), dtype, schema)
        if producer is not None and producer.name in sines:
            found[tensor] = FixedRange(Range(-1.0, 1.0), None, FUNCTION)
        own = _of_device(spec, producer, dtype, schema) if producer is not None and producer.name in kernel_of else None
        if own is not None:
            found[tensor], formed = own, True
        constraint = constraints.get(tensor)
        given = graph.imported.kept_tensors.get(tensor) if graph.imported is not None else None
        if given is not None and constraint is None and not formed:
            found[tensor], _ = fitted_range(given.grid, dtype, schema, spec.activations.bits)
        if constraint is not None and constraint.kind is ConstraintKind.CALIBRATED:
            found[tensor] = FixedRange(Range(constraint.low, constraint.high), None, WHERE)
        elif constraint is not None and constraint.kind is ConstraintKind.UNIFORM:
            found[tensor] = _uniform(tensor, constraint, dtype, schema)
    return found


def has_own_range(spec: HardwareSpec, node: Node, family: Family) -> bool:
    """Return whether the device forms the node with a result of one scale, whatever the samples are."""
    kinds = {spec.function_of(s, node.op) for s in spec.signatures_of(node.name, node.op)}
    return family is Family.ROWS or FunctionKind.TFLITE in kinds


def _of_device(spec: HardwareSpec, node: Node, dtype: DType, schema: Schema) -> FixedRange | None:
    """The scale and zero point that the device gives a node's result, whatever the samples are; None: it gives none."""
    for signature in spec.signatures_of(node.name, node.op):
        if signature.fixed_scale is not None and dtype in signature.outputs:
            return _exact(node.outputs[0], signature.fixed_scale, dtype, schema, where=SCALE)
    return None


def _fixed(limits: tuple[float, float], bits: int, dtype: DType, schema: Schema) -> FixedRange:
    """The usual fixed scale of a function, as TFLite's quantization specification has it.

    One step is 2^-b of its range, with 8 bits: Softmax, Sigmoid 1/256 (z = qmin), Tanh, LpNormalization 1/128 (z = 0),
    LogSoftmax 16/256 (z = qmax); the end of the range that is not 0 is one step out of reach. With 16 bits functions
    within [-1, 1] have 1/32768, z = 0. Symmetric storage has 2^(b-1) steps from 0 to the end of the range.
    """
    low, high = limits
    end, long = max(-low, high), bits == 16
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


def _uniform(tensor: str, constraint: Constraint, dtype: DType, schema: Schema) -> FixedRange:
    if len(constraint.scales) > 1 or len(constraint.zeros) > 1:
        raise ConfigError(
            f"{tensor!r} is given {len(constraint.scales)} scales; an activation has one on every device here, and "
            "weights alone may have one per channel",
            where=WHERE,
        )
    if constraint.dtype is not dtype:
        raise ConfigError(f"{tensor!r} is stored as {dtype} on this hardware, not as {constraint.dtype}", where=WHERE)
    return _exact(tensor, (constraint.scales[0], constraint.zeros[0]), dtype, schema, where=WHERE)


def _exact(tensor: str, grid: tuple[float, int], dtype: DType, schema: Schema, *, where: str) -> FixedRange:
    """The range from which this very scale and zero point follow."""
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
