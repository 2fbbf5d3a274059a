"""The numbers of one kernel, by the family of its op."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quantpipe.errors import DataError, HardwareError
from quantpipe.oprules import Family, OpRule
from quantpipe.oprules.rule import mean_of_window
from quantpipe.plan.addition_numbers import plan_sum
from quantpipe.plan.bias import quantize_bias
from quantpipe.plan.bounds import bounded, limit_of, reach, refuse_overflow
from quantpipe.plan.builder import PlanBuilder
from quantpipe.plan.lookup_numbers import plan_contract, plan_lookup
from quantpipe.plan.plugin_numbers import plan_device
from quantpipe.plan.programs import plan_program
from quantpipe.plan.requantize import limits, real_of, refuse_wide_products, requantize, shared_among, steps_of
from quantpipe.plan.saturating_pairs import saturating_pairs
from quantpipe.types import (
    Accumulate,
    Average,
    Contract,
    DType,
    Form,
    FunctionKind,
    Kernel,
    KernelPlan,
    Move,
    Product,
    Program,
    Requantize,
    RequantizeKind,
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


def plan_kernel(builder: PlanBuilder, kernel: Kernel, rule: OpRule) -> KernelPlan:
    """Return the numbers of one kernel, as the family of its op forms them.

    Raises HardwareError for numbers that the device cannot hold, with the kernel's name.
    """
    try:
        return _FAMILIES.get(rule.family, _move)(builder, kernel, rule)
    except DataError as error:  # of integer arithmetic, which knows no kernels
        raise HardwareError(
            f"{error}; keep it in float with annotate.float_nodes=[{kernel.node}], and what is like it, or leave what "
            "is no value out of its range (the -3e38 of a mask)",
            stage="plan",
            where=kernel.node,
        ) from error


def _accumulate(builder: PlanBuilder, kernel: Kernel, rule: OpRule) -> Accumulate | Contract:
    if kernel.weight is None:
        return plan_contract(builder, kernel)
    data = builder.quantizers[kernel.operands[0].tensor]
    weight = builder.weights[kernel.weight or ""]
    exact_scale = np.asarray(np.float64(data.scale) * weight.scale.astype(np.float64))
    acc_scale = np.asarray(exact_scale, np.float32)
    bias = quantize_bias(builder, kernel, acc_scale)
    bound = int(np.max(reach(builder.topology, weight, data) + (np.abs(bias) if bias is not None else 0)))
    pairs = saturating_pairs(builder, kernel, weight, data)
    if pairs is not None:
        bound += int(np.bincount(pairs.owner).max()) * -DType.INT16.qmin  # what saturation takes away, at most
    limit = limit_of(builder, kernel, bound)
    builder.bounds[kernel.output] = bounded(bound, limit)
    output = None
    if kernel.form is Form.RAW:
        builder.raw[kernel.output] = acc_scale
    else:
        output = requantize(builder, kernel, exact_scale, builder.quantizers[kernel.output])
        refuse_wide_products(kernel, output, bound if limit is None else limit.qmax)
    return Accumulate(kernel.node, weight.tensor, bias, acc_scale, bound, output, limit, pairs)


def _sum(builder: PlanBuilder, kernel: Kernel, rule: OpRule) -> KernelPlan:
    return plan_sum(builder, kernel, rule.sign)


def _product(builder: PlanBuilder, kernel: Kernel, rule: OpRule) -> Product:
    a, b = (builder.quantizers[o.tensor] for o in kernel.operands)
    out = builder.quantizers[kernel.output]
    bound = builder.peak(a.tensor, Form.QUANTIZED) * builder.peak(b.tensor, Form.QUANTIZED)
    refuse_overflow(builder, kernel, bound)
    scale = np.asarray(np.float64(a.scale) * np.float64(b.scale))
    output = requantize(builder, kernel, scale, out, zero_first=True)
    refuse_wide_products(kernel, output, bound)
    return Product(kernel.node, bound, output)


def _average(builder: PlanBuilder, kernel: Kernel, rule: OpRule) -> Average | Program:
    if builder.function(kernel) is FunctionKind.DIVISION:
        return plan_program(builder, kernel, rule)
    data, out = builder.quantizers[kernel.operands[0].tensor], builder.quantizers[kernel.output]
    count = rule.count(builder.graph.by_name[kernel.node], builder.graph)
    bound = builder.peak(data.tensor, Form.QUANTIZED) * count
    refuse_overflow(builder, kernel, bound)
    how = builder.narrowing(kernel)
    if how.kind is RequantizeKind.FIXED_POINT and rule.mean is not mean_of_window:
        share = shared_among(builder, kernel, np.float64(data.scale) / np.float64(out.scale), count)
        output = requantize(builder, kernel, np.asarray(data.scale, np.float64), out)
        output = replace(output, fixed=share, multiplier=real_of(share))
        refuse_wide_products(kernel, output, bound)
        return Average(kernel.node, count, bound, output)
    if how.kind is not RequantizeKind.FLOAT_MULTIPLIER:
        part = np.float64(np.float32(1 / count)) if how.kind is RequantizeKind.FIXED_POINT else 1 / count
        scale = np.asarray(data.scale, np.float64) * part
        output = requantize(builder, kernel, scale, out)
        refuse_wide_products(kernel, output, bound)
        return Average(kernel.node, count, bound, output)
    multiplier = np.asarray(rule.mean(np.float32(data.scale), np.float32(out.scale), count), np.float32)
    low, high = limits(kernel, out)
    output = Requantize(how.kind, multiplier, 0, out.zero_point, low, high, bool(how.zero_first), how.rounding)
    return Average(kernel.node, count, bound, output)


def _move(builder: PlanBuilder, kernel: Kernel, rule: OpRule) -> Move:
    if kernel.form is Form.RAW:
        source = kernel.operands[0].tensor
        scale = builder.raw[source]
        builder.raw[kernel.output] = scale
        builder.bounds[kernel.output] = builder.bounds[source]
        low, high = (_raw_bound(b, scale, kernel.node) for b in kernel.bounds)
        return Move(kernel.node, low, high)
    out = builder.quantizers[kernel.output]
    builder.rescales += rescales_of(builder, kernel)
    if not any(math.isfinite(b) for b in kernel.bounds):
        return Move(kernel.node)
    low_q, high_q = limits(kernel, out)
    return Move(kernel.node, low_q, high_q)


def _raw_bound(bound: float, scale: NDArray[np.float32], node: str) -> int | None:
    """A clamp's limit in accumulator steps, the same for all channels."""
    if scale.ndim and bound and math.isfinite(bound):
        raise HardwareError(
            f"it clamps accumulators at {bound:g}, which is another integer in each channel where weights have scales "
            "per channel; use hardware.weights.granularity=[per_tensor]",
            stage="plan",
            where=node,
        )
    return 0 if bound == 0 else steps_of(bound, float(scale.reshape(-1)[0]))


_FAMILIES: Mapping[Family, Callable[[PlanBuilder, Kernel, OpRule], KernelPlan]] = {
    Family.ACCUMULATE: _accumulate,
    Family.SUM: _sum,
    Family.PRODUCT: _product,
    Family.AVERAGE: _average,
    Family.LOOKUP: plan_lookup,
    Family.ROWS: plan_program,
    Family.DEVICE: plan_device,
}
"""Families not named here move values and keep the scale."""
