"""Copies of a model with other outputs: tensors from inside it, or their extremes, reduced in the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantpipe.graph.normalize import expose
from quantpipe.graph.op_tables import REDUCTIONS


@dataclass(frozen=True)
class Reduced:
    """Name the outputs that reduce one tensor.

    These are three arrays of its dtype `[N, C]` (`()` for a tensor of less than three axes), and the number of its
    elements (int64, `()`).
    """

    minima: str
    maxima: str
    sums: str
    count: str


def with_outputs(model: ir.Model, tensors: Sequence[str]) -> ir.Model:
    """Return a copy of the model that gives exactly these tensors, without the nodes that nothing of them needs."""
    copy = expose(model, [])
    values = _values(copy)
    copy.graph.outputs[:] = [values[t] for t in tensors]
    _remove_unused(copy)
    return copy


def with_extremes(model: ir.Model, ranks: Mapping[str, int]) -> tuple[ir.Model, Mapping[str, Reduced]]:
    """Return a copy of the model with minima, maxima, sums and sizes of tensors as outputs, and their names.

    `ranks` maps a float32 or float64 tensor to its number of axes. Sums are included because onnxruntime's ReduceMin
    and ReduceMax ignore NaN and a sum does not. A sum may be infinite for finite values, so such a tensor has to be
    looked at.

    All axes after the second are reduced; the caller does the rest. The runtime divides only such reductions among its
    threads (efficientnet_lite0, 2 cores: 1.5 float passes instead of 2.5).
    """
    copy = expose(model, [])
    writer = _Writer(copy)
    copy.graph.outputs.clear()
    found = {tensor: writer.reduced(tensor, rank) for tensor, rank in ranks.items()}
    _remove_unused(copy)
    return copy, found


class _Writer:
    """Appends reductions to a model, under names that are free."""

    def __init__(self, model: ir.Model) -> None:
        self._graph, self._values = model.graph, _values(model)
        self._taken = {*self._values, *model.graph.initializers}
        self._opset = int(model.graph.opset_imports[""])

    def reduced(self, tensor: str, rank: int) -> Reduced:
        axes = list(range(2, rank)) or list(range(rank))
        minima, maxima, sums = (self._reduction(tensor, op, axes) for op in REDUCTIONS)
        count = self._append("Size", [self._values[tensor]], [], f"{tensor}.Size", is_output=True)
        return Reduced(minima, maxima, sums, count)

    def _reduction(self, tensor: str, op: str, axes: list[int]) -> str:
        inputs, attributes = [self._values[tensor]], [ir.AttrInt64("keepdims", 0)]
        if axes and self._opset >= REDUCTIONS[op]:
            constant = ir.AttrTensor("value", ir.tensor(np.asarray(axes, np.int64)))
            name = self._append("Constant", [], [constant], f"{tensor}.{op}.axes", is_output=False)
            inputs.append(self._values[name])
        elif axes:
            attributes.append(ir.AttrInt64s("axes", axes))
        return self._append(op, inputs, attributes, f"{tensor}.{op}", is_output=True)

    def _append(
        self, op: str, inputs: list[ir.Value], attributes: list[ir.Attr], wanted: str, *, is_output: bool
    ) -> str:
        name = wanted
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        node = ir.Node("", op, inputs, attributes, num_outputs=1, name=name)
        node.outputs[0].name = name
        self._values[name] = node.outputs[0]
        self._graph.append(node)
        if is_output:
            self._graph.outputs.append(node.outputs[0])
        return name


def _remove_unused(model: ir.Model) -> None:
    """Remove nodes and initializers that nothing needs, in place.

    Nodes that stay keep all outputs: an attention with a past runs only if it has its present, too.
    """
    for node in reversed(model.graph):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            model.graph.remove(node, safe=True)
    for name, value in list(model.graph.initializers.items()):
        if not (value.uses() or value.is_graph_output() or value.is_graph_input()):
            del model.graph.initializers[name]


def _values(model: ir.Model) -> dict[str, ir.Value]:
    """Return every value of the main graph that is no initializer, by name."""
    made = [*model.graph.inputs, *(v for node in model.graph for v in node.outputs)]
    return {v.name: v for v in made if v.name}
