"""Ranges that are known before calibration: those a user gives, and those that an op's function has."""

from __future__ import annotations

from collections.abc import Mapping

from quantpipe.annotate.constraints import WHERE, Constraint, ConstraintKind
from quantpipe.annotate.fixed_range import FixedRange
from quantpipe.annotate.function_ranges import FunctionPins, exact_range
from quantpipe.annotate.given import fitted_range
from quantpipe.errors import ConfigError
from quantpipe.graph.view import Graph
from quantpipe.types import DType, HardwareSpec, Range, Schema


def pins_of(
    graph: Graph,
    functions: FunctionPins,
    dtypes: Mapping[str, DType],
    constraints: Mapping[str, Constraint],
    *,
    spec: HardwareSpec,
    schema: Schema,
) -> dict[str, FixedRange]:
    """Return the pin of each stored tensor whose range is known before calibration.

    What a user states comes before what the model gives that was quantized already, and that before an op's function.

    `functions`: the pins of results of functions. `constraints`: what the user states, by tensor. Returns stored tensor
    -> its pin. Raises ConfigError for a uniform constraint that the stored type or schema cannot express.
    """
    found = {**functions.usual, **functions.formed}
    for tensor, dtype in dtypes.items():
        constraint = constraints.get(tensor)
        given = graph.imported.kept_tensors.get(tensor) if graph.imported is not None else None
        if given is not None and constraint is None and tensor not in functions.formed:
            found[tensor], _ = fitted_range(given.grid, dtype, schema, spec.activations.bits)
        if constraint is not None and constraint.kind is ConstraintKind.CALIBRATED:
            found[tensor] = FixedRange(Range(constraint.low, constraint.high), None, WHERE)
        elif constraint is not None and constraint.kind is ConstraintKind.UNIFORM:
            found[tensor] = _uniform(tensor, constraint, dtype, schema)
    return found


def _uniform(tensor: str, constraint: Constraint, dtype: DType, schema: Schema) -> FixedRange:
    if len(constraint.scales) > 1 or len(constraint.zeros) > 1:
        raise ConfigError(
            f"{tensor!r} is given {len(constraint.scales)} scales; an activation has one on every device here, and "
            "weights alone may have one per channel",
            where=WHERE,
        )
    if constraint.dtype is not dtype:
        raise ConfigError(f"{tensor!r} is stored as {dtype} on this hardware, not as {constraint.dtype}", where=WHERE)
    return exact_range(tensor, (constraint.scales[0], constraint.zeros[0]), dtype, schema, where=WHERE)
