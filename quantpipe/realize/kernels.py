"""List the nodes for which onnxruntime has no kernel of their own.

A realized model then says in several ops what the device does in one. The report lists them, so that nobody takes its
latency here for the device's. The inputs are a plan, the name of an output form and the model written in it; no number
is added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantpipe.graph.optimized import fused
from quantpipe.lowering import fragments as fr
from quantpipe.oprules import OP_RULES, Family
from quantpipe.types import (
    Accumulate,
    Device,
    Kernel,
    Lookup,
    Program,
    QuantPlan,
    Reason,
    ReasonKind,
    Requantize,
    Sum,
    Topology,
    WithoutKernelRow,
)

INTEGER = "integer"

IN_FLOAT = "computed in float32: {}"
ONE_BY_ONE = "zero points that differ from channel to channel: onnxruntime's depthwise kernel takes one for all of them"
SIGNED = "int8 activations: onnxruntime's kernels on x86 are made for uint8 ones"
"""Why a form that is meant to be fast is not."""

UNROUNDED = "a convolution is fused only if its result is quantized, and this result is float"
INT8 = "onnxruntime fuses it with the session option session.qdqisint8allowed=1 only"
UNFUSED = "onnxruntime fuses nothing of it between DequantizeLinear and QuantizeLinear"


@dataclass(frozen=True)
class WithoutKernel:
    """A kernel that is not run as one integer kernel, and why."""

    node: str
    op: str
    reasons: tuple[Reason, ...]

    def as_dict(self) -> WithoutKernelRow:
        """Return its entry in the report."""
        return {"node": self.node, "op": self.op, "reasons": [reason.text for reason in self.reasons]}


def without_kernel(topology: Topology, plan: QuantPlan, form: str, model: ir.Model) -> list[WithoutKernel]:
    """Return each kernel that is not run as one integer kernel, in graph order.

    For forms with onnxruntime's kernels, the model is loaded to find what onnxruntime leaves in float.
    """
    runs = _in_runtime(topology, plan, model) if form != INTEGER else {}
    found = []
    for kernel in topology.kernels:
        written = (*_storage(plan, kernel), *_sums(plan, kernel, form), *_narrowing(plan, kernel, form))
        reasons = [Reason(ReasonKind.WRITTEN_OUT, text) for text in written]
        reasons += [Reason(ReasonKind.SLOW, runs[kernel.node])] if kernel.node in runs else []
        if reasons:
            found.append(WithoutKernel(kernel.node, kernel.op, tuple(reasons)))
    return found


def slow_warning(lacking: Sequence[WithoutKernel]) -> str | None:
    """Return a warning where a form that is meant to be fast has products in no integer kernel, or in a slow one.

    The result is None if every node has a kernel.
    """
    products = [e for e in lacking if OP_RULES[e.op].family is Family.ACCUMULATE]
    slow = [(e, r) for e in products for r in e.reasons if r.kind is ReasonKind.SLOW]
    if not slow:
        return None
    causes: dict[str, list[str]] = {}
    for entry, reason in slow:
        causes.setdefault(reason.text, []).append(entry.node)
    said = "; ".join(f"{_listed(nodes)}: {reason}" for reason, nodes in causes.items())
    return (
        f"onnxruntime has no fast integer kernel here for {len(slow)} of the layers, so the realized model can be "
        f"slower than on the device, and slower than the float model: {said}. The report lists them under "
        "without_kernel"
    )


def _listed(nodes: Sequence[str]) -> str:
    more = len(nodes) - 1
    return nodes[0] + (f" and {more} other{'s' if more > 1 else ''}" if more else "")


def _in_runtime(topology: Topology, plan: QuantPlan, model: ir.Model) -> dict[str, str]:
    """Return the kernel nodes that onnxruntime computes in float or slowly, with the reason.

    Ops that have no integer kernel anywhere are listed already.
    """
    apart = {*fr.TRANSPOSED, *fr.ops_of(Family.DEVICE)}
    names = [k.node for k in topology.kernels if k.op not in apart]
    default = fused(model, names)
    allowed = fused(model, names, int8_kernels=True) if default.real else default
    groups = {n.name: a.as_int() for n in model.graph if (a := n.attributes.get("group")) is not None}
    found = {}
    for kernel in topology.kernels:
        numbers = plan.kernels[kernel.node]
        if kernel.node in default.real:
            unrounded = isinstance(numbers, Accumulate) and numbers.output is None
            why = UNROUNDED if unrounded else UNFUSED if kernel.node in allowed.real else INT8
            found[kernel.node] = IN_FLOAT.format(why)
        elif isinstance(numbers, Accumulate) and groups.get(kernel.node, 1) > 1:
            weight = plan.weights[numbers.weight]
            if weight.values.shape[1] == 1 and np.unique(weight.zero).size > 1:
                found[kernel.node] = ONE_BY_ONE
        if kernel.node in default.signed:
            found.setdefault(kernel.node, SIGNED)
    return found


def _storage(plan: QuantPlan, kernel: Kernel) -> Iterator[str]:
    """Yield the reasons about types that no kernel reads."""
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
    """Yield the reasons about accumulators that no kernel has."""
    numbers = plan.kernels[kernel.node]
    if isinstance(numbers, Device):
        yield f"an op of the plug-in package {numbers.package}: run by its definition as a function"
    if isinstance(numbers, Program):
        yield (
            f"no integer kernel of the op: {len(numbers.steps)} steps on 64-bit integers, which take longer here than "
            "the float op between conversions"
        )
    if isinstance(numbers, Lookup) and form == INTEGER:
        yield "looked up in a table by Gather, which takes longer here than the float op between conversions"
    if kernel.op in fr.TRANSPOSED:
        yield "no integer kernel of the op: float32 computes the integers"
    if isinstance(numbers, Accumulate | Sum) and numbers.limit is not None:
        yield f"an {numbers.limit.label} accumulator that may {numbers.limit.overflow}: written out after wider sums"
    if not isinstance(numbers, Accumulate) or form != INTEGER:
        return
    weight = plan.weights[numbers.weight]
    if numbers.pairs is not None:
        yield "pairs of products that saturate: computed separately and subtracted from the sum"
    if weight.zero_point.size > 1 and weight.has_zero_point and weight.values.ndim > 2:
        yield "a zero point of each channel: taken off by a second sum"


def _narrowing(plan: QuantPlan, kernel: Kernel, form: str) -> Iterator[str]:
    """Return nodes whose requantization is no float32 product with ties to even."""
    output = getattr(plan.kernels[kernel.node], "output", None)
    if form == INTEGER and isinstance(output, Requantize) and not output.is_kernel_arithmetic:
        yield f"requantized by {output.kind}, {output.rounding}: written in integer arithmetic"
