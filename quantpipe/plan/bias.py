"""Biases as integers in steps of the accumulator: s_x·s_w, or a power of two of their own."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.errors import HardwareError
from quantpipe.plan.builder import PlanBuilder
from quantpipe.plan.requantize import exponent_of
from quantpipe.types import BiasScale, Kernel


def quantize_bias(builder: PlanBuilder, kernel: Kernel, acc_scale: NDArray[np.float32]) -> NDArray[np.int64] | None:
    """Return the bias in accumulator steps `[C]`, rounded to the nearest; None where there is no bias.

    Accuracy recovery may give a bias to a kernel that has none.

    `acc_scale`: real units per accumulator step, `()` or `[C]`. Raises HardwareError where the type of biases cannot
    hold it.
    """
    real = builder.overrides.biases.get(kernel.node)
    if real is None:
        if kernel.bias is None:
            return None
        real = builder.graph.constant(kernel.bias).astype(np.float64).reshape(-1)
    if builder.spec.bias_scale is BiasScale.OWN:
        return _own_steps(builder, kernel, real, acc_scale)
    steps = intmath.round_real(real / acc_scale.astype(np.float64))
    if np.any(np.abs(steps) > builder.spec.bias.qmax):
        raise HardwareError(
            f"its bias needs {np.abs(steps).max():.4g} steps, {builder.spec.bias} holds {builder.spec.bias.qmax}",
            stage="plan",
            where=kernel.node,
        )
    return steps.astype(np.int64)


def _own_steps(
    builder: PlanBuilder, kernel: Kernel, real: NDArray[np.float64], acc_scale: NDArray[np.float32]
) -> NDArray[np.int64]:
    """Return a bias of few bits at the smallest power of two at which it fits, shifted to the accumulator.

    Where that power of two is not larger than the accumulator's scale, the bias is stored at the accumulator's.
    """
    product = exponent_of(acc_scale, kernel.node)
    largest = float(np.max(np.abs(real), initial=0.0))
    least = math.ceil(math.log2(largest / builder.spec.bias.qmax)) if largest > 0 else product
    exponent = max(product, least)
    steps = intmath.round_real(real / 2.0**exponent)
    return steps.astype(np.int64) << (exponent - product)
