"""Write the arithmetic of the simulated graph.

It is requantization, shifts, clips and overflow on integer-valued floats, in float32 where that is exact and in float64
where it is not. The numbers of the plan are graph inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from quantpipe.arrays import EXACT_FLOAT32, Array
from quantpipe.graph.view import Node
from quantpipe.lowering import Context
from quantpipe.lowering import fragments as fr
from quantpipe.lowering.fixedpoint import multiplied
from quantpipe.lowering.integers import IntegerWriter, round_real
from quantpipe.simulate.float_weights import BoundWeights, FloatWeight
from quantpipe.types import Limit, Overflow, Requantize, RequantizeKind, Rounding, WeightTensor

Parameters = dict[str, Array]


class Arithmetic:
    """Write arithmetic on integer-valued floats; a base for the simulated form.

    It remembers which values are in float64.
    """

    def __init__(self) -> None:
        self.weights = BoundWeights()
        self.scalars: Parameters = {}
        self.limits: dict[str, tuple[str, str]] = {}
        """Tensor -> names of its accumulator before and after overflow, where overflow is possible."""
        self._declared: dict[str, ir.Value] = {}
        self._wide: set[str] = set()

    def _limit(
        self, context: Context, acc: ir.Value, limit: Limit | None, bound: int, *, tensor: str, node: Node
    ) -> ir.Value:
        """Write exact sums as the accumulator's type holds them; both are recorded, to be counted.

        v - 2^b·floor((v + 2^(b-1)) / 2^b) or a clip, in floats that hold every step exactly. (Casts would wrap too, but
        the runtime merges a chain of casts into one, and a float beyond the last type wraps or not as the CPU likes.)
        """
        if limit is None:
            return acc
        b, half, output = context.builder, 1 << (limit.width - 1), f"{node.outputs[0]}_limited"
        if bound + half >= EXACT_FLOAT32 or limit.width > 24:
            acc = self._double(context, acc, f"{tensor}/whole")
        wide = self._is_wide(acc)
        if limit.overflow is Overflow.SATURATE:
            result = self._clip(context, acc, limit.qmin, limit.qmax, name=f"{tensor}/accumulator", output=output)
        else:
            dtype: type[Any] = np.float64 if wide else np.float32
            suffix = "64" if wide else ""
            names = {"half": half, "turn": 2 * half, "part": 0.5 / half}
            constant = {k: self._scalar(context, f"{k}_{half}{suffix}", dtype(v)) for k, v in names.items()}
            above = b.op("Add", acc, constant["half"], name=f"{tensor}/above")
            turns = b.op("Floor", b.op("Mul", above, constant["part"], name=f"{tensor}/parts"), name=f"{tensor}/turns")
            beyond = b.op("Mul", turns, constant["turn"], name=f"{tensor}/beyond")
            result = b.op("Sub", acc, beyond, name=f"{tensor}/wrapped", output=output)
            if wide:
                self._wide.add(result.name or "")
        self.limits[tensor] = (acc.name or "", result.name or "")
        return result

    def _requantize(
        self, context: Context, r: Requantize, acc: ir.Value, tensor: str, *, layout: str | None = None
    ) -> ir.Value:
        """`layout`: the tensor whose channel axis a per-channel multiplier follows (`tensor` when not given)."""
        stored = self._narrowed(context, r, acc, tensor, layout=layout)
        return (
            stored if r.by_channel is None else self._clip_channels(context, r, stored, tensor, layout=layout or tensor)
        )

    def _clip_channels(self, context: Context, r: Requantize, value: ir.Value, tensor: str, *, layout: str) -> ir.Value:
        """Return each channel of q - z between bounds of its own."""
        for bound, op, side in zip(r.by_channel or (), ("Max", "Min"), ("low", "high"), strict=True):
            centred = fr.along_channels((bound - r.zero_point).astype(np.float32), context.graph, layout)
            parameter = self._scalar(context, f"{tensor}.channel_{side}", centred)
            value = context.builder.op(op, value, parameter, name=f"{tensor}/channel_{side}")
        return value

    def _narrowed(self, context: Context, r: Requantize, acc: ir.Value, tensor: str, *, layout: str | None) -> ir.Value:
        b, low, high = context.builder, r.low - r.zero_point, r.high - r.zero_point
        if r.kind is RequantizeKind.SHIFT:
            wide = self._is_wide(acc)
            value = self._shift(context, acc, r.shift, tensor, rounding=r.rounding)
            clipped = self._clip(context, value, low, high, name=tensor, output=f"{tensor}/wide" if wide else None)
            return self._single(context, clipped, tensor, f"{tensor}_q") if wide else clipped
        if r.kind is RequantizeKind.FIXED_POINT:
            wide_acc = self._writer(context).cast(acc, np.int64, f"{tensor}/int64")
            return self._store_fixed(context, r, wide_acc, tensor, layout=layout)
        multiplier = fr.along_channels(r.multiplier, context.graph, layout or tensor)
        scaled = b.op(
            "Mul",
            self._single(context, acc, tensor),
            self._scalar(context, f"{tensor}.multiplier", multiplier),
            name=f"{tensor}/scaled",
        )
        if not r.zero_first:
            return self._clip(context, self._round(context, scaled, r, tensor), low, high, name=tensor)
        zero = self._scalar(context, f"{tensor}.zero", np.float32(r.zero_point))
        offset = b.op("Add", scaled, zero, name=f"{tensor}/offset")
        return self._centre(context, self._round(context, offset, r, tensor), r, tensor)

    def _store_fixed(
        self, context: Context, r: Requantize, acc: ir.Value, tensor: str, *, layout: str | None
    ) -> ir.Value:
        """Return an int64 accumulator times a fixed-point number, between its bounds, as q - z in float32."""
        writer = self._writer(context)
        scaled = multiplied(context, writer, r, acc, layout=layout or tensor, name=tensor)
        clipped = writer.clip(scaled, r.low - r.zero_point, r.high - r.zero_point, tensor)
        return writer.cast(clipped, np.float32, f"{tensor}/single", f"{tensor}_q")

    def _round(self, context: Context, value: ir.Value, r: Requantize, name: str) -> ir.Value:
        return round_real(context.builder, self._writer(context).constants, value, Rounding(r.rounding), name=name)

    def _writer(self, context: Context) -> IntegerWriter:
        return IntegerWriter(context.builder, lambda name, value: self._scalar(context, name, value))

    def _centre(self, context: Context, rounded: ir.Value, r: Requantize, tensor: str) -> ir.Value:
        """Clip q, then take the zero point off."""
        clipped = self._clip(context, rounded, r.low, r.high, name=f"{tensor}/q", output=f"{tensor}/clipped")
        zero = self._scalar(context, f"{tensor}.zero", np.float32(r.zero_point))
        return context.builder.op("Sub", clipped, zero, name=f"{tensor}/centre", output=f"{tensor}_q")

    def _shift(self, context: Context, value: ir.Value, shift: int, name: str, *, rounding: str) -> ir.Value:
        """Write v / 2^shift, rounded: (v + 2^(shift-1)) >> shift is floor(v·2^-shift + 1/2), and so on.

        Such quotients are exact in float. shift <= 0 multiplies by 2^-shift; then nothing is left to round.
        """
        b, wide = context.builder, self._is_wide(value)
        dtype: type[Any] = np.float64 if wide else np.float32
        suffix = "64" if wide else ""
        factor = self._scalar(context, f"{name}.shift{suffix}", dtype(2.0**-shift))
        scaled = b.op("Mul", value, factor, name=f"{name}/shifted")
        if rounding == Rounding.HALF_EVEN:
            result = b.op("Round", scaled, name=f"{name}/round")
        else:
            added = 0.5 if shift > 0 and rounding != Rounding.FLOOR else 0.0
            half = self._scalar(context, f"{name}.half{suffix}", dtype(added))
            size = b.op("Abs", scaled, name=f"{name}/size") if rounding == Rounding.HALF_AWAY else scaled
            result = b.op("Floor", b.op("Add", size, half, name=f"{name}/half"), name=f"{name}/floor")
            if rounding == Rounding.HALF_AWAY:
                result = b.op("Mul", result, b.op("Sign", scaled, name=f"{name}/sign"), name=f"{name}/away")
        if wide:
            self._wide.add(result.name or "")
        return result

    def _clip(
        self,
        context: Context,
        value: ir.Value,
        low: int | None,
        high: int | None,
        *,
        name: str,
        output: str | None = None,
    ) -> ir.Value:
        wide = self._is_wide(value)
        dtype: type[Any] = np.float64 if wide else np.float32
        bounds = [
            self._scalar(context, f"{name}.{side}{64 if wide else ''}", dtype(bound)) if bound is not None else None
            for side, bound in (("low", low), ("high", high))
        ]
        result = context.builder.op("Clip", value, *bounds, name=f"{name}/clip", output=output or f"{name}_q")
        if wide:
            self._wide.add(result.name or "")
        return result

    # --- float64 where float32 would not be exact -------------------------------------------------------------------

    def _is_wide(self, value: ir.Value) -> bool:
        return value.name in self._wide

    def _double(self, context: Context, value: ir.Value, name: str) -> ir.Value:
        if self._is_wide(value):
            return value
        result = context.builder.op("Cast", value, name=f"{name}/double", to=int(ir.DataType.DOUBLE))
        self._wide.add(result.name or "")
        return result

    def _single(self, context: Context, value: ir.Value, name: str, output: str | None = None) -> ir.Value:
        if not self._is_wide(value):
            return value
        return context.builder.op("Cast", value, name=f"{name}/single", output=output, to=int(ir.DataType.FLOAT))

    # --- parameters -------------------------------------------------------------------------------------------------

    def _after(self, context: Context, stored: ir.Value, data: ir.Value, weight: WeightTensor) -> ir.Value:
        """Write a weight whose shape is computed from `data`: the runtime would convert all of them first otherwise."""
        b, name = context.builder, weight.tensor
        batch = b.op("Shape", data, name=f"{name}/batch", start=0, end=1)
        nothing = b.op("Mul", batch, self._scalar(context, "none", np.zeros(1, np.int64)), name=f"{name}/none")
        shape = self._scalar(context, f"{name}.shape", np.array(weight.values.shape, np.int64))
        same = b.op("Add", shape, nothing, name=f"{name}/shape")
        return b.op("Reshape", stored, same, name=f"{name}/after")

    def _scalar(self, context: Context, name: str, value: object) -> ir.Value:
        array = np.asarray(value)
        found = self._declared.get(name)
        known = self.scalars.get(found.name or "") if found is not None else None
        if found is not None and known is not None and known.dtype == array.dtype and np.array_equal(known, array):
            return found
        declared = self._declare(context, name, array)
        self.scalars[declared.name or name] = array
        return declared

    def _weight(self, context: Context, name: str, value: Array | FloatWeight) -> ir.Value:
        found = self._declared.get(name)
        if found is not None and self.weights.equals(found.name or "", value):
            return found
        declared = self._declare(context, name, value)
        self.weights.put(declared.name or name, value)
        return declared

    def _declare(self, context: Context, name: str, value: Array | FloatWeight) -> ir.Value:
        """Return a graph input, declared once per name and value (node names and tensor names may be equal)."""
        declared = context.builder.input(name, value.dtype.name, value.shape)
        self._declared.setdefault(name, declared)
        return declared
