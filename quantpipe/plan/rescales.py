"""Operands that are brought to another scale on their way into an op that keeps scales."""

from __future__ import annotations

from quantpipe.errors import HardwareError
from quantpipe.plan.builder import PlanBuilder
from quantpipe.types import (
    Kernel,
    RescaleRow,
)


def rescales_of(builder: PlanBuilder, kernel: Kernel) -> list[RescaleRow]:
    """Return one entry per rescaled operand, for the report.

    Raises HardwareError where the device cannot do it in one step.
    """
    found: list[RescaleRow] = []
    how = builder.narrowing(kernel)
    for operand in kernel.operands:
        if not operand.rescaled:
            continue
        if not how.is_kernel_arithmetic:
            raise HardwareError(
                f"both {operand.tensor!r} and {kernel.output!r} have given scales, and {builder.spec.name} has no "
                "multiplier to convert between them (float32, ties to even). Free one scale, or give both the same",
                stage="plan",
                where=kernel.node,
            )
        source, target = builder.quantizers[operand.tensor], builder.quantizers[kernel.output]
        row: RescaleRow = {
            "node": kernel.node,
            "tensor": operand.tensor,
            "from": float(source.scale),
            "to": float(target.scale),
        }
        found.append(row)
    return found
