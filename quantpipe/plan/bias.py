"""Biases as integers in steps of the accumulator: s_x·s_w, or a power of two of their own."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.errors import HardwareError
from quantpipe.plan.builder import PlanBuilder
from quantpipe.plan.requantize import exponent_of
from quantpipe.types import BiasScale, HardwareSpec, Kernel

CLOSE = 1e-6
"""Relative error of a bias in float32, whose scale is a product in float32."""


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
        if (given := _given(builder, kernel.bias, real, acc_scale)) is not None:
            return given
    step = bias_step(builder.spec, kernel.node, real, acc_scale.astype(np.float64))
    steps = intmath.round_real(real / step)
    if builder.spec.bias_scale is BiasScale.PRODUCT and np.any(np.abs(steps) > builder.spec.bias.qmax):
        raise HardwareError(
            f"its bias needs {np.abs(steps).max():.4g} steps, {builder.spec.bias} holds {builder.spec.bias.qmax}",
            stage="plan",
            where=kernel.node,
        )
    return (steps * (step / acc_scale.astype(np.float64))).astype(np.int64)


def _given(
    builder: PlanBuilder, bias: str, real: NDArray[np.float64], acc_scale: NDArray[np.float32]
) -> NDArray[np.int64] | None:
    """Return the integers that a quantized file has for a bias, `[C]`; None where its scale is another one here.

    The real bias is float32, which does not hold all integers of more than 24 bits.
    """
    imported = builder.graph.imported
    found = imported.biases.get(bias) if imported is not None and imported.keep.weights else None
    if found is None or builder.spec.bias_scale is BiasScale.OWN or np.any(np.abs(found) > builder.spec.bias.qmax):
        return None
    steps = real / acc_scale.astype(np.float64)
    return found if found.shape == real.shape and np.all(np.abs(found - steps) <= CLOSE * np.abs(steps) + 0.5) else None


def bias_step(
    spec: HardwareSpec, node: str, real: NDArray[np.float64], acc_scale: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the step of a stored bias `[C]`, `()` or `[C]`: the accumulator's scale, or a power of two of its own.

    The latter is the smallest at which a bias of few bits fits, and no smaller than the accumulator's scale.
    """
    if spec.bias_scale is BiasScale.PRODUCT:
        return acc_scale
    largest = float(np.max(np.abs(real), initial=0.0))
    product = exponent_of(acc_scale, node)
    least = math.ceil(math.log2(largest / spec.bias.qmax)) if largest > 0 else product
    return np.asarray(2.0 ** max(product, least))
