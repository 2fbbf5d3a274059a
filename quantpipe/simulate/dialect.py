"""The simulated graph: the integer model's own arithmetic, written in float32, with the numbers as graph inputs.

Every integer edge carries q - z as an integer-valued float32. Convolutions and products of such values are exact as
long as their sums stay below 2^24 (the plan bounds them per channel). Where they may not, operands are split into
digits (`digits.py`) and the sum continues in float64. Requantization repeats the hardware's own formula. So the
simulated graph does not approximate the realized one: it computes the same integers (docs/numerics.md, 4).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.arrays import EXACT_FLOAT32, along
from quantpipe.graph.build import ir_dtype
from quantpipe.graph.external_weights import is_mapped
from quantpipe.graph.session_options import EXACT_PAIRS, quantizes_itself
from quantpipe.graph.view import Node
from quantpipe.lowering import Context, Lowering
from quantpipe.lowering import fragments as fr
from quantpipe.lowering.fixedpoint import fixed_sum
from quantpipe.lowering.loop_writers import CarriedState, StepBody
from quantpipe.lowering.pairs import pair_excess
from quantpipe.lowering.products import window_sum
from quantpipe.lowering.run_scales import weigh_by_run, write_dynamic_cell
from quantpipe.oprules import Family
from quantpipe.plan import kernels_with_wide_pairs
from quantpipe.plan.weight_blocks import real_weight
from quantpipe.simulate import simulated_functions as functions
from quantpipe.simulate.arithmetic import Arithmetic
from quantpipe.simulate.digit_sums import digits_for
from quantpipe.simulate.float_weights import FloatWeight, are_many
from quantpipe.types import Accumulate, Average, Contract, Form, Kernel, Move, Product, RowTable, Sum, WeightTensor


class Simulated(Arithmetic):
    """Write the simulated form, and collect the values of the inputs that the graph declares.

    `weights` change with weight bits and thresholds only, `scalars` with everything else. `centred`: the integer
    weights of those values of `weights` that are integers less their zero points.
    """

    name = "simulated"
    integer_accumulators = True

    def __init__(self) -> None:
        super().__init__()
        self.centred: dict[str, WeightTensor | RowTable] = {}
        self.ops: Mapping[str, Lowering] = {
            **dict.fromkeys(fr.ops_of(Family.ACCUMULATE), self._accumulate),
            **dict.fromkeys(fr.TRANSPOSED, partial(functions.transposed, self)),
            **dict.fromkeys(fr.ops_of(Family.LOOKUP), partial(functions.lookup, self)),
            **dict.fromkeys(fr.ops_of(Family.ROWS), partial(functions.program, self)),
            **dict.fromkeys(fr.ops_of(Family.DEVICE), partial(functions.device, self)),
            **dict.fromkeys(fr.ops_of(Family.SUM), self._add),
            **dict.fromkeys(fr.ops_of(Family.PRODUCT), self._multiply),
            **dict.fromkeys(fr.ops_of(Family.AVERAGE), fr.by_plan(self._average, partial(functions.program, self))),
            **dict.fromkeys(fr.ops_of(Family.CLAMP), self._clamp),
            **dict.fromkeys(fr.ops_of(Family.MOVE), self._move),
        }

    @property
    def inexact(self) -> str | None:
        """Return None: the simulated graph is what others are compared with."""
        return None

    # --- conversions ------------------------------------------------------------------------------------------------

    def quantize(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Write clamp(rint(x / s), qmin - z, qmax - z)."""
        q = context.plan.quantizers[tensor]
        scale = self._scalar(context, f"{tensor}.scale", q.scale)
        steps = context.builder.op("Div", value, scale, name=f"{tensor}/steps")
        rounded = context.builder.op("Round", steps, name=f"{tensor}/round")
        return self._clip(context, rounded, q.low, q.high, name=tensor)

    def dequantize(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Write the real values of a stored tensor, float32."""
        scale = self._scalar(context, f"{tensor}.scale", context.plan.quantizers[tensor].scale)
        return context.builder.op("Mul", value, scale, name=f"{tensor}/real", output=tensor, claim=True)

    def narrow(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Write the narrowing of an accumulator to its stored integers."""
        return self._requantize(context, context.plan.narrowings[tensor], value, tensor)

    def widen(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Write the real values of an accumulator, float32."""
        scale = fr.along_channels(context.plan.raw_scales[tensor], context.graph, tensor)
        parameter = self._scalar(context, f"{tensor}.acc_scale", scale)
        single = self._single(context, value, tensor)
        return context.builder.op("Mul", single, parameter, name=f"{tensor}/real", output=tensor, claim=True)

    def rescale(self, context: Context, tensor: str, target: str, value: ir.Value) -> ir.Value:
        """Write a stored tensor in the scale of another one, `target`.

        `value` and the result are integers less their zero points, as float.
        """
        return functions.rescaled(self, context, tensor, target, value=value)

    def stored_constant(self, context: Context, tensor: str) -> ir.Value:
        """Write q - z of a constant that is stored like an activation, as float32."""
        q = context.plan.quantizers[tensor]
        centred = context.plan.constants[tensor].astype(np.float32) - np.float32(q.zero_point)
        return self._weight(context, f"{tensor}.q", centred)

    def session_options(self, context: Context) -> Mapping[str, str]:
        """Return the realized model's option if ops that quantize at run time follow it; else none."""
        graph, topology = context.graph, context.topology
        own = topology.dynamic or topology.cells or quantizes_itself(graph.model)
        return EXACT_PAIRS if own and kernels_with_wide_pairs(graph, topology, context.plan) else {}

    def weigh(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        """Write a node that multiplies floats by an integer weight, as float op on the real weight.

        One whose input gets a scale of each run has integers here, too.
        """
        weight = context.plan.weights[kernel.weight or ""]
        if node.name in context.topology.dynamic:
            write = partial(self._weight, context)
            return weigh_by_run(context, node, kernel, write=write, weight=partial(write, f"{weight.tensor}.integers"))
        real = real_weight(weight, context.topology.weight_of[weight.tensor].channel_axis)
        found = self._weight(context, f"{weight.tensor}.real", real)
        self.centred[found.name or ""] = weight
        inputs = [found if t == kernel.weight else context.real(t) for t in node.inputs]
        return context.builder.copy(node, inputs)[0]

    def dynamic_cell(self, context: Context, node: Node) -> Sequence[ir.Value]:
        """Write a recurrent layer with scales of each run: it has integer weights in this form, too."""
        return write_dynamic_cell(context, node, write=partial(self._weight, context))

    def multiply_state(self, context: Context, step: StepBody) -> ir.Value:
        """Write the product of a loop's state by an integer weight, with integral values in float32 or float64."""
        q, product = step.quantizer, step.product
        weight = context.plan.weights[product.weight]
        name = f"{product.weight}.centred"
        held = self._weight(context, name, FloatWeight(weight))
        self.centred[held.name or ""] = weight
        bounds = [self._scalar(context, f"{q.tensor}.{side}", np.float32(v)) for side, v in
                  (("low", q.low), ("high", q.high))]  # fmt: skip
        steps = step.op("Div", step.state, self._scalar(context, f"{q.tensor}.scale", q.scale), name="steps")
        state = step.op("Clip", step.op("Round", steps, name="round"), *bounds, name="clip")
        wide = product.bound >= EXACT_FLOAT32
        if wide:
            state = step.op("Cast", state, name="double", to=int(ir.DataType.DOUBLE))
            held = self._double(context, held, f"{name}/double")
        sums = step.op("MatMul", state, held, name="sums")
        if wide:
            sums = step.op("Cast", sums, name="single", to=int(ir.DataType.FLOAT))
        return step.op("Mul", sums, self._scalar(context, f"{product.node}.scale", product.scale), name="real")

    def store_state(self, context: Context, state: CarriedState) -> ir.Value:
        """Write the state that a step passes on: (q - z) · scale, with integral values in float32."""
        q = state.quantizer
        bounds = [self._scalar(context, f"{q.tensor}.{side}", np.float32(v)) for side, v in
                  (("low", q.low), ("high", q.high))]  # fmt: skip
        scale = self._scalar(context, f"{q.tensor}.scale", q.scale)
        steps = state.op("Round", state.op("Div", state.value, scale, name="steps"), name="round")
        return state.op("Mul", state.op("Clip", steps, *bounds, name="clip"), scale, name="real")

    def enter(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Write q - z of integers from outside the graph, as float32."""
        q = context.plan.quantizers[tensor]
        single = context.builder.op("Cast", value, name=f"{tensor}/single", to=int(ir.DataType.FLOAT))
        zero = self._scalar(context, f"{tensor}.zero", np.float32(q.zero_point))
        return context.builder.op("Sub", single, zero, name=f"{tensor}/centre", output=f"{tensor}_q")

    def leave(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Write q in the NumPy type that holds it."""
        q = context.plan.quantizers[tensor]
        zero = self._scalar(context, f"{tensor}.zero", np.float32(q.zero_point))
        shifted = context.builder.op("Add", value, zero, name=f"{tensor}/uncentre")
        dtype = int(ir_dtype(np.dtype(q.dtype.numpy).name))
        return context.builder.op("Cast", shifted, name=f"{tensor}/stored", output=f"{tensor}_stored", to=dtype)

    def rows(self, context: Context, table: RowTable, name: str, values: NDArray[Any]) -> ir.Value:
        """Declare a constant of a table, as it is stored; it changes with the table's bits only."""
        found = self._weight(context, name, values)
        self.centred[found.name or ""] = table
        return found

    # --- ops --------------------------------------------------------------------------------------------------------

    def _accumulate(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        plan = context.plan.kernels[node.name]
        if isinstance(plan, Contract):
            return functions.contract(self, context, node, kernel)
        assert isinstance(plan, Accumulate)  # noqa: S101  (the planner pairs families with plans; narrows the type)
        if plan.exact_in_float32:
            acc = self._float_accumulate(context, node, kernel, plan)
        else:
            acc = self._split_accumulate(context, node, kernel, plan)
        if plan.pairs is not None:
            acc = self._saturate_pairs(context, node, kernel, plan, acc=acc)
        acc = self._limit(context, acc, plan.limit, plan.bound, tensor=kernel.output, node=node)
        if plan.output is None:
            return acc
        return self._requantize(context, plan.output, acc, kernel.output, layout=node.outputs[0])

    def _add(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        plan = context.plan.kernels[node.name]
        assert isinstance(plan, Sum)  # noqa: S101
        if plan.scale is None:
            return self._add_free(context, kernel, plan)
        if plan.terms[0].fixed is not None:
            return self._add_fixed(context, kernel, plan)
        terms = [context.get(t.tensor, t.form) for t in plan.terms]
        if plan.bound >= EXACT_FLOAT32 or any(self._is_wide(t) for t in terms):
            terms = [self._double(context, t, f"{node.name}/term{n}") for n, t in enumerate(terms)]
        shifted = [
            self._shift(context, value, -term.shift, f"{node.name}/term{n}", rounding=plan.rounding)
            if term.shift
            else value
            for n, (term, value) in enumerate(zip(plan.terms, terms, strict=True))
        ]
        shifted = self._signed(context, plan, shifted)
        acc = context.builder.op(fr.SUM, *shifted, name=node.name, output=f"{node.outputs[0]}_acc")
        if self._is_wide(shifted[0]):
            self._wide.add(acc.name or "")
        acc = self._limit(context, acc, plan.limit, plan.bound, tensor=kernel.output, node=node)
        return acc if plan.output is None else self._requantize(context, plan.output, acc, kernel.output)

    def _signed(self, context: Context, plan: Sum, terms: list[ir.Value]) -> list[ir.Value]:
        """Negate subtracted terms before the addition."""
        found = []
        for number, value in enumerate(terms):
            wide = self._is_wide(value)
            negated = fr.signed(context, plan, number, value)
            if wide:
                self._wide.add(negated.name or "")
            found.append(negated)
        return found

    def _add_free(self, context: Context, kernel: Kernel, plan: Sum) -> ir.Value:
        """Write a free sum; the kernel adds the zero point before it rounds, so a tie goes to the even q, not q - z."""
        assert plan.output is not None  # noqa: S101
        operands = []
        for number, term in enumerate(plan.terms):
            zero = self._scalar(context, f"{term.tensor}.zero", np.float32(term.zero_point))
            value = context.get(term.tensor, term.form)
            if term.form is Form.QUANTIZED:
                value = context.builder.op("Add", value, zero, name=f"{kernel.node}/q{number}")
            operands.append(value)
        node = context.graph.by_name[kernel.node]
        total = fr.free_sum(context, node, plan, operands, constants=self._writer(context).constants)
        return self._centre(
            context, self._round(context, total, plan.output, kernel.output), plan.output, kernel.output
        )

    def _add_fixed(self, context: Context, kernel: Kernel, plan: Sum) -> ir.Value:
        """Write a fixed-point sum in int64; the device computes it in int32 with 64-bit products."""
        assert plan.output is not None  # noqa: S101
        writer, values = self._writer(context), []
        for number, term in enumerate(plan.terms):
            value = context.get(term.tensor, term.form)
            values.append(writer.cast(value, np.int64, f"{kernel.node}/term{number}/int64"))
        acc = fixed_sum(context, writer, kernel.node, plan, values=values)
        return self._store_fixed(context, plan.output, acc, kernel.output, layout=None)

    def _multiply(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        plan = context.plan.kernels[node.name]
        assert isinstance(plan, Product)  # noqa: S101
        operands = [context.get(o.tensor, Form.QUANTIZED) for o in kernel.operands]
        if plan.bound >= EXACT_FLOAT32:
            operands = [self._double(context, v, f"{node.name}/operand{n}") for n, v in enumerate(operands)]
        acc = context.builder.op("Mul", *operands, name=node.name, output=f"{node.outputs[0]}_acc")
        if plan.bound >= EXACT_FLOAT32:
            self._wide.add(acc.name or "")
        return self._requantize(context, plan.output, acc, kernel.output)

    def _average(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        plan = context.plan.kernels[node.name]
        assert isinstance(plan, Average)  # noqa: S101
        b, data = context.builder, context.get(kernel.operands[0].tensor, Form.QUANTIZED)
        output = f"{node.outputs[0]}_acc"
        if plan.bound >= EXACT_FLOAT32 and fr.is_window(node):
            acc = window_sum(context, self._writer(context), node, data)
            self._wide.add(acc.name or "")
            return self._requantize(context, plan.output, acc, kernel.output)
        if plan.bound >= EXACT_FLOAT32:
            data = self._double(context, data, f"{node.name}/data")
        if fr.is_window(node):
            ones, attributes = fr.window_ones(context, node)
            weight = b.constant(f"{node.name}/ones", ones.astype(np.float32))
            acc = b.op("Conv", data, weight, name=node.name, output=output, **attributes)
        else:
            axes = b.constant(f"{node.name}/axes", fr.map_axes(context, node))
            acc = b.op("ReduceSum", data, axes, name=node.name, output=output, keepdims=1)
            if self._is_wide(data):
                self._wide.add(acc.name or "")
        return self._requantize(context, plan.output, acc, kernel.output)

    def _move(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        inputs = fr.moved(context, node, kernel)
        result = context.builder.copy(node, inputs, [fr.stored_name(kernel)])[0]
        if inputs[0] is not None and self._is_wide(inputs[0]):
            self._wide.add(result.name or "")
        return result

    def _clamp(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        plan = context.plan.kernels[node.name]
        assert isinstance(plan, Move)  # noqa: S101
        value = context.operand(kernel.operands[0], kernel.output)
        zero = context.plan.quantizers[kernel.output].zero_point if kernel.form is Form.QUANTIZED else 0
        low = plan.low - zero if plan.low is not None else None
        high = plan.high - zero if plan.high is not None else None
        return self._clip(context, value, low, high, name=f"{kernel.output}/clamp", output=fr.stored_name(kernel))

    # --- sums of products --------------------------------------------------------------------------------------------

    def _float_accumulate(self, context: Context, node: Node, kernel: Kernel, plan: Accumulate) -> ir.Value:
        weight = context.plan.weights[plan.weight]
        data = context.get(kernel.operands[0].tensor, Form.QUANTIZED)
        inputs = [data, self._float_weight(context, weight, data)]
        if plan.bias is not None:
            inputs.append(self._weight(context, f"{node.name}.bias", plan.bias.astype(np.float32)))
        return context.builder.copy(node, inputs, [f"{node.outputs[0]}_acc"])[0]

    def _float_weight(self, context: Context, weight: WeightTensor, data: ir.Value) -> ir.Value:
        """Write q_w - z_w as float32, for a sum over `data`.

        Weights in a file are bound as they are and cast in every run. So a model whose weights do not fit into memory
        needs one of them at a time. Many weights in memory are fed with every run: no session holds floats of them,
        and a run makes them when it reaches their data.
        """
        fed = not is_mapped(weight.values) and are_many(context.plan.weights.values())
        if not fed and not is_mapped(weight.values):
            found = self._weight(context, f"{weight.tensor}.q", FloatWeight(weight))
            self.centred[found.name or ""] = weight
            return found
        write = self._scalar if fed else self._weight
        stored = write(context, f"{weight.tensor}.{weight.values.dtype}", weight.values)
        if fed:
            stored = self._after(context, stored, data, weight)
        real = context.builder.op("Cast", stored, name=f"{weight.tensor}.q", to=int(ir.DataType.FLOAT))
        if not weight.has_zero_point:
            return real
        axis = weight.axis or 0
        zero = along(weight.zero_point.astype(np.float32), axis, weight.values.ndim)
        offset = self._weight(context, f"{weight.tensor}.zero", zero)
        return context.builder.op("Sub", real, offset, name=f"{weight.tensor}.centred")

    def _split_accumulate(self, context: Context, node: Node, kernel: Kernel, plan: Accumulate) -> ir.Value:
        """Return the same sum by digits, for sums that float32 cannot hold; the result is float64."""
        b, q = context.builder, context.plan.quantizers[kernel.operands[0].tensor]
        weight = context.plan.weights[plan.weight]
        axis, peak = context.topology.weight_of[weight.tensor].channel_axis, max(abs(q.low), abs(q.high))
        of_data, of_weight = digits_for(weight, axis, peak, node.name)
        data = of_data.write(b, context.get(q.tensor, Form.QUANTIZED), f"{node.name}/data")
        weights = of_weight.write(b, self._float_weight(context, weight, data[0]), f"{node.name}/weight")
        acc: ir.Value | None = None
        for pair in itertools.product(data, weights):
            part = b.copy(node, pair, [f"{node.outputs[0]}_part"])[0]
            wide = b.op("Cast", part, name=f"{node.name}/double", to=int(ir.DataType.DOUBLE))
            acc = wide if acc is None else b.op("Add", acc, wide, name=f"{node.name}/parts")
        assert acc is not None  # noqa: S101  (there is always a digit; narrows the type)
        if plan.bias is not None:
            bias = fr.along_channels(plan.bias.astype(np.float64), context.graph, node.outputs[0])
            acc = b.op("Add", acc, self._weight(context, f"{node.name}.bias64", bias), name=f"{node.name}/bias")
        self._wide.add(acc.name or "")
        return acc

    def _saturate_pairs(
        self, context: Context, node: Node, kernel: Kernel, plan: Accumulate, *, acc: ir.Value
    ) -> ir.Value:
        """Subtract the loss of pairs of products to saturation, on CPUs that add them in int16."""
        b, q = context.builder, context.plan.quantizers[kernel.operands[0].tensor]
        centred = context.get(q.tensor, Form.QUANTIZED)
        excess = pair_excess(
            context,
            lambda n, v: self._weight(context, n, np.asarray(v)),
            node,
            plan,
            centred=centred,
            zero_point=q.zero_point,
        )
        if self._is_wide(acc):
            excess = self._double(context, excess, f"{node.name}/pairs")
        result = b.op("Sub", acc, excess, name=f"{node.name}/less_pairs", output=f"{node.outputs[0]}_paired")
        if self._is_wide(acc):
            self._wide.add(result.name or "")
        self.limits[kernel.output] = (acc.name or "", result.name or "")
        return result
