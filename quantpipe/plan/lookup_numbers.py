"""Products of two activations, and element-wise functions as tables."""

from __future__ import annotations

import numpy as np

from quantpipe.errors import HardwareError
from quantpipe.oprules import OpRule
from quantpipe.oprules.facts import product_terms
from quantpipe.plan.bounds import refuse_overflow
from quantpipe.plan.builder import PlanBuilder
from quantpipe.plan.formulas import FORMULAS, OF_BYTES, Formula
from quantpipe.plan.programs.interpolation import interpolated_table
from quantpipe.plan.requantize import limits, refuse_wide_products, requantize
from quantpipe.types import Contract, DType, Form, FunctionKind, Isa, Kernel, Lookup, Quantizer

MOST_WIDE = 1 << 52
"""Sums of 16-bit products stay below, so that float64 holds them in any order."""


def plan_contract(builder: PlanBuilder, kernel: Kernel) -> Contract:
    """Plan a MatMul of two stored tensors.

    Raises HardwareError for what no back end computes exactly: sums beyond the accumulator, beyond int32 of 8-bit
    tensors, beyond float64 of 16-bit ones, pairs that may saturate.
    """
    a, b = _stored(builder, kernel)
    wide = max(a.dtype.bits, b.dtype.bits) > 8
    if builder.spec.isa is not Isa.VNNI and _may_saturate(a, b):
        raise _refused(
            kernel,
            "pairs of its products can saturate on x86 without VNNI, and which ones depends on both activations; give "
            "one of them 7 bits, use hardware.isa=vnni",
        )
    terms = product_terms(builder.graph.by_name[kernel.node], builder.graph)
    bound = terms * builder.peak(a.tensor, Form.QUANTIZED) * builder.peak(b.tensor, Form.QUANTIZED)
    refuse_overflow(builder, kernel, bound)
    if bound > (MOST_WIDE if wide else DType.INT32.qmax):
        raise _refused(kernel, f"its sums may reach {bound}, its kernels add in {'float64' if wide else 'int32'}")
    builder.bounds[kernel.output] = bound
    exact_scale = np.asarray(np.float64(a.scale) * np.float64(b.scale))
    acc_scale = np.asarray(exact_scale, np.float32)
    if kernel.form is Form.RAW:
        builder.raw[kernel.output] = acc_scale
        return Contract(kernel.node, acc_scale, bound, None)
    output = requantize(builder, kernel, exact_scale, builder.quantizers[kernel.output])
    refuse_wide_products(kernel, output, bound)
    return Contract(kernel.node, acc_scale, bound, output)


def plan_lookup(builder: PlanBuilder, kernel: Kernel, rule: OpRule) -> Lookup:
    """Plan a function of one stored tensor as a table.

    Raises HardwareError where the result would be passed on as an accumulator.
    """
    (data,) = _stored(builder, kernel)
    if kernel.form is Form.RAW:
        raise _refused(kernel, "its result is a table's entry, which has a stored type: declare one of 8 or 16 bits")
    out = builder.quantizers[kernel.output]
    low, high = limits(kernel, out)
    kind = builder.function(kernel)
    function = builder.functions[kernel.node]
    if kind is FunctionKind.TABLE and data.dtype.bits > 8 and out.dtype.bits > 8:
        entries = np.clip(interpolated_table(function, data, out), low, high).astype(out.dtype.numpy)
        return Lookup(kernel.node, entries, function.axis, low, high, True, kind, interpolated=True)
    formula = FORMULAS.get((kernel.op, kind)) if kind is not None else None
    if kernel.op in OF_BYTES and max(data.dtype.bits, out.dtype.bits) > 8:
        formula = None
    if formula is None or kind is None or (rule.fixed is not None and data.dtype.bits <= 8):
        return Lookup(kernel.node, *function.table(data, out, low, high))
    node = builder.graph.by_name[kernel.node]
    entries = formula(Formula(node, data, out, builder.narrowing(kernel), low, high))
    return Lookup(kernel.node, entries.astype(out.dtype.numpy).reshape(1, -1), None, low, high, True, kind)


def _stored(builder: PlanBuilder, kernel: Kernel) -> tuple[Quantizer, ...]:
    if any(o.form is not Form.QUANTIZED for o in kernel.operands):
        raise _refused(kernel, "it reads an accumulator; its integer form needs stored operands of 8 or 16 bits")
    return tuple(builder.quantizers[o.tensor] for o in kernel.operands)


def _may_saturate(a: Quantizer, b: Quantizer) -> bool:
    """uint8 x int8 products are added in int16 by twos; uint8 x uint8 ones are widened first."""
    if a.dtype is not DType.UINT8 or not b.dtype.signed:
        return False
    return 2 * a.qmax * max(abs(b.qmin), abs(b.qmax)) > DType.INT16.qmax


def _refused(kernel: Kernel, reason: str) -> HardwareError:
    advice = f"keep it in float with annotate.float_nodes=[{kernel.node}]"
    return HardwareError(f"{reason}; or {advice}", stage="plan", where=kernel.node)
