"""Find pairs of products that saturate in int16.

x86 without VNNI adds two uint8 x int8 products in int16, with saturation, before it goes on in int32 (vpmaddubsw).

onnxruntime's matrix kernels take neighbours along K: the input features of a dense layer, for a convolution the inputs
of a window ordered by row, column, channel (of one group). Depthwise convolutions with one output per input have a
kernel of their own, which multiplies in 32 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.errors import HardwareError
from quantpipe.graph.view import Graph
from quantpipe.plan.builder import PlanBuilder
from quantpipe.types import DType, Isa, Kernel, Pairs, Quantizer, Topology, WeightTensor

BLOCK = 1 << 20
"""Weights that are looked at at once."""

MOST_PER_CHANNEL = 500
"""Saturating pairs of one output channel whose excess float32 still adds up exactly: 500 · 32 512 < 2^24."""


def saturating_pairs(builder: PlanBuilder, kernel: Kernel, weight: WeightTensor, data: Quantizer) -> Pairs | None:
    """Return the pairs of an accumulating kernel that some input can drive out of int16 on the device.

    Args:
        builder: the plan in the making.
        kernel: the accumulating kernel.
        weight: its integer weights.
        data: how its input is stored.

    Returns:
        The pairs, or None where there are none.

    Raises:
        HardwareError: where they are too many to be simulated exactly, or the op's order of products is not known.
    """
    if builder.spec.isa is not Isa.AVX2 or not _in_pairs(builder.graph, builder.topology, kernel, weight, data=data):
        return None
    rows = _in_order(builder.topology, weight)
    if rows is None:
        raise HardwareError(
            "the order in which its products are paired on avx2 is not known; keep it in float with "
            "annotate.float_nodes, or use hardware.isa=vnni",
            stage="plan",
            where=kernel.node,
        )
    flat = rows.reshape(len(rows), -1).astype(np.int64)
    owner, number = np.nonzero(_can_saturate(flat, data.qmax))
    if not owner.size:
        return None
    if int(np.bincount(owner).max()) > MOST_PER_CHANNEL:
        raise HardwareError(
            f"more than {MOST_PER_CHANNEL} pairs of products of one channel can saturate on avx2; use "
            "hardware.weights.reduce_range=true, which is what such a CPU needs",
            stage="plan",
            where=kernel.node,
        )
    picked = np.zeros((len(owner), flat.shape[1]), np.int8)
    for column in (2 * number, 2 * number + 1):
        inside = column < flat.shape[1]
        at = np.arange(len(owner))[inside]
        picked[at, column[inside]] = flat[owner[inside], column[inside]]
    totals = picked.astype(np.int64).sum(axis=1)
    if rows.ndim == 2:
        return Pairs(np.ascontiguousarray(picked.T), totals, owner)
    windows = np.moveaxis(picked.reshape(len(owner), *rows.shape[1:]), -1, 1)
    group = int(builder.graph.by_name[kernel.node].attr("group", 1))
    return Pairs(_across_groups(windows, owner, group, len(rows)), totals, owner)


def needs_wide_pairs(
    graph: Graph, topology: Topology, kernel: Kernel, weight: WeightTensor, *, data: Quantizer
) -> bool:
    """Return whether some input gives the kernel a pair of products beyond int16.

    Where the order of products is not known, any two weights count as a pair. The sums of such a kernel are exact only
    on CPUs that add pairs in more than 16 bits.

    Args:
        graph: the graph.
        topology: what of it runs in integers.
        kernel: the accumulating kernel.
        weight: its integer weights.
        data: how its input is stored.

    Returns:
        True where a sum of two products can leave int16.
    """
    if not _in_pairs(graph, topology, kernel, weight, data=data):
        return False
    least, greatest = (int(ends(weight.values, initial=0)) for ends in (np.min, np.max))
    if 2 * data.qmax * greatest <= DType.INT16.qmax and 2 * data.qmax * least >= DType.INT16.qmin:
        return False
    rows = _in_order(topology, weight)
    if rows is None:
        return True
    flat = rows.reshape(len(rows), -1)
    height = max(1, BLOCK // max(flat.shape[1], 1))
    return any(
        _can_saturate(flat[first : first + height].astype(np.int64), data.qmax).any()
        for first in range(0, len(flat), height)
    )


def _in_pairs(graph: Graph, topology: Topology, kernel: Kernel, weight: WeightTensor, *, data: Quantizer) -> bool:
    """Return whether the kernel adds products in pairs before the rest of the sum.

    uint8 x uint8 products are widened first, and so are those of depthwise convolutions.
    """
    if data.dtype is not DType.UINT8 or not weight.dtype.signed:
        return False
    shape, group = weight.values.shape, int(graph.by_name[kernel.node].attr("group", 1))
    depthwise = len(shape) > 2 and group > 1 and shape[:2] == (group, 1)
    return not (depthwise and topology.weight_of[weight.tensor].channel_axis == 0)


def _in_order(topology: Topology, weight: WeightTensor) -> NDArray[Any] | None:
    """Return the weights by output channel, with the neighbours of a pair side by side.

    Their shape is `[O, K]` or `[O, window …, C]`; None where the order is not known.
    """
    values, axis = weight.values, topology.weight_of[weight.tensor].channel_axis
    if values.ndim == 2:
        return np.moveaxis(values, axis, 0)
    return np.moveaxis(values, 1, -1) if axis == 0 else None


def _can_saturate(flat: NDArray[np.int64], most: int) -> NDArray[np.bool_]:
    """`[O, K/2]`: whether q_0·w_0 + q_1·w_1 can leave int16 for some 0 <= q <= `most`."""
    even = np.pad(flat, ((0, 0), (0, flat.shape[1] % 2)))
    a, b = even[:, 0::2], even[:, 1::2]
    high = most * (np.maximum(a, 0) + np.maximum(b, 0))
    low = most * (np.minimum(a, 0) + np.minimum(b, 0))
    return np.asarray((high > DType.INT16.qmax) | (low < DType.INT16.qmin))


def _across_groups(windows: NDArray[np.int8], owner: NDArray[np.int64], group: int, outputs: int) -> NDArray[np.int8]:
    """Weights over the channels of one group as weights over all input channels."""
    each = windows.shape[1]
    whole = np.zeros((len(windows), each * group, *windows.shape[2:]), np.int8)
    for number, channel in enumerate(owner):
        first = int(channel) // (outputs // group) * each
        whole[number, first : first + each] = windows[number]
    return whole
