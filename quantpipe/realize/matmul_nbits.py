"""Write onnxruntime's MatMulNBits: float dense layers by packed integer weights in blocks.

All else is as in the Q/DQ form. The op computes in float32 (accuracy level 1), whatever a session is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from quantpipe.arrays import Array
from quantpipe.graph.session_options import REAL_ACTIVATIONS
from quantpipe.graph.view import Node
from quantpipe.lowering import Context
from quantpipe.oprules import rule_of
from quantpipe.plan.weight_blocks import rows_of
from quantpipe.realize.qdq import Qdq
from quantpipe.types import Kernel, WeightTensor

FLOAT32 = 1
"""The accuracy level at which the activations stay as they are."""


class MatMulNBits(Qdq):
    """Write the Q/DQ form with MatMulNBits for dense layers whose weight is in blocks."""

    name = "matmul_nbits"

    def session_options(self, context: Context) -> Mapping[str, str]:
        """Return the options of the Q/DQ form; options for block weights only if another op has such weights."""
        options = super().session_options(context)
        weights = (context.plan.weights[k.weight or ""] for k in context.topology.weighted)
        if any(w.values.ndim != 2 for w in weights):
            return options
        return {k: v for k, v in options.items() if k not in REAL_ACTIVATIONS}

    def weigh(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        """Write MatMulNBits of a dense layer; other ops are as in the Q/DQ form."""
        weight, rule = context.plan.weights[kernel.weight or ""], rule_of(node)
        if weight.values.ndim != 2 or weight.block is None or rule is None:
            return super().weigh(context, node, kernel)
        rows = rows_of(weight.values, context.topology.weight_of[weight.tensor].channel_axis)[:, :, 0]
        packed, zero = packed_blocks(weight, rows)
        name, b = weight.tensor, context.builder
        inputs = [context.real(kernel.operands[0].tensor), self.constant(context, f"{name}_q", packed)]
        inputs.append(self.constant(context, f"{name}_scale", weight.scale.reshape(-1)))
        inputs.append(None if zero is None else self.constant(context, f"{name}_zero_point", zero))
        bias = node.inputs[rule.bias] if rule.bias is not None and rule.bias < len(node.inputs) else ""
        inputs += [None, context.real(bias)] if bias else []  # between them an order of the inputs, which is not used
        numbers = {"K": rows.shape[1], "N": rows.shape[0], "bits": weight.dtype.bits}
        how = {**numbers, "block_size": weight.block.size, "accuracy_level": FLOAT32}
        domain, output = "com.microsoft", node.outputs[0]
        return b.op("MatMulNBits", *inputs, name=node.name, output=output, domain=domain, claim=True, **how)


def packed_blocks(weight: WeightTensor, rows: Array) -> tuple[Array, Array | None]:
    """Return a weight as MatMulNBits stores it: unsigned codes, the first one in the low half of a byte.

    `rows` are its codes, `[N, K]`; its blocks have float scales. The result is the codes `[N, B, bytes of a block]`,
    and the zero points `[N, bytes]` (None: all are 2^(bits - 1)), uint8.
    """
    grid, bits = weight.block, weight.dtype.bits
    assert grid is not None  # noqa: S101  (asked by the caller; narrows the type)
    middle, count = 1 << (bits - 1), weight.scale.shape[1]
    codes = np.full((len(rows), count * grid.size), middle, np.uint8)
    codes[:, : rows.shape[1]] = rows.astype(np.int64) + middle
    packed = _bytes(codes.reshape(len(rows), count, grid.size), bits)
    return packed, _bytes((grid.zero_point + middle).astype(np.uint8), bits) if np.any(grid.zero_point) else None


def _bytes(codes: Array, bits: int) -> Array:
    """Return codes as bytes along the last axis, two to the byte for four bits; an odd count is padded."""
    if bits == 8:
        return codes
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], 1), np.uint8)], axis=-1)
    return np.ascontiguousarray(codes[..., ::2] | (codes[..., 1::2] << 4))
