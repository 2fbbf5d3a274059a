"""Find pairs of products that saturate in int16.

x86 without VNNI adds two uint8 x int8 products in int16, with saturation, before it goes on in int32 (vpmaddubsw).

onnxruntime's matrix kernels take neighbours along K: the input features of a dense layer, for a convolution the inputs
of a window ordered by row, column, channel (of one group). Depthwise convolutions with one output per input have a
kernel of their own, which multiplies in 32 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.errors import HardwareError
from quantpipe.graph.view import Graph, Node
from quantpipe.plan.builder import PlanBuilder
from quantpipe.types import (
    Accumulate,
    DType,
    HardwareSpec,
    Isa,
    Kernel,
    Pairs,
    Quantizer,
    QuantPlan,
    Topology,
    WeightTensor,
)

BLOCK = 1 << 20
"""Weights that are looked at at once."""

MOST_PER_CHANNEL = 500
"""Saturating pairs of one output channel whose excess float32 still adds up exactly: 500 · 32 512 < 2^24."""

OF_RUN = Quantizer("", np.asarray(1, np.float32), 128, DType.UINT8, 8, 0, 255)
"""An input that gets a scale from the samples of each run; its zero point is not known before, and taken as 128."""


def saturating_pairs(builder: PlanBuilder, kernel: Kernel, weight: WeightTensor, data: Quantizer) -> Pairs | None:
    """Return the pairs of an accumulating kernel that some input can drive out of int16 on the device.

    Returns the pairs, or None where there are none. Raises HardwareError where they are too many to be simulated
    exactly, or the op's order of products is not known.
    """
    if builder.spec.isa is not Isa.AVX2 or not _in_pairs(builder.graph, builder.topology, kernel, weight, data=data):
        return None
    rows = kernel_order(weight.values, builder.topology.weight_of[weight.tensor].channel_axis)
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

    Returns True where a sum of two products can leave int16.
    """
    if not _in_pairs(graph, topology, kernel, weight, data=data):
        return False
    return saturates(weight.values, topology.weight_of[weight.tensor].channel_axis, data.qmax)


def kernels_with_wide_pairs(graph: Graph, topology: Topology, plan: QuantPlan) -> list[str]:
    """Return the kernels and layers with scales of each run of which some input drives a pair out of int16."""
    found = []
    for kernel in topology.kernels:
        made = plan.kernels.get(kernel.node)
        if not isinstance(made, Accumulate):
            continue
        weight, data = plan.weights[made.weight], plan.quantizers[kernel.operands[0].tensor]
        if data.dtype.bits > 8:  # the forms multiply its bytes one by one
            wide = weight.dtype.signed and saturates(
                weight.values, topology.weight_of[weight.tensor].channel_axis, DType.UINT8.qmax
            )
        else:
            wide = needs_wide_pairs(graph, topology, kernel, weight, data=data)
        found += [kernel.node] if wide else []
    for name in topology.dynamic:
        weight = plan.weights[topology.weighted_of[name].weight or ""]
        if weight.dtype.signed and saturates(
            weight.values, topology.weight_of[weight.tensor].channel_axis, DType.UINT8.qmax
        ):
            found.append(name)
    return found


def data_of(kernel: Kernel, topology: Topology, plan: QuantPlan) -> Quantizer | None:
    """Return how a kernel's input is stored; None if it is read as floats."""
    return OF_RUN if kernel.node in topology.dynamic else plan.quantizers.get(kernel.operands[0].tensor)


def saturates(values: NDArray[Any], channel_axis: int, largest: int) -> bool:
    """Return whether some input drives a pair of products out of int16.

    `values`: integer weights, in the weight's own shape. `largest`: the largest code of the uint8 input.
    """
    low, high = (int(ends(values, initial=0)) for ends in (np.min, np.max))
    if 2 * largest * max(high, -low) <= DType.INT16.qmax:  # any two weights fit
        return False
    return bool(np.any(channel_sums(values, channel_axis) * largest > DType.INT16.qmax))


