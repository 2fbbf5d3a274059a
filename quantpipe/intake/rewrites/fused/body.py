"""The writer of a fused op's body: new nodes before it, in the form that the model's opset has for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

from quantpipe.graph.edit import attribute, constant, new_constant, new_node, operand, rank, take_place

NORM_OPSET, AXES_OPSET, CLIP_OPSET, MEAN_OPSET, SLICE_OPSET = 17, 13, 11, 18, 10
"""The first with LayerNormalization; those from which axes and bounds are inputs."""


@dataclass(eq=False)
class FusedBody:
    """Hold a fused node, and write the nodes that replace it. `main` is the op that gets the node's name."""

    graph: ir.Graph
    node: ir.Node
    opset: int
    main: str = ""
    axes: Callable[[str], Sequence[Any] | None] = lambda name: None
    types: Callable[[str], ir.DataType | None] = lambda name: None
    """The axes of a value that declares none, and its type likewise."""
    written: int = field(default=0, init=False)
    named: bool = field(default=False, init=False)

    def input(self, port: int) -> ir.Value | None:
        """Return an input, None where it is left out."""
        return operand(self.node, port)

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute's value, or the default."""
        return attribute(self.node, name, default)

    def rank(self, value: ir.Value | None) -> int | None:
        """Return the number of axes of a value, None where nobody knows it."""
        known = rank(value)
        axes = self.axes(value.name or "") if known is None and value is not None else None
        return len(axes) if axes is not None else known

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Return the type of a value's elements, None where nobody knows it."""
        return value.dtype or self.types(value.name or "")

    def reads(self, port: int) -> bool:
        """Return whether somebody reads an output of the node."""
        output = self.node.outputs[port] if port < len(self.node.outputs) else None
        return output is not None and bool(output.uses() or output.is_graph_output())

    def __call__(self, op: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Write a node with one output, and return it."""
        owner = self.node.name or self.node.op_type
        is_main = op == self.main and not self.named
        name = owner if is_main else f"{owner}/{op}_{self.written}"
        self.written, self.named = self.written + 1, self.named or is_main
        made = new_node(self.graph, self.node, op, inputs, name=name, attributes=attributes)
        made.name = f"{self.node.outputs[0].name}/{op}_{self.written}"
        return made

    def replace(self, port: int, value: ir.Value) -> None:
        """Put a value in the place of one of the node's outputs; the maker of the first has the node's name."""
        if port >= len(self.node.outputs):
            return
        maker = value.producer()
        if maker is None or value.is_graph_output() or value in self.node.inputs:
            value = self("Identity", value)
            maker = value.producer()
        if port == 0 and not self.named and maker is not None:
            maker.name, self.named = self.node.name, True
        take_place(self.node.outputs[port], value)

    def number(self, value: ArrayLike, dtype: Any = np.float32) -> ir.Value:
        """Return a constant."""
        return new_constant(self.graph, f"{self.node.name}/constant", np.asarray(value, dtype))

    def integers(self, *values: int) -> ir.Value:
        """Return a constant vector of int64."""
        return self.number(values, np.int64)

    def reshape(self, value: ir.Value, *sizes: int) -> ir.Value:
        """Write a Reshape; 0 copies an axis."""
        return self("Reshape", value, self.integers(*sizes))

    def swap(self, value: ir.Value, order: Sequence[int]) -> ir.Value:
        """Write a Transpose; of a constant, the constant in that order."""
        array = light(value)
        if array is not None:
            return self.number(np.transpose(array, order), array.dtype)
        return self("Transpose", value, perm=list(order))

    def unsqueeze(self, value: ir.Value, *axes: int) -> ir.Value:
        """Write an Unsqueeze."""
        if self.opset < AXES_OPSET:
            return self("Unsqueeze", value, axes=list(axes))
        return self("Unsqueeze", value, self.integers(*axes))

    def mean(self, value: ir.Value) -> ir.Value:
        """Write the mean over the last axis, which stays."""
        if self.opset < MEAN_OPSET:
            return self("ReduceMean", value, axes=[-1], keepdims=1)
        return self("ReduceMean", value, self.integers(-1), keepdims=1)

    def clip(self, value: ir.Value, low: float, high: float) -> ir.Value:
        """Write a Clip."""
        if self.opset < CLIP_OPSET:
            return self("Clip", value, min=low, max=high)
        return self("Clip", value, self.number(low), self.number(high))

    def pad(self, value: ir.Value, pads: Sequence[int]) -> ir.Value:
        """Write a Pad with zeros."""
        if self.opset < CLIP_OPSET:
            return self("Pad", value, pads=list(pads), mode="constant")
        return self("Pad", value, self.integers(*pads))

    def part(self, value: ir.Value, axis: int, begin: int, end: int) -> ir.Value:
        """Write a Slice along an axis; of a constant, the part itself."""
        array = light(value)
        if array is not None:
            return self.number(np.take(array, np.arange(begin, end), axis), array.dtype)
        if self.opset < SLICE_OPSET:
            return self("Slice", value, axes=[axis], starts=[begin], ends=[end])
        return self("Slice", value, self.integers(begin), self.integers(end), self.integers(axis))

    def scaled(self, value: ir.Value, factor: float) -> ir.Value:
        """Return a value times a number: a constant by its elements, else by a Mul."""
        if factor == 1.0:
            return value
        array = light(value)
        if array is not None:
            return self.number(array * np.asarray(factor, array.dtype), array.dtype)
        return self("Mul", value, self.number(factor))


def light(value: ir.Value | None) -> Any:
    """Return the content of a constant that is held in memory; None for others."""
    return None if value is None or isinstance(value.const_value, ir.ExternalTensor) else constant(value)
