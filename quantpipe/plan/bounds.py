"""How large sums can become, whatever the input, and what happens where an accumulator cannot hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.errors import HardwareError
from quantpipe.graph.external_weights import row_blocks
from quantpipe.plan.builder import PlanBuilder
from quantpipe.types import (
    Accumulator,
    BiasScale,
    HardwareSpec,
    Kernel,
    Limit,
    Overflow,
    Quantizer,
    Topology,
    WeightTensor,
)


def reach(topology: Topology, weight: WeightTensor, data: Quantizer) -> NDArray[np.int64]:
    """Return the largest |Σ (q_x - z_x)·(q_w - z_w)| per output channel, `[C]`, for any input."""
    channel_axis = topology.weight_of[weight.tensor].channel_axis
    others = tuple(a for a in range(weight.values.ndim) if a != channel_axis)
    blocks = (_sizes(weight.centred(rows)).sum(axis=others, dtype=np.int64) for rows in row_blocks(weight.values))
    per_channel = np.concatenate(list(blocks)) if channel_axis == 0 else sum(blocks)
    return np.asarray(per_channel * max(abs(data.low), abs(data.high)), np.int64)


def _sizes(values: NDArray[Any]) -> NDArray[Any]:
    """|v| in the next wider type: that of the smallest value has no room in its own."""
    wider = np.promote_types(values.dtype, f"i{min(2 * values.dtype.itemsize, 8)}")
    return np.asarray(np.abs(values, dtype=wider))


def bias_room(spec: HardwareSpec, accumulator: Accumulator, reached: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how large a bias may be, in accumulator steps, `[C]`.

    The limit is what its type holds and what the sums leave of the accumulator. Where the products alone can overflow
    the accumulator, the type decides.

    `reached`: largest |Σ products| per output channel, `[C]`, as `reach` gives it.
    """
    left = accumulator.qmax - reached.astype(np.float64)
    room = spec.bias.qmax if spec.bias_scale is BiasScale.PRODUCT else accumulator.qmax
    most = float(min(room, accumulator.qmax))
    return np.where(left > 0, np.minimum(left, most), most)


def limit_of(builder: PlanBuilder, kernel: Kernel, bound: int) -> Limit | None:
    """Return what happens to sums of up to `bound`; None where the accumulator holds them all.

    Raises HardwareError where they can overflow and the device says `never`.
    """
    accumulator = builder.accumulator(kernel)
    if bound <= accumulator.qmax:
        return None
    if accumulator.overflow is Overflow.NEVER:
        raise HardwareError(
            f"its sums may reach {bound}, and the {accumulator.label} accumulator holds {accumulator.qmax}. Give its "
            f"inputs or weights fewer bits, keep it in float with annotate.float_nodes,{_wider(kernel, accumulator)} "
            "or set hardware.accumulator.overflow (wrap or saturate) if the device allows such sums",
            stage="plan",
            where=kernel.node,
        )
    return Limit(accumulator.dtype, accumulator.overflow, accumulator.bits)


def _wider(kernel: Kernel, accumulator: Accumulator) -> str:
    """Return the remedy of an op whose own accumulator is wider than the device's default; empty above 31 bits."""
    if accumulator.width >= 32:
        return ""
    return f" declare `accumulator: int32` on the op {kernel.op} if the device adds its sums in 32 bits,"


def refuse_overflow(builder: PlanBuilder, kernel: Kernel, bound: int) -> None:
    """Reject averages and products that their accumulator cannot hold, by HardwareError.

    They are not simulated, so no such plan leaves this package.
    """
    accumulator = builder.accumulator(kernel)
    if bound > accumulator.qmax:
        raise HardwareError(
            f"its sums may reach {bound}, the {accumulator.label} accumulator holds {accumulator.qmax}; give its "
            f"inputs fewer bits,{_wider(kernel, accumulator)} or keep it in float with annotate.float_nodes",
            stage="plan",
            where=kernel.node,
        )


def bounded(bound: int, limit: Limit | None) -> int:
    """Return the bound of what the accumulator passes on."""
    return bound if limit is None else min(bound, -limit.qmin)
