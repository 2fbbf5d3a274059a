"""Integer weights of accumulating kernels, and the bound of the sums that they make."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.graph.external_weights import beside
from quantpipe.plan.bounds import bias_room, reach
from quantpipe.plan.builder import PlanBuilder
from quantpipe.plan.pair_safe import about_128, exact_weight, pair_safe
from quantpipe.plan.saturating_pairs import OF_RUN, multiplies_in_pairs, saturates
from quantpipe.types import Kernel, LoopSite, PowerOfTwo, WeightTensor

MOST_BIAS_STEPS = float(1 << 22)
"""A channel whose bias is larger than this in accumulator steps is all but constant (its weights contribute under 1 %
per tap): its weight scale is raised, which costs nothing measurable and keeps its sums exact in float32."""


def choose_weight(builder: PlanBuilder, kernel: Kernel) -> None:
    """Choose the integers of a kernel's weight.

    Its scale is raised where the bias would not fit its type at s_x·s_w.
    """
    tensor = kernel.weight or ""
    thresholds = np.asarray(builder.strategy.weights[tensor], np.float64)
    own = builder.make_weight(tensor, builder.strategy.bits[tensor], thresholds)
    weight = builder.weights.get(tensor) or own  # of tied weights, as an earlier kernel needed it
    if tensor in builder.overrides.weights:
        given = builder.overrides.weights[tensor]
        values = beside(given.values.astype(own.values.dtype, copy=False), own.values)
        same = values is given.values and given.dtype is own.dtype
        weight = given if same else replace(given, values=values, dtype=own.dtype)
    elif kernel.bias is not None:
        data = builder.quantizers[kernel.operands[0].tensor]
        bias = np.abs(builder.graph.constant(kernel.bias).astype(np.float64).reshape(-1))
        builder.weights[tensor] = weight  # whose type the kernel's signature goes by
        room = bias_room(builder.spec, builder.accumulator(kernel), reach(builder.topology, weight, data))
        if weight.axis is not None and builder.topology.weight_of[tensor].fixed is None:
            room = np.minimum(room, MOST_BIAS_STEPS)
        needed = bias / np.maximum(room, 1.0) / float(data.scale)
        if weight.scale.ndim == 0:
            needed = np.asarray(needed.max())
        if np.any(needed > weight.scale):
            needed = np.where(weight.scale > own.scale, np.maximum(needed, weight.scale), needed)
            weight = _raise_scale(builder, kernel, own, thresholds, needed=needed)
    builder.weights[tensor] = pair_safe(builder, kernel, weight)


def choose_real_weight(builder: PlanBuilder, tensor: str) -> None:
    """Choose the integers of a weight of a node in float; accuracy recovery may give others."""
    given = builder.overrides.weights.get(tensor)
    if given is None:  # a search of blocks takes seconds
        given = builder.make_weight(tensor, builder.strategy.bits[tensor], builder.strategy.weights[tensor])
    builder.weights[tensor] = given


def choose_dynamic_weight(builder: PlanBuilder, kernel: Kernel) -> None:
    """Choose the integers of a weight by which an input with a scale of each run is multiplied.

    Where any session is to be exact, none of their pairs saturates: the input has 8 bits, whatever its scale is.
    """
    tensor = kernel.weight or ""
    choose_real_weight(builder, tensor)
    weight, axis = builder.weights[tensor], builder.topology.weight_of[tensor].channel_axis
    if builder.in_any_session and saturates(weight.values, axis, OF_RUN.qmax):
        builder.weights[tensor] = exact_weight(builder, weight, OF_RUN, where=kernel.node)


def choose_loop_weight(builder: PlanBuilder, site: LoopSite, tensor: str) -> None:
    """Choose the integers of a weight that a loop multiplies its state by.

    No session option makes onnxruntime add products in the body of a loop exactly, so none of their pairs may saturate,
    whatever `isa` is.
    """
    choose_real_weight(builder, tensor)
    weight, state = builder.weights[tensor], builder.quantizers[site.state]
    axis = builder.topology.weight_of[tensor].channel_axis
    if multiplies_in_pairs(weight, state) and saturates(weight.values, axis, state.qmax):
        builder.weights[tensor] = exact_weight(builder, weight, state, where=site.node)


def choose_cell_weight(builder: PlanBuilder, tensor: str) -> None:
    """Choose the integers of a weight of a recurrent layer with scales of each run.

    They are uint8, whose products by uint8 inputs every processor adds exactly.
    """
    choose_real_weight(builder, tensor)
    if multiplies_in_pairs(weight := builder.weights[tensor], OF_RUN):
        builder.weights[tensor] = about_128(weight)


def _raise_scale(
    builder: PlanBuilder,
    kernel: Kernel,
    weight: WeightTensor,
    thresholds: NDArray[np.float64],
    *,
    needed: NDArray[np.float64],
) -> WeightTensor:
    factor = np.maximum(1.0, needed / weight.scale * 1.0001)
    if builder.schema.weights.power_of_two is not PowerOfTwo.NONE:
        factor = 2.0 ** np.ceil(np.log2(factor))
    # Zeros have scale 1, and all but zeros the smallest one, whatever their range. They get a range that has this
    # scale, so that the factor acts on it.
    follows = weight.scale > intmath.SMALLEST_SCALE
    most = 1 if weight.block is None else weight.block.most  # of blocks, the scale is that of the multiplier 1
    if thresholds.ndim == 2:
        own = np.stack(
            [np.zeros(len(thresholds)), np.atleast_1d(weight.scale) * np.float64(((1 << weight.bits) - 1) * most)], 1
        )
        follows = (np.any(thresholds != 0, axis=1) & follows)[:, np.newaxis]
        base = np.where(follows, thresholds, own)
        factor = np.atleast_1d(factor)[:, np.newaxis]
    else:
        base = np.where(
            (thresholds > 0) & follows, thresholds, weight.scale * np.float64((1 << (weight.bits - 1)) * most)
        )
    builder.raised.append(
        {
            "node": kernel.node,
            "tensor": weight.tensor,
            "channels": int(np.sum(factor > 1)),
            "factor": float(np.max(factor)),
            "reason": "bias too large for its type or for exact sums at the scale input x weight",
        }
    )
    return builder.make_weight(weight.tensor, weight.bits, base * factor)


def ends(thresholds: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the minimum and maximum real value that a strategy gives a weight, `[C]` each.

    `thresholds`: thresholds `()` or `[C]`, or ranges `[C, 2]`, in real units.
    """
    limits = np.atleast_1d(np.asarray(thresholds, np.float64))
    return (limits[:, 0], limits[:, 1]) if limits.ndim == 2 else (-limits, limits)
