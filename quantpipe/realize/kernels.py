"""Which nodes onnxruntime has no kernel of their own for: a realized model then says in several ops what the device
does in one. Listed in the report, so that nobody takes its latency here for the device's.

Takes a plan and the name of an output form; adds no number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quantpipe.rendering import fragments as fr
from quantpipe.types import Accumulate, Kernel, QuantPlan, Requantize, Sum, Topology

INTEGER = "integer"


def without_kernel(topology: Topology, plan: QuantPlan, form: str) -> list[dict[str, Any]]:
    """`node`, `op` and `reasons` of each kernel that is written in several ops, in graph order."""
    found = []
    for kernel in topology.kernels:
        reasons = [*_storage(plan, kernel), *_sums(plan, kernel, form), *_narrowing(plan, kernel, form)]
        if reasons:
            found.append({"node": kernel.node, "op": kernel.op, "reasons": reasons})
    return found


def _storage(plan: QuantPlan, kernel: Kernel) -> Iterator[str]:
    """Types that no kernel reads."""
    names = [*(o.tensor for o in kernel.operands), kernel.output]
    long = sorted({str(plan.quantizers[t].dtype) for t in names if t in plan.quantizers and _long(plan, t)})
    if long:
        yield f"{', '.join(long)} tensors: products are made of bytes, all else of casts"
    if kernel.weight is None:
        return
    weight = plan.weights[kernel.weight]
    if weight.dtype.bits > 8:
        yield f"{weight.dtype} weights: products are made of bytes"
    if weight.dtype.bits < 8:
        yield f"{weight.dtype} weights: cast to a byte each at load"


def _long(plan: QuantPlan, tensor: str) -> bool:
    return plan.quantizers[tensor].dtype.bits > 8


def _sums(plan: QuantPlan, kernel: Kernel, form: str) -> Iterator[str]:
    """Accumulators that no kernel has."""
    numbers = plan.kernels[kernel.node]
    if kernel.op in fr.TRANSPOSED:
        yield "no integer kernel of the op: carried by float32 on whole numbers"
    if isinstance(numbers, Accumulate | Sum) and numbers.limit is not None:
        yield f"an {numbers.limit.dtype} accumulator that may {numbers.limit.overflow}: written out behind wider sums"
    if not isinstance(numbers, Accumulate) or form != INTEGER:
        return
    weight = plan.weights[numbers.weight]
    if numbers.pairs is not None:
        yield "pairs of products that saturate: computed by themselves and taken off the sum"
    if weight.zero_point.size > 1 and weight.has_zero_point and weight.values.ndim > 2:
        yield "a zero point of each channel: taken off by a second sum"


def _narrowing(plan: QuantPlan, kernel: Kernel, form: str) -> Iterator[str]:
    """Requantization that is no float32 product with halves to even."""
    output = getattr(plan.kernels[kernel.node], "output", None)
    if form == INTEGER and isinstance(output, Requantize) and not output.is_kernel_arithmetic:
        yield f"requantized by {output.kind}, {output.rounding}: written in integer arithmetic"
