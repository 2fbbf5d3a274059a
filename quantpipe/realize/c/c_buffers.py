"""The walk over a model that is written in C: every tensor as a buffer, in the forms that its readers want.

A C file is made for one shape of the inputs, the shape of a single sample as it was measured. So everything that
follows from shapes alone is a constant of the file, and a tensor that is only moved can be a table of indices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.errors import HardwareError
from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import expose
from quantpipe.graph.view import Graph, Node
from quantpipe.lowering import fragments as fr
from quantpipe.oprules.masks import OF_SHAPES
from quantpipe.realize.c.memory import Buffer, MemoryStep
from quantpipe.realize.c.narrow import narrowed
from quantpipe.realize.c.nest import axis_strides, collapsed, index, loops, strides_of
from quantpipe.realize.c.source import CSource, integer
from quantpipe.types import Accumulate, Contract, DType, Form, Kernel, Program, QuantPlan, Sum, Topology

Write = Callable[["CWalk", Node, Kernel], None]
"""Writes one kernel, whose result is `walk.result(kernel)`."""
NAMED = 5
"""Nodes that an error names."""


class CWalk:
    """Hold a C file in the making, and where each tensor of the model is in it."""

    def __init__(self, graph: Graph, topology: Topology, plan: QuantPlan) -> None:
        self.graph, self.topology, self.plan, self.source = graph, topology, plan, CSource()
        self.values: dict[tuple[str, Form], Buffer] = {}
        self.traced: list[tuple[str, Buffer]] = []
        """(name of the integers, buffer) in the order in which they are made."""
        self.inputs: list[Buffer] = []
        self.outputs: list[Buffer] = []
        self._rescaled: dict[tuple[Any, ...], Buffer] = {}
        self._known: Mapping[str, NDArray[Any]] = {}

    def write(self, ops: Mapping[str, Write], program: Write) -> None:
        """Write every kernel in order; `program` writes kernels that are a line of integer steps.

        Raises HardwareError for nodes in float, which an integer file cannot hold, and for kernels that the form cannot
        write.
        """
        self._refuse_islands()
        self._known = shape_values(self.graph)
        for info in self.graph.inputs:
            self._enter(info.name)
        for node in self.graph.nodes:
            kernel = self.topology.kernel_of.get(node.name)
            if kernel is None:
                continue
            writer = program if isinstance(self.plan.kernels[node.name], Program) else ops.get(node.op)
            if writer is None:
                raise HardwareError(
                    f"the c form has no way to write {node.op} as this device forms it; legal is realize=integer, or "
                    f"annotate.float_ops=[{node.op}] with another form",
                    stage="realize",
                    where=node.name,
                )
            writer(self, node, kernel)
        self.outputs = [self._leaving(info.name) for info in self.graph.outputs]

    def stored(self, tensor: str, form: Form = Form.QUANTIZED) -> Buffer:
        """Return the buffer of a tensor in a form; an accumulator is narrowed once for all who read it so."""
        found = self.values.get((tensor, form))
        if found is not None:
            return found
        if self.graph.is_constant(tensor) and form is Form.QUANTIZED:
            return self._constant(tensor)
        if form is Form.QUANTIZED and (tensor, Form.RAW) in self.values:
            return self._narrow(tensor)
        raise HardwareError(f"{tensor} does not exist as {form} integers", stage="realize", where=tensor)

    def operand(self, kernel: Kernel, number: int) -> Buffer:
        """Return the operand of a kernel that keeps the scale, at the scale of its result."""
        operand = kernel.operands[number]
        data = self.stored(operand.tensor, operand.form)
        return self._rescale(operand.tensor, kernel.output, data) if operand.rescaled else data

    def result(self, kernel: Kernel) -> Buffer:
        """Return the buffer of a kernel's result, which the kernel's function is about to fill."""
        raw = kernel.form is Form.RAW
        dtype = self._accumulator(kernel) if raw else self.plan.quantizers[kernel.output].dtype
        return self.made(kernel.output, kernel.form, dtype)

    def made(self, tensor: str, form: Form, dtype: DType) -> Buffer:
        """Return a new buffer for a tensor in a form."""
        buffer = Buffer(f"b{len(self.traced)}", dtype, self.graph.shapes[tensor])
        self.keep(tensor, form, buffer)
        return buffer

    def keep(self, tensor: str, form: Form, buffer: Buffer) -> None:
        """Let a buffer be a tensor in a form."""
        self.values[tensor, form] = buffer
        if buffer.external or buffer.base is not None:  # no statement makes it
            self.source.steps.append(MemoryStep("", (buffer,), (), buffer))
        self.traced.append((f"{tensor} (accumulator)" if form is Form.RAW else tensor, buffer))

    def parameter(self, tensor: str, node: Node) -> NDArray[Any]:
        """Return a tensor that controls how a node moves its data.

        Raises HardwareError where it depends on more than shapes.
        """
        if self.graph.is_constant(tensor):
            return self.graph.constant(tensor)
        if tensor in self._known:
            return self._known[tensor]
        raise HardwareError(
            f"{tensor!r} is computed at run time, and a C file is made for one shape; remove this node and all later "
            "nodes from the model, or choose another realize",
            stage="realize",
            where=node.name,
        )

    def channel(self, tensor: str) -> tuple[int, ...]:
        """Return the strides of numbers per channel against a tensor that per-channel weights made."""
        return axis_strides(fr.output_axis(self.graph, tensor), len(self.graph.shapes[tensor]))

    def _enter(self, name: str) -> None:
        """Add an input of the model: an argument with its integers; one that only sets shapes is left out."""
        if name in self.plan.quantizers:
            q = self.plan.quantizers[name]
            buffer = Buffer(f"in{len(self.inputs)}", q.dtype, self.graph.shapes[name], external=True)
            self.inputs.append(buffer)
            self.keep(name, Form.QUANTIZED, buffer)
        elif any(n.op not in OF_SHAPES for n, _ in self.graph.consumers.get(name, ())):
            raise HardwareError(
                f"the input {name!r} is read as it is, not in integers; a C file takes integers only",
                stage="realize",
                where=name,
            )

    def _leaving(self, name: str) -> Buffer:
        """Return the integers of an output: an accumulator where it leaves as one."""
        form = Form.RAW if (name, Form.RAW) in self.values else Form.QUANTIZED
        return self.stored(name, form)

    def _refuse_islands(self) -> None:
        """Raise HardwareError for float nodes; arithmetic on shapes does not count."""
        inside = {*self.topology.kernel_of, *self.topology.fused_into}
        floats = [n for n in self.graph.nodes if n.name not in inside and not of_shapes(self.graph, n)]
        if not floats:
            return
        named = ", ".join(f"{n.name} ({n.op})" for n in floats[:NAMED])
        more = f" and {len(floats) - NAMED} more" if len(floats) > NAMED else ""
        raise HardwareError(
            f"the c form holds integers only, and {len(floats)} nodes stay in float: {named}{more}. Legal is a model "
            "that runs in integers throughout (command=check shows why these stay in float), a model that ends before "
            "them, or another realize",
            stage="realize",
            where=floats[0].name,
        )

    def _accumulator(self, kernel: Kernel) -> DType:
        """Return the type of an accumulator that stays one: its source's type, or one that holds every sum."""
        numbers = self.plan.kernels[kernel.node]
        if isinstance(numbers, Accumulate | Contract | Sum):
            limit = getattr(numbers, "limit", None)
            bound = numbers.bound if limit is None else limit.qmax
            return DType.INT32 if bound <= DType.INT32.qmax else DType.INT64
        return self.stored(kernel.operands[0].tensor, Form.RAW).dtype

    def _constant(self, tensor: str) -> Buffer:
        q, values = self.plan.quantizers[tensor], self.plan.constants[tensor]
        name = self.source.array(values, q.dtype)
        buffer = Buffer(name, q.dtype, values.shape, external=True)
        self.values[tensor, Form.QUANTIZED] = buffer
        return buffer

    def _narrow(self, tensor: str) -> Buffer:
        raw = self.values[tensor, Form.RAW]
        out = self.made(tensor, Form.QUANTIZED, self.plan.quantizers[tensor].dtype)
        own = strides_of(raw.shape)
        sizes, (place, channel) = collapsed(raw.shape, [own, self.channel(tensor)])
        text = narrowed(self.source, self.plan.narrowings[tensor], f"x0[{index(place)}]", channel=index(channel))
        body = loops(sizes, f"y[{index(place)}] = ({out.ctype})({text});")
        self.source.call(f"narrow {tensor}", body, [raw], out)
        return out

    def _rescale(self, tensor: str, target: str, data: Buffer) -> Buffer:
        """Return a stored tensor at another scale, by a precomputed table over its codes: Q(DQ(q)) in float32."""
        source, out = self.plan.quantizers[tensor], self.plan.quantizers[target]
        key = (tensor, float(out.scale), out.zero_point, out.dtype, out.qmin, out.qmax)
        if key in self._rescaled:
            return self._rescaled[key]
        codes = np.arange(source.dtype.qmin, source.dtype.qmax + 1)
        real = intmath.dequantize(codes, source.scale, source.zero_point)
        table = intmath.quantize(real, out.scale, out.zero_point, qmin=out.qmin, qmax=out.qmax, dtype=out.dtype)
        buffer = Buffer(f"r{len(self._rescaled)}", out.dtype, data.shape)
        name = self.source.array(table, out.dtype)
        body = loops([data.count], f"y[i0] = {name}[x0[i0] - ({integer(source.dtype.qmin)})];")
        self.source.call(f"rescale {tensor} to {target}", body, [data], buffer)
        self._rescaled[key] = buffer
        return buffer


def of_shapes(graph: Graph, node: Node) -> bool:
    """Return whether a node's results follow from shapes and constants alone."""
    pending, seen = [node], set()
    while pending:
        current = pending.pop()
        if current.name in seen or current.op in OF_SHAPES:
            continue
        seen.add(current.name)
        for tensor in (*current.inputs, *current.captured):
            if not tensor or graph.is_constant(tensor):
                continue
            if tensor not in graph.producers:
                return False
            pending.append(graph.producers[tensor])
    return True


def shape_values(graph: Graph) -> dict[str, NDArray[Any]]:
    """Return the values of all tensors that follow from the measured shapes alone."""
    wanted = [t for n in graph.nodes if of_shapes(graph, n) for t in n.outputs if t]
    if not wanted:
        return {}
    feeds = {i.name: np.zeros(graph.shapes[i.name], i.dtype) for i in graph.inputs}
    return Session(expose(graph.model, wanted), where=graph.source).run(feeds, wanted)
