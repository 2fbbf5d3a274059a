"""Bound the difference of two correct float32 runs of the same arithmetic, element by element.

There are two cases. For a float kernel that the runtime computes by a float32 sum, the bound holds for a sum of n
products in any order, from the actual operands. It is in section 3.1 of Higham, Accuracy and Stability of Numerical
Algorithms. For float nodes it is a stated share of the result, widened by the changes of the runtime's own
optimizations.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import Array
from quantpipe.graph.build import GraphBuilder
from quantpipe.graph.execute import Session
from quantpipe.graph.view import Graph
from quantpipe.lowering.fragments import along_channels
from quantpipe.types import Accumulate, Contract, Kernel, Quantizer, QuantPlan, Topology

UNIT = 2.0**-24
"""Relative error of one rounding to float32."""

NOISE = 1e-5
"""Share of a real result, and of the root mean square of its sample, that nodes in float may lose to rounding."""

HALF_NOISE = 2e-3
"""The same where some of them compute in float16: four roundings to it, 2^-11 each."""

SENSITIVE = 16.0
"""How many times the difference of two runs of the same float nodes, optimized and as written, is rounding, too."""

OWN = 4
"""Roundings of a term beside those of the sum: its two dequantized factors, their product, the bias."""

HUGE = 1e30
"""Magnitudes that stand for infinity (masks), and say nothing of the others."""


def sum_tolerance(
    graph: Graph, topology: Topology, plan: QuantPlan, kernel: Kernel, *, operands: Mapping[str, Array]
) -> Array | None:
    """Return (n + 4)·u·(Σ|x|·|w| + |b|) of each real result of a kernel, n products each.

    The operands are integers less their zero points, by tensor. None for kernels without sums.
    """
    numbers = plan.kernels[kernel.node]
    if not isinstance(numbers, Accumulate | Contract):
        return None
    node = graph.by_name[kernel.node]
    builder = GraphBuilder("magnitudes", max(graph.opset, 17), 9)
    feeds = {o.tensor: np.abs(operands[o.tensor]).astype(np.float32) for o in kernel.operands}
    inputs = {o.port: builder.input(o.tensor, "float32", feeds[o.tensor].shape) for o in kernel.operands}
    count = feeds[kernel.operands[0].tensor].shape[-1]
    if isinstance(numbers, Accumulate):
        weight = plan.weights[numbers.weight]
        count = weight.values.size // weight.values.shape[topology.weight_of[weight.tensor].channel_axis]
        magnitudes = np.abs(weight.centred()).astype(np.float32)
        inputs[1] = builder.input("weight", "float32", magnitudes.shape)  # a session holds a constant several times
        feeds[str(inputs[1].name)] = magnitudes
        if numbers.bias is not None:
            inputs[2] = builder.constant("bias", np.abs(numbers.bias).astype(np.float32))
    result = builder.copy(node, [inputs[p] for p in sorted(inputs)], ["magnitude"])[0]
    sums = Session(builder.build([result]), where="magnitudes of products").run(feeds)["magnitude"]
    scale = along_channels(np.abs(np.asarray(numbers.acc_scale, np.float64)), graph, kernel.output)
    return np.asarray(sums.astype(np.float64) * scale * (count + OWN) * UNIT)


def island_tolerance(value: Array, as_written: Array, *, half: bool = False) -> Array:
    """Return the maximum rounding difference of float nodes, float64, broadcastable to their result.

    `as_written` is the result of the same nodes without the runtime's optimizations. `half`: some of the nodes compute
    in float16. The runtime does so in float32, and may omit the rounding between two of them, depending on the other
    readers of their tensors.
    """
    real = value.astype(np.float64)
    usual = np.where(np.abs(real) < HUGE, real, 0.0)
    axes = tuple(range(1, real.ndim))
    spread = np.sqrt(np.mean(usual**2, axis=axes, keepdims=True)) if real.size else np.zeros(())
    unrest = np.zeros(())
    if as_written.shape == value.shape and real.size:
        apart = np.abs(np.nan_to_num(real - as_written.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0))
        unrest = np.max(np.where(np.abs(real) < HUGE, apart, 0.0), axis=axes, keepdims=True)
    return np.asarray((HALF_NOISE if half else NOISE) * (np.abs(usual) + spread) + SENSITIVE * unrest)


def explained_step(found: Array, real: Array, tolerance: Array, quantizer: Quantizer) -> NDArray[np.bool_]:
    """Return whether each integer quantizes some real value within `tolerance` of `real`."""
    scale = float(quantizer.scale)
    place = np.clip(real.astype(np.float64) / scale + quantizer.zero_point, quantizer.qmin, quantizer.qmax)
    return np.asarray(np.abs(found.astype(np.float64) - place) <= 0.5 + tolerance / scale)
