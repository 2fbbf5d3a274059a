"""Fixed-point requantization and addition as both the simulated and the realized graph write them, in int64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from quantpipe.lowering import fragments as fr
from quantpipe.lowering.context import Context
from quantpipe.lowering.integers import IntegerWriter
from quantpipe.types import FixedPoint, FixedRounding, Requantize, Sum


def multiplied(
    context: Context, writer: IntegerWriter, r: Requantize, acc: ir.Value, *, layout: str, name: str
) -> ir.Value:
    """Write an int64 accumulator times its fixed-point multiplier, in int64.

    The multiplier follows the channels of the tensor `layout`; node names begin with `name`.
    """
    assert r.fixed is not None  # noqa: S101  (the planner fills it for this kind; narrows the type)
    return writer.times_fixed_point(acc, _along(context, r.fixed, layout), FixedRounding(r.rounding), name)


def fixed_sum(context: Context, writer: IntegerWriter, node: str, plan: Sum, *, values: Sequence[ir.Value]) -> ir.Value:
    """Write the sum of operands (q - z or accumulators, int64), each shifted left and brought to the common scale."""
    assert plan.output is not None  # noqa: S101
    b, terms = writer.builder, []
    for number, (term, value) in enumerate(zip(plan.terms, values, strict=True)):
        assert term.fixed is not None  # noqa: S101
        name = f"{node}/term{number}"
        if term.shift:
            value = b.op("Mul", value, writer.constants(f"{name}/up", np.int64(1 << term.shift)), name=f"{name}/up")
        fixed = _along(context, term.fixed, term.tensor)
        scaled = writer.times_fixed_point(value, fixed, FixedRounding(plan.output.rounding), name)
        terms.append(fr.signed(context, plan, number, scaled))
    total = b.op("Add", *terms, name=node, output=f"{node}/sum")
    return writer.saturate(total, f"{node}/sum")


def _along(context: Context, fixed: FixedPoint, tensor: str) -> FixedPoint:
    """Return numbers per channel shaped to broadcast against a tensor."""
    graph = context.graph
    multiplier, shift = (fr.along_channels(part, graph, tensor) for part in (fixed.multiplier, fixed.shift))
    return FixedPoint(multiplier, shift, fixed.bits)