def channel_sums(values: NDArray[Any], channel_axis: int) -> NDArray[np.int64]:
    """Return the largest magnitude of two weights of a pair that have the same sign, of each output channel, `[O]`.

    Where the order of products is not known, any two weights are a pair.

    `values`: integer weights, in the weight's own shape.
    """
    rows = kernel_order(values, channel_axis)
    if rows is None:
        flat = np.moveaxis(values, channel_axis, 0).reshape(values.shape[channel_axis], -1)
        return np.asarray(2 * np.abs(flat.astype(np.int64)).max(axis=1, initial=0))
    flat = rows.reshape(len(rows), -1)
    height = max(1, BLOCK // max(flat.shape[1], 1))
    wide = np.int16 if flat.dtype.itemsize == 1 else np.int64  # holds every pair, in a quarter of the memory
    parts = [pair_sums(flat[first : first + height].astype(wide)) for first in range(0, len(flat), height)]
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)


def pair_sums(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the largest magnitude of two neighbours of the same sign in each row, `[…]`, of integers `[…, K]`."""
    even = np.pad(rows, (*((0, 0),) * (rows.ndim - 1), (0, rows.shape[-1] % 2)))
    a, b = even[..., 0::2], even[..., 1::2]
    positive, negative = np.maximum(a, 0) + np.maximum(b, 0), np.minimum(a, 0) + np.minimum(b, 0)
    return np.asarray(np.maximum(positive, -negative).max(axis=-1, initial=0))


def pair_limit(
    spec: HardwareSpec, graph: Graph, topology: Topology, *, kernel: Kernel, weight: WeightTensor, data: Quantizer
) -> int | None:
    """Return the largest magnitude of two weights of a pair together, where the device gives them a limit.

    Returns the limit; None where any integers are exact on every processor, or where the kernel is made exact in
    another way (zero points, blocks).
    """
    free = weight.block is None and not weight.has_zero_point and spec.isa is Isa.ANY
    if not free or not _in_pairs(graph, topology, kernel, weight, data=data):
        return None
    limit = largest_pair(data)
    return None if limit >= 2 << (weight.bits - 1) else limit


def largest_sum(
    graph: Graph, topology: Topology, kernel: Kernel, weight: WeightTensor, *, data: Quantizer
) -> int | None:
    """Return the largest of `channel_sums`, for the certificate; None where the kernel pairs no products."""
    if not _in_pairs(graph, topology, kernel, weight, data=data):
        return None
    return int(channel_sums(weight.values, topology.weight_of[weight.tensor].channel_axis).max(initial=0))


def saturating_channels(values: NDArray[Any], channel_axis: int, largest: int) -> int:
    """Return the number of output channels with a pair of products that some input drives out of int16."""
    return int(np.count_nonzero(channel_sums(values, channel_axis) * largest > DType.INT16.qmax))


def channels_of_file(node: Node, values: NDArray[Any], channel_axis: int) -> int:
    """Return the number of output channels of an op on uint8 data whose pairs saturate, in a file of any tool.

    `values`: its int8 weights, in their own shape.
    """
    if _is_depthwise(node, values.shape, channel_axis):
        return 0
    return saturating_channels(values, channel_axis, DType.UINT8.qmax)


def multiplies_in_pairs(weight: WeightTensor, data: Quantizer) -> bool:
    """Return whether products of these types are added in pairs; uint8 x uint8 products are widened first."""
    return data.dtype is DType.UINT8 and weight.dtype.signed and weight.dtype.bits <= 8


def largest_pair(data: Quantizer) -> int:
    """Return the largest magnitude of two weights of equal sign together with which no input saturates int16."""
    return DType.INT16.qmax // max(data.qmax, 1)


def kernel_order(values: NDArray[Any], channel_axis: int) -> NDArray[Any] | None:
    """Return weights by output channel, with the two weights of a pair next to each other.

    Returns `[O, K]` or `[O, window …, C]`; None where the order of the kernel is not known.
    """
    if values.ndim == 2:
        return np.moveaxis(values, channel_axis, 0)
    return np.moveaxis(values, 1, -1) if channel_axis == 0 else None


def _in_pairs(graph: Graph, topology: Topology, kernel: Kernel, weight: WeightTensor, *, data: Quantizer) -> bool:
    """Return whether the kernel adds products in pairs before the rest of the sum; depthwise kernels do not."""
    if not multiplies_in_pairs(weight, data):
        return False
    axis = topology.weight_of[weight.tensor].channel_axis
    return not _is_depthwise(graph.by_name[kernel.node], weight.values.shape, axis)


def _is_depthwise(node: Node, shape: Sequence[int], channel_axis: int) -> bool:
    """Return whether a convolution has one output per input, and so a kernel that multiplies in 32 bits."""
    group = int(node.attr("group", 1))
    return channel_axis == 0 and len(shape) > 2 and group > 1 and tuple(shape[:2]) == (group, 1)


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
