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

    Raises:
        HardwareError: where the device cannot do it in one step.
    """
    found: list[RescaleRow] = []
    how = builder.narrowing(kernel)
    for operand in kernel.operands:
        if not operand.rescaled:
            continue
        if not how.is_kernel_arithmetic:
            raise HardwareError(
                f"{operand.tensor!r} and {kernel.output!r} have scales that are both given, and "
                f"{builder.spec.name} has no multiplier to bring one to the other in float32, halves to even; "
                "free one of them, or give both one scale",
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
