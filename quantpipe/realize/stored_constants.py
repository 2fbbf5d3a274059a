"""Constants of the realized forms: scales and zero points, integer weights, each written once per name and value."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.graph.build import ir_dtype
from quantpipe.graph.external_weights import is_mapped
from quantpipe.lowering import Context
from quantpipe.realize.blocks import expanded, is_turned
from quantpipe.types import DType, Quantizer, WeightTensor


class StoredConstants:
    """Write constants, and keep what is written."""

    def __init__(self) -> None:
        self._packed: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}
        self._constants: dict[str, tuple[ir.Value, NDArray[Any]]] = {}

    def constant(self, context: Context, name: str, array: NDArray[Any] | np.generic) -> ir.Value:
        """Write an initializer, once per name and value.

        The value counts, because names made from a node and from a tensor may be alike.
        """
        value = np.asarray(array)
        found, existing = self._constants.get(name, (None, None))
        if found is not None and existing is not None and _same(existing, value):
            return found
        constant = context.builder.constant(name, value)
        self._constants.setdefault(name, (constant, value))
        return constant

    def grid(self, context: Context, q: Quantizer) -> tuple[ir.Value, ir.Value]:
        """Return scale and zero point of a stored tensor, as constants."""
        zero = np.asarray(q.zero_point, q.dtype.numpy)
        return (
            self.constant(context, f"{q.tensor}_scale", q.scale),
            self.constant(context, f"{q.tensor}_zero_point", zero),
        )

    def _cast(
        self, context: Context, value: ir.Value, dtype: DType, name: str, *, output: str | None = None
    ) -> ir.Value:
        return context.builder.op("Cast", value, name=name, output=output, to=int(ir_dtype(dtype)))

    def weight(self, context: Context, weight: WeightTensor, values: NDArray[Any] | None = None) -> ir.Value:
        """Write integer weights; `values`: the same weights in another layout.

        Four and two bits are stored as such, two or four to the byte, and cast to a byte each, which the runtime does
        once at load. Its integer kernels read neither, and a DequantizeLinear of these would leave the convolution
        after it in float.
        Weights in a file stay there, a byte each.
        """
        array = weight.values if values is None else values
        if weight.block is not None and (turned := is_turned(array, weight)) is not None:
            return self._in_blocks(context, weight, turned)
        if weight.dtype.bits > 4 or is_mapped(array):
            return self.constant(context, f"{weight.tensor}_q", array)
        key = (weight.tensor, array.shape, array.tobytes())  # tied weights may be wanted in two layouts
        if key not in self._packed:
            packed = ir.tensor(array.astype(ir_dtype(weight.dtype).numpy()))
            stored = context.builder.constant(f"{weight.tensor}_q{weight.dtype.bits}", packed)
            byte = DType.INT8 if weight.dtype.signed else DType.UINT8
            self._packed[key] = self._cast(
                context, stored, byte, f"{weight.tensor}/unpack", output=f"{weight.tensor}_q"
            )
        return self._packed[key]

    def _in_blocks(self, context: Context, weight: WeightTensor, turned: bool) -> ir.Value:
        key = (weight.tensor, weight.values.shape, bytes([turned]))
        if key not in self._packed:
            axis = context.topology.weight_of[weight.tensor].channel_axis

            def write(name: str, value: Any) -> ir.Value:
                return self.constant(context, name, value)

            self._packed[key] = expanded(context, write, weight, channel_axis=axis, turned=turned)
        return self._packed[key]


def _same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a is b or (a.dtype == b.dtype and np.array_equal(a, b))
