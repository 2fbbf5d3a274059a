"""Walk through a quantized model, and give every integer tensor its real tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.graph.edit import new_constant, new_node
from quantpipe.intake.quantized.grids import dequantized, whole
from quantpipe.intake.quantized.quantized_ops import CLAMPED, CLIP, CLIPS, IDENTITY, RELU, SUFFIXES
from quantpipe.intake.quantized.signs import upright
from quantpipe.types import GivenTensor, GivenWeight, ImportedGrid

FLOAT = ir.TensorType(ir.DataType.FLOAT)


@dataclass(frozen=True, eq=False)
class StoredInteger:
    """Hold the real value of an integer tensor, and its grid; no grid where each sample has its own."""

    real: ir.Value
    grid: ImportedGrid | None
    constant: bool = False


@dataclass(frozen=True, eq=False)
class Restored:
    """Hold the float model of a quantized one, and the grids of its tensors and constants."""

    model: ir.Model
    forms: tuple[str, ...]
    tensors: tuple[GivenTensor, ...]
    weights: tuple[GivenWeight, ...]
    dynamic: tuple[str, ...]
    clamps: tuple[str, ...]
    """What the Relu and Clip nodes give that were put in where a tool may have left some out."""


@dataclass(eq=False)
class DequantizeWalk:
    """Hold a model during its conversion from integers to real values; it is changed in place.

    `stored`: integers -> their real values. `clamped`: real values that a tool had clamped by their integers.
    `weights`: real constants with the integers that they are made of. `dynamic`: real values whose ranges are computed
    from each sample, by the value of their scale. `forms`: how the quantized part is written.
    """

    model: ir.Model
    stored: dict[ir.Value, StoredInteger] = field(default_factory=dict)
    clamped: dict[ir.Value, ir.Value] = field(default_factory=dict)
    weights: dict[ir.Value, GivenWeight] = field(default_factory=dict)
    dynamic: dict[ir.Value, ir.Value] = field(default_factory=dict)
    forms: dict[str, None] = field(default_factory=dict)
    grids: dict[ir.Value, ImportedGrid] = field(default_factory=dict)
    """Real value -> the narrowest grid of the integers that stand for it."""
    integers: dict[ir.Value, str] = field(default_factory=dict)
    """Names that the file has for the integers of `stored`."""
    bounded: dict[ir.Value, tuple[int | None, int | None]] = field(default_factory=dict)
    """Constant integers whose grid is not known yet -> what bounds them."""

    @property
    def graph(self) -> ir.Graph:
        """Return the graph of the model."""
        return self.model.graph

    def keep(self, integers: ir.Value, real: ir.Value, grid: ImportedGrid | None, *, constant: bool = False) -> None:
        """Record the real value and the grid of integers."""
        self.stored[integers] = StoredInteger(real, grid, constant)
        self.integers[integers] = integers.name or ""
        before = self.grids.get(real)
        if grid is not None and (before is None or grid.high - grid.low < before.high - before.low):
            self.grids[real] = grid

    def free_name(self, wanted: str) -> str:
        """Return a name like the wanted one that no value of the graph has."""
        taken = {v.name for n in self.graph for v in n.outputs} | set(self.graph.initializers)
        taken |= {v.name for v in self.graph.inputs}
        name, number = wanted, 1
        while name in taken:
            number += 1
            name = f"{wanted}_{number}"
        return name

    def real_name(self, integers: ir.Value) -> str:
        """Return a free name for the real value of integers: their name, without the suffixes of tools."""
        name = integers.name or "tensor"
        found = next((name.removesuffix(s) for s in SUFFIXES if name.endswith(s) and name != s), name)
        return self.free_name(found if found != name else f"{name}_real")

    def node(
        self,
        like: ir.Node,
        op: str,
        inputs: Sequence[ir.Value | None],
        *,
        attributes: dict[str, Any] | None = None,
        output: str = "",
    ) -> ir.Value:
        """Insert a float node in place of an integer one, whose name it takes, and return its result.

        `attributes=None`: those that the integer node has. An empty `output` is named after the integer node's output.
        """
        name = output or self.real_name(like.outputs[0])
        if attributes is None:
            made = ir.Node(
                "", op, inputs=list(inputs), attributes=list(like.attributes.values()), num_outputs=1, name=like.name
            )
            self.graph.insert_before(like, made)
            found = made.outputs[0]
        else:
            found = new_node(self.graph, like, op, inputs, name=like.name, attributes=attributes)
        found.name, found.type = name, FLOAT
        return found

    def constant(self, node: ir.Node, integers: ir.Value, grid: ImportedGrid, *, block: int = 0) -> ir.Value:
        """Return the real constant of constant integers (an initializer), and record the integers.

        `block` integers along `grid.axis` share a scale.
        """
        known, values = self.stored.get(integers), whole(integers)
        assert values is not None  # noqa: S101  (asked for constants only)
        grid = narrowed(grid, *self.bounded.get(integers, (None, None)))
        values, grid = upright(node, values, grid)
        if known is not None and known.grid is not None and known.grid.same(grid) and known.grid.axis == grid.axis:
            return known.real
        real = self.given(node, integers, values, grid, block=block)
        self.keep(integers, real, grid, constant=True)
        return real

    def given(
        self,
        node: ir.Node,
        integers: ir.Value,
        values: NDArray[Any],
        grid: ImportedGrid,
        *,
        block: int = 0,
        name: str = "",
    ) -> ir.Value:
        """Return a new real constant made of integers, and record the integers.

        `block` integers along `grid.axis` share a scale. An empty `name` follows from the name of the integers.
        """
        values, grid = upright(node, values, grid)
        array = dequantized(node, values, grid, block=block)
        real = new_constant(self.graph, name or self.real_name(integers), array)
        self.weights[real] = GivenWeight(real.name or "", values, grid, integers.name or "", block or None)
        return real

    def exchange(self, node: ir.Node, array: NDArray[Any]) -> ir.Value:
        """Put a constant of integers in the place of a node's result, under its name, and return it."""
        out = node.outputs[0]
        tensor = ir.tensor(np.ascontiguousarray(array), name=out.name)
        kind, shape = ir.TensorType(tensor.dtype), ir.Shape(array.shape)
        made = ir.Value(name=out.name, type=kind, shape=shape, const_value=tensor)
        out.replace_all_uses_with(made)
        out.name = None
        self.graph.register_initializer(made)
        return made

    def port(self, integers: ir.Value, grid: ImportedGrid) -> ir.Value:
        """Return the real input in the place of an input that takes integers; its name stays."""
        place = list(self.graph.inputs).index(integers)
        name = integers.name
        integers.name = f"{name}_integers"
        real = ir.Value(name=name, type=FLOAT, shape=integers.shape)
        self.graph.inputs[place] = real
        self.keep(integers, real, grid)
        self.integers[integers] = name or ""
        return real

    def clamp(self, real: ir.Value, grid: ImportedGrid, before: ir.Node) -> ir.Value:
        """Return a real value as its grid clamps it at 0: with a Relu, where a tool may have left one out.

        A grid that begins at 0 gives no negative number. If it ends at 6 or 1, to half a step, the original had a Clip
        there.
        """
        producer = real.producer()
        if not grid.single or grid.low != int(grid.zero) or producer is None or producer.op_type not in CLAMPED:
            return real
        if real in self.clamped:
            return self.clamped[real]
        top = (grid.high - int(grid.zero)) * float(grid.scale)
        end = next((c for c in CLIPS if abs(top - c) <= float(grid.scale) / 2), None)
        name = real.name or ""
        real.name = self.free_name(f"{name}/unclamped")
        limits = [("least", 0.0), ("greatest", end)] if end is not None else []
        ends = [new_constant(self.graph, f"{name}/{k}", np.asarray(v, np.float32)) for k, v in limits]
        op = CLIP if end is not None else RELU
        made = new_node(self.graph, before, op, [real, *ends], name=f"{producer.name}/{op.lower()}")
        made.name, made.type, made.shape = name, real.type, real.shape
        self.clamped[real] = made
        return made

    def apart(self, real: ir.Value, grid: ImportedGrid, before: ir.Node) -> ir.Value:
        """Return a real value that may have this grid: one after an Identity, if it has another grid already."""
        other = self.grids.get(real)
        if other is None or other.same(grid):
            return real
        made = new_node(self.graph, before, IDENTITY, [real], name=f"{before.name}/requantized")
        made.name, made.type = self.free_name(f"{real.name}/requantized"), FLOAT
        return made

    def replace(self, old: ir.Value, new: ir.Value, node: ir.Node) -> None:
        """Let `new` be read in place of `old`; an output of the model keeps its name."""
        if not old.is_graph_output():
            old.replace_all_uses_with(new)
            if new.producer() is not None and not new.is_graph_output() and (new.name or "").startswith(f"{old.name}_"):
                old.name, new.name = None, old.name  # one that was free only by a number is free now
            return
        if new.producer() is None or new.is_graph_output():
            new = new_node(self.graph, node, IDENTITY, [new], name=f"{node.name}/real")
        name, shape = old.name, old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name = None
        new.name, new.type, new.shape = name, FLOAT, shape


def narrowed(grid: ImportedGrid, low: int | None, high: int | None) -> ImportedGrid:
    """Return a grid with its integers bounded."""
    return replace(
        grid,
        low=max(grid.low, low) if low is not None else grid.low,
        high=min(grid.high, high) if high is not None else grid.high,
    )
