"""The base of the realized forms: stored integers, quantized at the inputs and dequantized at the outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.errors import HardwareError
from quantpipe.graph.build import ir_dtype
from quantpipe.graph.external_weights import is_mapped
from quantpipe.graph.session_options import EXACT_PAIRS, REAL_ACTIVATIONS
from quantpipe.graph.view import Node
from quantpipe.lowering import Context
from quantpipe.lowering import fragments as fr
from quantpipe.lowering.loop_writers import CarriedState, StepBody
from quantpipe.lowering.run_scales import weigh_by_run, write_dynamic_cell
from quantpipe.plan import kernels_with_wide_pairs
from quantpipe.realize.blocks import dequantized
from quantpipe.realize.loop_bodies import multiply_state, store_state
from quantpipe.realize.stored_constants import StoredConstants
from quantpipe.types import Accumulate, DType, Form, Kernel, Move, Quantizer, Requantize, RowTable, TableLayout


class Stored(StoredConstants):
    """Write conversions and data movement on stored integers; a base for the realized forms."""

    without_options = False
    """Whether onnxruntime runs int8 tensors of the form without a session option for them."""

    def __init__(self) -> None:
        super().__init__()
        self._real_weights: dict[str, ir.Value] = {}

    @property
    def inexact(self) -> str | None:
        """Return None: the form rejects plans that it cannot express exactly."""
        return None

    def quantize(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Write the stored integers of a real tensor."""
        q = context.plan.quantizers[tensor]
        return self.store(context, value, q, q.qmin, high=q.qmax)

    def dequantize(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Write the real values of a stored tensor, float32."""
        q = context.plan.quantizers[tensor]
        unsigned = self.without_options and fr.becomes_unsigned(context, tensor)
        if unsigned or fr.must_stay_real(context, tensor):
            return self._multiplied(context, q, value)
        return context.builder.op(
            "DequantizeLinear", value, *self.grid(context, q), name=f"{tensor}/dequantize", output=tensor, claim=True
        )

    def _multiplied(self, context: Context, q: Quantizer, value: ir.Value) -> ir.Value:
        """Write (q - z)·s as Cast, Sub, Mul: the same numbers as DequantizeLinear, without its side effect."""
        b, tensor = context.builder, q.tensor
        real = b.op("Cast", value, name=f"{tensor}/cast", to=int(ir.DataType.FLOAT))
        if q.zero_point:
            zero = self.constant(context, f"{tensor}_zero_float", np.float32(q.zero_point))
            real = b.op("Sub", real, zero, name=f"{tensor}/centre")
        scale = self.grid(context, q)[0]
        return b.op("Mul", real, scale, name=f"{tensor}/dequantize", output=tensor, claim=True)

    def rescale(self, context: Context, tensor: str, target: str, value: ir.Value) -> ir.Value:
        """Write a stored tensor in the scale of another one, `target`, as stored integers."""
        source, out = context.plan.quantizers[tensor], context.plan.quantizers[target]
        name = f"{tensor}/to/{target}"
        real = context.builder.op("DequantizeLinear", value, *self.grid(context, source), name=f"{name}/dequantize")
        return self.store(context, real, out, out.qmin, high=out.qmax)

    def stored_constant(self, context: Context, tensor: str) -> ir.Value:
        """Write the integers of a constant that is stored like an activation."""
        return self.constant(context, f"{tensor}_q", context.plan.constants[tensor])

    def session_options(self, context: Context) -> Mapping[str, str]:
        """Return the options without which a default session computes something else; none where it does not.

        Of weights in blocks it quantizes the activations to 8 bits; on x86 without VNNI pairs of products saturate.
        """
        topology = context.topology
        exact = kernels_with_wide_pairs(context.graph, topology, context.plan)
        blocks = len(topology.weighted) > len(topology.dynamic)
        return {**(REAL_ACTIVATIONS if blocks else {}), **(EXACT_PAIRS if exact else {})}

    def enter(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Return a graph input as it is."""
        return value

    def leave(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Return a graph output as it is."""
        return value

    def store(self, context: Context, value: ir.Value, q: Quantizer, low: int, *, high: int) -> ir.Value:
        """Write QuantizeLinear, and an integer clip to `low`..`high` if tighter than the storage type."""
        tight = low > q.dtype.qmin or high < q.dtype.qmax
        output = f"{q.tensor}_wide" if tight else f"{q.tensor}_q"
        stored = context.builder.op(
            "QuantizeLinear", value, *self.grid(context, q), name=f"{q.tensor}/quantize", output=output
        )
        return self.clip(context, stored, q, low, high=high) if tight else stored

    def clip(self, context: Context, stored: ir.Value, q: Quantizer, low: int, *, high: int) -> ir.Value:
        """Write a clip of stored integers to `low`..`high`; 16-bit ones are clipped in int32."""
        long = q.dtype.bits == 16  # onnxruntime clips no 16-bit integers
        dtype = np.dtype(np.int32) if long else q.dtype.numpy
        bounds = [
            self.constant(context, f"{q.tensor}_{side}", np.asarray(bound, dtype))
            for side, bound in (("low", low), ("high", high))
        ]
        if long:
            wide = self._cast(context, stored, DType.INT32, f"{q.tensor}/int32")
            clipped = context.builder.op("Clip", wide, *bounds, name=f"{q.tensor}/clip")
            return self._cast(context, clipped, q.dtype, f"{q.tensor}/narrow", output=f"{q.tensor}_q")
        return context.builder.op("Clip", stored, *bounds, name=f"{q.tensor}/clip", output=f"{q.tensor}_q")

    def move(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        """Write the op itself, on stored integers; a pad value of zero becomes the zero point."""
        inputs = fr.moved(context, node, kernel)
        q = context.plan.quantizers[kernel.output]
        long = q.dtype.bits == 16  # onnxruntime pools and pads no 16-bit integers; float32 holds them exactly
        if long:
            ports = {o.port for o in kernel.operands}
            inputs = [
                self._cast(context, v, DType.FLOAT32, f"{node.name}/float{p}") if p in ports and v is not None else v
                for p, v in enumerate(inputs)
            ]
        if node.op in PADS and node.attr("mode", "constant") == "constant":
            while len(inputs) < 3:
                inputs.append(None)
            zero = np.float32(q.zero_point)
            inputs[2] = self.constant(context, f"{q.tensor}_pad", zero) if long else self.grid(context, q)[1]
        name = fr.stored_name(kernel)
        if node.op in fr.GLOBAL_MAXIMUM:
            moved = fr.global_maximum(context, node, inputs[0], f"{name}_float" if long else name)
        else:
            moved = context.builder.copy(node, inputs, [f"{name}_float" if long else name])[0]
        return self._cast(context, moved, q.dtype, f"{node.name}/int16", output=name) if long else moved

    def clamp(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        """Write Relu or Clip that no producer swallowed: a clip on stored integers."""
        plan = context.plan.kernels[node.name]
        assert isinstance(plan, Move)  # noqa: S101  (the planner pairs families with plans; narrows the type)
        if kernel.form is not Form.QUANTIZED:
            raise no_accumulators(node.name)
        q = context.plan.quantizers[kernel.output]
        stored = context.operand(kernel.operands[0], kernel.output)
        low = q.qmin if plan.low is None else plan.low
        high = q.qmax if plan.high is None else plan.high
        return self.clip(context, stored, q, low, high=high)

    def rows(self, context: Context, table: RowTable, name: str, values: NDArray[Any]) -> ir.Value:
        """Write a constant of a table; integers of 4 bits two to the byte, and cast to a byte each at load.

        The integers of a weight are written once: transposed for the table, which the runtime does at load.
        """
        tied = next((t.weight for t in context.topology.tables if t.tensor == table.tensor), None)
        if tied is not None and name == f"{table.tensor}_q" and table.dtype.bits > 4:
            stored = self.weight(context, context.plan.weights[tied])
            if tied == table.tensor:
                return stored
            return context.builder.op("Transpose", stored, name=f"{table.tensor}/turned", output=name, perm=[1, 0])
        small = table.layout is TableLayout.BESIDE and values.dtype.itemsize == 1 and table.dtype.bits == 4
        if not small or is_mapped(values):
            return self.constant(context, name, values)
        key = (name, values.shape, table.digest)
        if key not in self._packed:
            packed = ir.tensor(values.astype(ir_dtype(table.dtype).numpy()))
            stored = context.builder.constant(f"{table.tensor}_q4", packed)
            byte = DType.UINT8 if table.offset is not None else DType.INT8
            self._packed[key] = self._cast(context, stored, byte, f"{table.tensor}/unpack", output=name)
        return self._packed[key]

    def weigh(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        """Write a node that multiplies floats by an integer weight: the float op after DequantizeLinear.

        One whose input gets a scale of each run has integers instead.
        """
        if node.name in context.topology.dynamic:
            weight = context.plan.weights[kernel.weight or ""]
            return weigh_by_run(
                context,
                node,
                kernel,
                write=partial(self.constant, context),
                weight=partial(self.weight, context, weight),
            )
        inputs = [self.real_weight(context, t) if t == kernel.weight else context.real(t) for t in node.inputs]
        return context.builder.copy(node, inputs)[0]

    def dynamic_cell(self, context: Context, node: Node) -> Sequence[ir.Value]:
        """Write a recurrent layer with scales of each run: it has integer weights in this form, too."""
        return write_dynamic_cell(context, node, write=partial(self.constant, context))

    def multiply_state(self, context: Context, step: StepBody) -> ir.Value:
        """Write the product of a loop's state by an integer weight."""
        return multiply_state(self, context, step)

    def store_state(self, context: Context, state: CarriedState) -> ir.Value:
        """Write the state that a step of a loop passes to the next one."""
        return store_state(self, context, state)

    def real_weight(self, context: Context, tensor: str) -> ir.Value:
        """Write DequantizeLinear of a weight whose blocks have float scales."""
        if tensor not in self._real_weights:
            weight = context.plan.weights[tensor]
            axis = context.topology.weight_of[tensor].channel_axis
            self._real_weights[tensor] = dequantized(context, weight, axis)
        return self._real_weights[tensor]


PADS = frozenset({"Pad"})
"""Ops that bring in a constant of their own, which must be the zero point in stored form."""


def kernels_only(output: Requantize, q: Quantizer, where: str) -> None:
    """Reject results that onnxruntime's integer kernels cannot make: they store 8 bits and narrow in one way.

    Raises HardwareError.
    """
    if q.dtype.bits > 8:
        raise HardwareError(
            f"it stores {q.dtype}. onnxruntime has no 16-bit integer kernels for the qdq and qoperator forms and "
            "would compute in float32; use realize=integer",
            stage="realize",
            where=where,
        )
    if not output.is_kernel_arithmetic:
        raise HardwareError(
            f"this hardware requantizes by {output.kind} with rounding {output.rounding}, which the qdq and qoperator "
            "forms cannot express; use realize=integer",
            stage="realize",
            where=where,
        )


def exact_pairs_only(plan: Accumulate) -> None:
    """Reject an accumulating kernel whose pairs of products can saturate, with a HardwareError.

    The kernels of these forms saturate on some CPUs and not on others, so that equality could not be shown here.
    """
    if plan.pairs is not None:
        raise HardwareError(
            f"{len(plan.pairs.owner)} pairs of its products can saturate in int16 on avx2. In the qdq and qoperator "
            "forms this depends on the CPU, so another CPU cannot verify it. Use realize=integer to see the effect, or "
            "hardware.weights.reduce_range=true, with which no pair saturates",
            stage="realize",
            where=plan.node,
        )


def refuse_without_kernel(context: Context, kernel: Kernel, plan: Accumulate) -> None:
    """Reject int8 activations times uint8 weights, with a HardwareError.

    onnxruntime has no such kernel, and would compute the qdq form in float32.
    """
    data, weight = context.plan.quantizers[kernel.operands[0].tensor], context.plan.weights[plan.weight]
    if data.dtype.signed and not weight.dtype.signed:
        raise HardwareError(
            f"it multiplies {data.dtype} activations by {weight.dtype} weights, for which onnxruntime has no kernel "
            "in the qdq and qoperator forms; use realize=integer",
            stage="realize",
            where=plan.node,
        )


def no_accumulators(where: str) -> HardwareError:
    """Return the message of a form that cannot express accumulators between ops."""
    return HardwareError(
        "this hardware passes accumulators from op to op, which the qdq and qoperator forms cannot express; "
        "use realize=integer",
        stage="realize",
        where=where,
    )
