"""A copy of a model in which single tensors can be rounded and clipped, each by switches of its own.

The copy computes what the model does while no switch is on. So the error of every tensor alone is measured with one
session. Constants whose values are exchanged are inputs with a default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.graph.normalize import expose
from quantpipe.types import Quantizer


@dataclass(frozen=True, eq=False)
class Switched:
    """Hold the copy.

    `clips`, `rounds`: tensor -> the input (bool, `()`) that switches it; `outputs`: the model's outputs -> their names
    here.
    """

    model: ir.Model
    clips: Mapping[str, str]
    rounds: Mapping[str, str]
    outputs: Mapping[str, str]


def with_switches(model: ir.Model, quantizers: Mapping[str, Quantizer], constants: Iterable[str]) -> Switched:
    """Return a copy of the model with switches, and their names.

    `quantizers` describes float32 or float64 tensors of the main graph. `constants` are initializers that runs may
    exchange.
    """
    copy = expose(model, [])
    graph = copy.graph
    made = [*graph.inputs, *(v for node in graph for v in node.outputs)]
    values = {v.name: v for v in made if v.name}
    first = next(iter(graph))
    clips, rounds = {}, {}
    renamed = {o.name or "": o.name or "" for o in graph.outputs}
    for tensor, quantizer in quantizers.items():
        value = values[tensor]
        uses = list(value.uses())
        nodes = _Inserted(graph, tensor, value, quantizer)
        maker = value.producer()
        if maker is None:
            graph.insert_before(first, nodes.all)
        else:
            graph.insert_after(maker, nodes.all)
        for use in uses:
            use.node.replace_input_with(use.idx, nodes.result)
        for place, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[place] = nodes.result
                renamed[tensor] = nodes.result.name or ""
        clips[tensor], rounds[tensor] = nodes.clip.name or "", nodes.round.name or ""
    for name in constants:
        graph.inputs.append(graph.initializers[name])
    return Switched(copy, clips, rounds, renamed)


def with_constants(model: ir.Model, values: Mapping[str, NDArray[Any]]) -> ir.Model:
    """Return a copy of the model in which some initializers have other values of the same shape."""
    copy = expose(model, [])
    for name, array in values.items():
        copy.graph.initializers[name].const_value = ir.tensor(np.ascontiguousarray(array), name=name)
    return copy


class _Inserted:
    """Hold the nodes after one tensor: clip if switched on, then round if switched on."""

    def __init__(self, graph: ir.Graph, tensor: str, value: ir.Value, quantizer: Quantizer) -> None:
        self._tensor, self._graph, self.all = tensor, graph, list[ir.Node]()
        self._dtype = value.dtype or ir.DataType.FLOAT
        scale = np.asarray(quantizer.scale, np.float64)  # of single channels, too: it broadcasts
        self.clip, self.round = self._switch("clip"), self._switch("round")
        step = self._constant("scale", scale)
        low, high = self._constant("low", quantizer.low * scale), self._constant("high", quantizer.high * scale)
        clipped = self._op("Min", self._op("Max", value, low), high)
        taken = self._op("Where", self.clip, clipped, value)
        rounded = self._op("Mul", self._op("Round", self._op("Div", taken, step)), step)
        self.result = self._op("Where", self.round, rounded, taken)
        self.result.shape, self.result.type = value.shape, value.type

    def _switch(self, what: str) -> ir.Value:
        name, kind = f"{self._tensor}//{what}", ir.TensorType(ir.DataType.BOOL)
        value = ir.Value(name=name, type=kind, shape=ir.Shape([]))
        self._graph.inputs.append(value)
        return value

    def _constant(self, what: str, number: NDArray[np.float64]) -> ir.Value:
        content = np.asarray(number, self._dtype.numpy())
        value = ir.Value(
            name=f"{self._tensor}//{what}",
            type=ir.TensorType(self._dtype),
            shape=ir.Shape(content.shape),
            const_value=ir.Tensor(content),
        )
        self._graph.initializers[value.name or ""] = value
        return value

    def _op(self, op: str, *inputs: ir.Value) -> ir.Value:
        name = f"{self._tensor}//{op}{len(self.all)}"
        node = ir.Node("", op, list(inputs), num_outputs=1, name=name)
        node.outputs[0].name = name
        self.all.append(node)
        return node.outputs[0]
