"""Writing the nodes of one recurrent layer: named after it, constants shared by its steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.graph.edit import new_constant, new_node

FEATURES = 2
"""The axis of gates and features: every tensor of a step is `[1, B, …]`."""


class StepWriter:
    """Write nodes before a recurrent layer, and keep its constants by name."""

    def __init__(self, graph: ir.Graph, layer: ir.Node) -> None:
        self._graph, self._layer = graph, layer
        self._constants: dict[str, ir.Value] = {}
        self.name = layer.name or layer.op_type

    def op(self, op: str, *inputs: ir.Value | None, name: str, **attributes: Any) -> ir.Value:
        """Append a node; its output has its name."""
        full = f"{self.name}/{name}"
        made = new_node(self._graph, self._layer, op, inputs, name=full, attributes=attributes)
        made.name = f"{full}_out"
        return made

    def constant(self, name: str, values: NDArray[Any] | np.generic) -> ir.Value:
        """Return a constant of the layer, written once per name."""
        if name not in self._constants:
            self._constants[name] = new_constant(self._graph, f"{self.name}/{name}", np.asarray(values))
        return self._constants[name]

    def part(self, value: ir.Value, axis: int, first: int, last: int, *, name: str) -> ir.Value:
        """Write a slice of one axis, step 1."""
        bounds = [self.constant(f"at{v}", np.asarray([v], np.int64)) for v in (first, last)]
        return self.op("Slice", value, *bounds, self.constant(f"axis{axis}", np.asarray([axis], np.int64)), name=name)
