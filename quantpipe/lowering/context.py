"""What the writers of a graph share: the tensors in the forms that their readers want, and what a dialect writes.

A tensor is real, stored integers, or an accumulator. A `Dialect` is a table: op type -> function. It reads numbers from
the plan and adds none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.graph.build import GraphBuilder
from quantpipe.graph.view import Graph, Node
from quantpipe.lowering.half import as_half, cast_half, cast_single, round_to_brain
from quantpipe.lowering.loop_writers import CarriedState, StepBody
from quantpipe.types import Form, HardwareSpec, Kernel, Operand, QuantPlan, RowTable, Topology

OPSET = 17
IR_VERSION = 9
NEWER_OPSET = 21
NEWER_IR_VERSION = 10
"""QuantizeLinear stores 16-bit integers, and Cast reads 4-bit ones, from here on."""
SHORT_OPSET = 25
SHORT_IR_VERSION = 13
"""Cast reads 2-bit integers from here on."""


def opset_for(spec: HardwareSpec) -> int:
    """Return the opset that models written for a device may need.

    Float nodes are copied as they are, so the model itself has to be of that opset.
    """
    types = {t for signatures in spec.declared.values() for s in signatures for t in (*s.inputs, *s.outputs)}
    stored = {t.bits for t in types if not t.is_float and t.bits < spec.accumulator.dtype.bits}
    coded = spec.weights.block is not None
    if 2 in stored:
        return SHORT_OPSET
    return NEWER_OPSET if coded or stored & {4, 16} else OPSET


@dataclass(frozen=True, eq=False)
class Rendered:
    """A written graph. `integers`: float tensor -> name of the value that holds its integers in `model`.

    `inside`: output in half precision -> name of the float32 value that is cast to it. `inexact`: why the form does not
    compute the plan's numbers; None where it does.
    """

    model: ir.Model = field(repr=False)
    integers: Mapping[str, str]
    inside: Mapping[str, str] = field(default_factory=dict)
    inexact: str | None = None


class Dialect(Protocol):
    """Declare how one output form writes things; methods append nodes to `context.builder` and return the result."""

    name: str
    ops: Mapping[str, Lowering]
    integer_accumulators: bool
    """Whether a tensor in RAW form holds integers (else the real result itself)."""

    def quantize(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Write the stored integers of a real tensor."""

    def dequantize(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Write the real values of a stored tensor; the result must be named `tensor`."""

    def narrow(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Write the stored integers of an accumulator."""

    def widen(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Write the real values of an accumulator; the result must be named `tensor`."""

    def rescale(self, context: Context, tensor: str, target: str, value: ir.Value) -> ir.Value:
        """Write integers stored at the scale of `tensor` at the scale of `target`: Q(DQ(q)) in float32."""

    def stored_constant(self, context: Context, tensor: str) -> ir.Value:
        """Write a constant that is read as data, in stored form."""

    def rows(self, context: Context, table: RowTable, name: str, values: NDArray[Any]) -> ir.Value:
        """Write a constant of a table of which rows are looked up: its integers, scales or offsets."""

    def weigh(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        """Write a node that multiplies floats by an integer weight; the result must have the tensor's name."""

    def dynamic_cell(self, context: Context, node: Node) -> Sequence[ir.Value]:
        """Write a recurrent layer whose input and state get scales of each run; results have the tensors' names."""

    def multiply_state(self, context: Context, step: StepBody) -> ir.Value:
        """Write the product of a loop's state by an integer weight into its body; floats, float32.

        A realized form names its nodes `quantize`, `clip` (where there is one), `sums` and `real`: the comparison shows
        what these compute (`show_loops.py`).
        """

    def store_state(self, context: Context, state: CarriedState) -> ir.Value:
        """Write the result of a loop's step as it is stored for the next; floats, float32.

        A realized form names its nodes `quantize` and `real`.
        """

    def enter(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Write stored integers of the plan's type, from outside the graph, as this form holds them."""

    def leave(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Write stored integers of this form in the plan's type."""

    @property
    def inexact(self) -> str | None:
        """Return why the written model does not compute the plan's numbers; None where it does."""

    def session_options(self, context: Context) -> Mapping[str, str]:
        """Return the options without which a session would compute other numbers than the plan.

        The model carries them.
        """


class Context:
    """Hold a lowering's inputs: the graph, the plan, the builder, and every tensor in the requested form."""

    def __init__(self, graph: Graph, topology: Topology, plan: QuantPlan, dialect: Dialect) -> None:
        names = {t for n in graph.nodes for t in n.outputs} | {i.name for i in graph.inputs} | {*graph.constant_names()}
        self.graph, self.topology, self.plan = graph, topology, plan
        newer = any(q.dtype.bits == 16 for q in plan.quantizers.values())
        newer = newer or any(w.stored_bits == 4 or w.has_real_blocks for w in plan.weights.values())
        newer = newer or any(t.dtype.bits == 4 for t in plan.tables.values())
        opset, version = (NEWER_OPSET, NEWER_IR_VERSION) if newer else (OPSET, IR_VERSION)
        if any(w.stored_bits == 2 for w in plan.weights.values()):
            opset, version = SHORT_OPSET, SHORT_IR_VERSION
        self.opset = max(opset, graph.opset)
        self.builder = GraphBuilder(f"{dialect.name}", self.opset, version, names)
        self.dialect = dialect
        self._stored = {k.output for k in topology.kernels if k.form is Form.QUANTIZED}
        self._values: dict[tuple[str, Form], ir.Value] = {}
        self._halves: dict[str, ir.Value] = {}
        self._rescaled: dict[tuple[Any, ...], ir.Value] = {}
        self.by_run: dict[str, list[ir.Value]] = {}

    def set(self, tensor: str, form: Form, value: ir.Value) -> None:
        """Keep the value of a tensor in a form for the nodes that read it."""
        self._values[tensor, form] = value

    def get(self, tensor: str, form: Form) -> ir.Value:
        """Write the tensor in a form, converted (once) when it exists in another one only."""
        found = self._values.get((tensor, form))
        if found is None:
            found = self._convert(tensor, form)
            self._values[tensor, form] = found
        return found

    def operand(self, operand: Operand, target: str) -> ir.Value:
        """Return a data operand in the form its kernel reads, at the scale of `target` where it must be rescaled."""
        value = self.get(operand.tensor, operand.form)
        if not operand.rescaled:
            return value
        q = self.plan.quantizers[target]
        key = (operand.tensor, float(q.scale), q.zero_point, q.dtype, q.qmin, q.qmax)
        if key not in self._rescaled:  # once per scale and type, however many ops want it
            self._rescaled[key] = self.dialect.rescale(self, operand.tensor, target, value)
        return self._rescaled[key]

    def set_half(self, tensor: str, value: ir.Value) -> None:
        """Keep the value of a tensor that a node makes in float16."""
        self._halves[tensor] = value

    def half(self, tensor: str) -> ir.Value:
        """Write a real tensor in float16."""
        if tensor not in self._halves:
            if self.graph.is_constant(tensor):
                array = as_half(self.graph.constant_tensor(tensor))
                self._halves[tensor] = self.builder.constant(f"{tensor}/float16", array)
            else:
                self._halves[tensor] = cast_half(self.builder, tensor, self.get(tensor, Form.FLOAT))
        return self._halves[tensor]

    def real(self, tensor: str) -> ir.Value | None:
        """Return a tensor as the float graph has it (also shapes, axes, …); None for an absent optional input."""
        return self.get(tensor, Form.FLOAT) if tensor else None

    def shaped(self, tensor: str) -> ir.Value | None:
        """Return a tensor in any form that exists: all have its shape, and a conversion only to read that is no use."""
        forms = (form for form in (Form.FLOAT, Form.QUANTIZED, Form.RAW) if (tensor, form) in self._values)
        form = next(forms, None)
        if form is None and tensor in self._halves:
            return self._halves[tensor]
        return self.real(tensor) if form is None else self._values[tensor, form]

    def is_stored(self, tensor: str) -> bool:
        """Return whether a kernel makes the tensor in stored form, so that its real form is the dequantized one."""
        return tensor in self._stored

    def stored(self) -> dict[str, str]:
        """Return a mapping: tensor -> name of the value that holds its integers, for every tensor that has any."""
        found: dict[str, str] = {}
        for (tensor, form), value in self._values.items():
            if self.graph.is_constant(tensor):
                continue
            if form is Form.QUANTIZED:
                found[tensor] = value.name or ""
            elif form is Form.RAW and self.dialect.integer_accumulators:
                found[f"{tensor} (accumulator)"] = value.name or ""
        return found

    def _convert(self, tensor: str, form: Form) -> ir.Value:
        has = {f for f in Form if (tensor, f) in self._values}
        if self.graph.is_constant(tensor):
            if form is Form.QUANTIZED:
                return self.dialect.stored_constant(self, tensor)
            return self.builder.constant(tensor, self.graph.constant_tensor(tensor), claim=True)
        if not has and tensor in self._halves:  # a node makes it in float16
            real = cast_single(self.builder, tensor, self._halves[tensor])
            if form is Form.FLOAT:
                return real
            has, self._values[tensor, Form.FLOAT] = {Form.FLOAT}, real
        if form is Form.FLOAT and Form.RAW in has:
            real = self.dialect.widen(self, tensor, self._values[tensor, Form.RAW])
            return round_to_brain(self.builder, tensor, real) if tensor in self.topology.brain_floats else real
        if form is Form.FLOAT and Form.QUANTIZED in has:
            return self.dialect.dequantize(self, tensor, self._values[tensor, Form.QUANTIZED])
        if form is Form.QUANTIZED and Form.RAW in has:
            return self.dialect.narrow(self, tensor, self._values[tensor, Form.RAW])
        if form is Form.QUANTIZED and Form.FLOAT in has:
            return self.dialect.quantize(self, tensor, self._values[tensor, Form.FLOAT])
        raise KeyError(f"{tensor} does not exist as {form}")


Lowering = Callable[[Context, Node, Kernel], ir.Value]
"""Writes one kernel; returns its output in `kernel.form`."""
