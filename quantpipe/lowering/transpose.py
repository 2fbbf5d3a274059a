"""Write transposed convolutions in integers, carried by integer-valued float32.

onnxruntime has no integer kernel of them. Every product and partial sum is an integer, and float32 holds integers below
2^24 exactly. So the input channels are split into as many parts as keep each part's sums below that, and the parts are
added in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.arrays import EXACT_FLOAT32
from quantpipe.errors import HardwareError
from quantpipe.graph.view import Node
from quantpipe.lowering.context import Context
from quantpipe.types import Accumulate, Kernel, QuantPlan

KEPT = ("auto_pad", "dilations", "group", "kernel_shape", "output_padding", "output_shape", "pads", "strides")

Write = Callable[[str, NDArray[np.float32]], ir.Value]
"""Makes a named weight available in the graph."""


def parts_of(numbers: QuantPlan, plan: Accumulate, kernel: Kernel) -> list[slice]:
    """Return ranges of input channels whose sums float32 holds exactly, bias included (it is added to one part).

    Raises HardwareError where the sums of a single channel are too large.
    """
    data, worst = numbers.quantizers[kernel.operands[0].tensor], 0
    values = np.abs(numbers.weights[plan.weight].centred().astype(np.int64))
    reach = values.sum(axis=tuple(range(2, values.ndim))) * max(abs(data.low), abs(data.high))
    channels, count = len(values), 1
    while count <= channels:
        worst = max(int(reach[part].sum(axis=0).max()) for part in _cut(channels, count))
        if plan.exact_in_float32 if count == 1 else worst < EXACT_FLOAT32:
            return _cut(channels, count)
        count += 1
    raise HardwareError(
        f"the sums of one input channel may reach {worst}, and the transposed convolution runs in float32, which is "
        f"exact below {EXACT_FLOAT32}. Give its inputs or weights fewer bits, or keep it in float with "
        "annotate.float_nodes",
        stage="simulate",
        where=kernel.node,
    )


def _cut(channels: int, count: int) -> list[slice]:
    edges = [channels * i // count for i in range(count + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


def accumulate(
    context: Context, node: Node, data: ir.Value, weight: NDArray[Any], *, parts: Sequence[slice], write: Write
) -> ir.Value:
    """Write Σ (q_x - z_x)·w of a transposed convolution, without bias.

    `data` is the centred input, float32; `weight` is `[Cin, Cout / G, taps…]`. `parts` are ranges of input channels
    whose sums float32 holds. The sums are float32 for one part, float64 for several.
    """
    b, output = context.builder, f"{node.outputs[0]}_product"
    attributes = {k: node.attr(k) for k in KEPT if k in node.attributes}
    if len(parts) == 1:
        values = write(f"{node.name}.weight", weight.astype(np.float32))
        return b.op("ConvTranspose", data, values, name=node.name, output=output, **attributes)
    total: ir.Value | None = None
    axis = b.constant(f"{node.name}/axis", np.array([1], np.int64))
    for number, part in enumerate(parts):
        name = f"{node.name}/part{number}"
        edges = [b.constant(f"{name}/{side}", np.array([at], np.int64)) for side, at in
                 (("start", part.start), ("end", part.stop))]  # fmt: skip
        some = b.op("Slice", data, *edges, axis, name=f"{name}/slice")
        values = write(f"{node.name}.weight{number}", np.ascontiguousarray(weight[part]).astype(np.float32))
        found = b.op("ConvTranspose", some, values, name=name, **attributes)
        wide = b.op("Cast", found, name=f"{name}/double", to=int(ir.DataType.DOUBLE))
        total = wide if total is None else b.op("Add", total, wide, name=f"{name}/sum")
    assert total is not None  # noqa: S101  (there is at least one part)
    return total
