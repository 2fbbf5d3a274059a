"""Walk over the float graph and write it as TFLite operators, every tensor in the forms and orders its readers want."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.errors import HardwareError
from quantpipe.graph.view import Graph, Node
from quantpipe.intake.tflite.layout import Order, between, laid, plain, same_memory, turned
from quantpipe.realize.tflite.container import Container, TensorQuantization
from quantpipe.types import DType, Form, Kernel, Operand, Quantizer, QuantPlan, Topology

FORM = "tflite"


class Refusal(HardwareError):
    """Say why a .tflite file cannot hold a node: `reason`, without the node, which its caller knows."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, stage="realize", where=FORM)
        self.reason = reason


@dataclass(frozen=True)
class Placed:
    """Hold a tensor of the file and the order of its axes."""

    tensor: int
    order: Order

    @property
    def layout(self) -> str:
        """Return the order as people write it: NHWC."""
        return layout_name(self.order)


class TfliteWalk:
    """Hold what a writer sees: the graph, the plan, the file, and every tensor in the form and order it asks for.

    `whole`: inputs and outputs are integers, as far as the plan stores them.
    """

    def __init__(self, graph: Graph, topology: Topology, plan: QuantPlan, *, whole: bool = False) -> None:
        self.graph, self.topology, self.plan, self.whole = graph, topology, plan, whole
        self.file = Container()
        self.transposes = 0
        self.single = False
        """Whether the file holds for one number of samples alone."""
        self.inputs: dict[str, Placed] = {}
        self.functions: dict[int, dict[str, Any]] = {}
        """Result of a table -> the function that it was made of."""
        self._held: dict[tuple[str, Form], dict[Order, int]] = {}
        self.free = graph.fixed_batch is None
        """Whether the axis of the samples may have any size."""

    # --- tensors of the file ------------------------------------------------------------------------------------------

    def grid(self, tensor: str) -> TensorQuantization:
        """Return the grid of a stored tensor's integers."""
        q = self.plan.quantizers[tensor]
        return TensorQuantization(np.asarray(q.scale), q.zero_point)

    def make(self, tensor: str, order: Order, form: Form = Form.QUANTIZED, name: str | None = None) -> int:
        """Add a tensor of the file for one of the graph, in an order of axes; return its number.

        `form`: stored integers or float values. `name=None` is the tensor's own name.
        """
        shape = laid(self.graph.shapes[tensor], order)
        if form is Form.FLOAT:
            dtype = self.graph.dtypes.get(tensor, "float32")
            return self.file.tensor(name or f"{tensor} (real)", shape, dtype, free=self.is_free(tensor, order))
        dtype = self.plan.quantizers[tensor].dtype
        free = self.is_free(tensor, order)
        return self.file.tensor(name or tensor, shape, dtype, grid=self.grid(tensor), free=free)

    def is_free(self, tensor: str, order: Order) -> bool:
        """Return whether the first axis in memory is the samples' axis, and may have any size."""
        return self.free and bool(order) and order[0] == 0 and not self.graph.is_constant(tensor)

    def temporary(self, name: str, shape: Sequence[int], like: str) -> int:
        """Add a tensor that only the file has, stored like one of the graph; its shape is in memory order."""
        dtype = self.plan.quantizers[like].dtype
        return self.file.tensor(name, shape, dtype, grid=self.grid(like), free=self.free)

    def numbers(self, name: str, values: Sequence[int] | NDArray[Any], dtype: str = DType.INT32) -> int:
        """Add a constant without a scale."""
        return self.file.constant(name, np.asarray(values, np.dtype(dtype)), dtype)

    # --- tensors of the graph -----------------------------------------------------------------------------------------

    def keep(self, tensor: str, form: Form, order: Order, number: int) -> None:
        """Remember that a tensor of the file holds one of the graph."""
        self._held.setdefault((tensor, form), {})[order] = number

    def orders(self, tensor: str) -> tuple[Order, ...]:
        """Return the orders that a tensor has already, in any form."""
        return tuple(o for form in (Form.QUANTIZED, Form.FLOAT) for o in self._held.get((tensor, form), {}))

    def common_order(self, kernel: Kernel, output: str) -> Order:
        """Return the order in which an operator over elements needs the fewest transpositions."""
        rank = len(self.graph.shapes[output])
        found = [o for operand in kernel.operands for o in self.orders(operand.tensor) if len(o) == rank]
        return max(dict.fromkeys(found), key=found.count) if found else plain(rank)

    def get(self, tensor: str, order: Order | None = None, form: Form = Form.QUANTIZED) -> int:
        """Return the file's tensor for a tensor of the graph (`order=None`: ONNX's own), written if missing.

        `form`: stored integers or float values.
        """
        wanted = plain(len(self.graph.shapes[tensor])) if order is None else order
        held = self._held.setdefault((tensor, form), {})
        if wanted not in held:
            held[wanted] = self._written(tensor, form, wanted)
        return held[wanted]

    def any(self, tensor: str, form: Form = Form.QUANTIZED) -> Placed:
        """Return a tensor in whatever order it has."""
        found = self.orders(tensor)
        order = found[0] if found else plain(len(self.graph.shapes[tensor]))
        return Placed(self.get(tensor, order, form), order)

    def operand(self, operand: Operand, order: Order | None = None) -> int:
        """Return a data operand of a kernel, stored.

        Raises HardwareError for an accumulator, and for an operand that needs another scale.
        """
        if operand.form is not Form.QUANTIZED:
            raise self.refused("it reads an accumulator; TFLite's kernels read stored integers")
        if operand.rescaled:
            raise self.refused(f"{operand.tensor!r} must be brought to another scale first")
        return self.get(operand.tensor, order)

    def refused(self, reason: str) -> Refusal:
        """Return the message about a node that TFLite cannot hold."""
        return Refusal(reason)

    def _written(self, tensor: str, form: Form, order: Order) -> int:
        if self.graph.is_constant(tensor):
            return self._constant(tensor, form, order)
        held = self._held.get((tensor, form), {})
        if held:
            return self._turned(tensor, form, order)
        other = Form.FLOAT if form is Form.QUANTIZED else Form.QUANTIZED
        if not self._held.get((tensor, other)):
            return self._input(tensor, form, order)
        made = self.any(tensor, other)
        result = self.make(tensor, made.order, form)
        op = "QUANTIZE" if form is Form.QUANTIZED else "DEQUANTIZE"
        self.file.operator(op, [made.tensor], [result], 2, kind=f"{op.capitalize()}Options")
        self.keep(tensor, form, made.order, result)
        return result if made.order == order else self._turned(tensor, form, order)

    def _input(self, tensor: str, form: Form, order: Order) -> int:
        """Add an input in the order in which it is first read, so that no transposition is needed."""
        if tensor not in self.graph.input_names:
            raise self.refused(f"{tensor!r} does not exist as {form}")
        own = Form.QUANTIZED if self.whole and tensor in self.plan.quantizers else Form.FLOAT
        name = tensor if own is form else None
        number = self.make(tensor, order, own, tensor if own is Form.FLOAT else name)
        self.inputs[tensor] = Placed(number, order)
        self.keep(tensor, own, order, number)
        return number if own is form else self.get(tensor, order, form)

    def _constant(self, tensor: str, form: Form, order: Order) -> int:
        if form is Form.QUANTIZED:
            dtype, grid = self.plan.quantizers[tensor].dtype, self.grid(tensor)
            return self.file.constant(tensor, turned(self.plan.constants[tensor], order), dtype, grid)
        value = self.graph.constant(tensor)
        return self.file.constant(tensor, turned(value, order), value.dtype.name)

    def _turned(self, tensor: str, form: Form, order: Order) -> int:
        source = self.any(tensor, form)
        result = self.make(tensor, order, form, f"{self.file.name(source.tensor)} ({layout_name(order)})")
        shape = self.graph.shapes[tensor]
        if same_memory(shape, source.order, order):
            self.reshape(source.tensor, result, laid(shape, order), order)
        else:
            self.transposes += 1
            turn = self.numbers(f"{tensor}/order", between(source.order, order))
            self.file.operator("TRANSPOSE", [source.tensor, turn], [result], 2, kind="TransposeOptions")
        return result

    def reshape(self, source: int, result: int, shape: Sequence[int], order: Order | None = None) -> None:
        """Write a RESHAPE to a shape in memory order; the axis of the samples keeps any size.

        `order` is the order of its axes, if the first one in memory need not be the samples'.
        """
        free = self.free and bool(shape) and (order is None or order[0] == 0)
        new = [-1, *shape[1:]] if free else list(shape)
        numbers = self.numbers(f"{self.file.name(result)}/shape", new)
        self.file.operator("RESHAPE", [source, numbers], [result], 1, kind="ReshapeOptions", newShape=new)


def layout_name(order: Order) -> str:
    """Return an order as people write it, such as NHWC; of tensors that are no maps, the numbers of the axes."""
    names = "NCHW" if len(order) == 4 else "NCDHW" if len(order) == 5 else ""
    return "".join(names[axis] for axis in order) if names else "axes " + ",".join(map(str, order))


Writer = Callable[[TfliteWalk, Node, Kernel], None]
"""Writes one kernel, and keeps its result."""


def bounds_of(q: Quantizer, low: int | None, high: int | None) -> tuple[int, int]:
    """Return the smallest and largest integer that a kernel stores."""
    return q.qmin if low is None else low, q.qmax if high is None else high
