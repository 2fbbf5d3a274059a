"""Ops that draw random numbers, replaced by inputs that carry the numbers, or by their mean (`model.random`).

A model that draws its own numbers gives other outputs in every run, so nothing of it can be compared. With the numbers
as an input `noise/NODE`, the float model and the integer model get the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
from numpy.typing import NDArray

from quantpipe.errors import ModelError
from quantpipe.graph.edit import attribute, constant, is_op, new_constant, new_node, take_place
from quantpipe.graph.external_weights import copied
from quantpipe.graph.io import STAGE
from quantpipe.graph.symbolic_axes import axes_of
from quantpipe.intake.vet import draws
from quantpipe.types import RandomOps

PREFIX = "noise/"


@dataclass(frozen=True)
class NoiseInput:
    """Hold an input of random numbers: its name, and whether they are normal, with mean and deviation, or uniform.

    `low` and `high` are the ends of uniform numbers, or the mean and the standard deviation of normal ones.
    """

    name: str
    normal: bool
    low: float
    high: float

    @property
    def mean(self) -> float:
        """Return the mean of the distribution."""
        return self.low if self.normal else (self.low + self.high) / 2

    def drawn(self, shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[np.float32]:
        """Return numbers of this distribution, float32."""
        if self.normal:
            return (self.low + self.high * generator.standard_normal(shape)).astype(np.float32)
        return generator.uniform(self.low, self.high, shape).astype(np.float32)


@dataclass(frozen=True, eq=False)
class NoiseInputs:
    """Hold a model's inputs of random numbers, and a model whose outputs have the shapes of these, by name."""

    ports: tuple[NoiseInput, ...] = ()
    shapes: ir.Model | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    """Input -> the output of the model of shapes that has its shape."""
    replaced: bool = False
    """Whether the model had ops that draw."""


def without_chance(model: ir.Model, how: RandomOps | None, path: Path) -> NoiseInputs:
    """Replace the ops that draw random numbers, in place, as asked; None leaves them.

    Raises ModelError for an op that cannot be replaced so: in the body of another op, or without an axis of samples.
    """
    if how is None or not any(draws(node) for node in model.graph.all_nodes()):
        return NoiseInputs()
    for node in model.graph.all_nodes():
        if draws(node) and node.graph is not model.graph:
            raise ModelError(
                f"{node.op_type} draws random numbers in the body of another op (Loop, Scan, If), once for each turn. "
                "Legal are such ops outside of bodies: give the numbers as an input of the model",
                stage=STAGE,
                where=f"{path}, node {node.name!r}",
            )
    common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    if how is RandomOps.ZERO:
        _without_zeros(model, [value for noise, value in _replaced(model, RandomOps.ZERO, path) if noise.mean == 0])
        return NoiseInputs(replaced=True)
    shapes = copied(model)
    means = _replaced(shapes, RandomOps.ZERO, path)
    ports = _replaced(model, RandomOps.INPUT, path)
    known = {value.name for value in shapes.graph.outputs}
    for value in (mean for _, mean in means if mean.name not in known):
        shapes.graph.outputs.append(value)
    names = {port.name: mean.name or "" for (port, _), (_, mean) in zip(ports, means, strict=True)}
    return NoiseInputs(tuple(port for port, _ in ports), shapes, names, replaced=True)


def _without_zeros(model: ir.Model, zeros: list[ir.Value]) -> None:
    """Take out, in place, sums with tensors of zeros and with products by them, where no shape changes."""
    axes, pending = axes_of(model), list(zeros)
    while pending:
        zero = pending.pop()
        for node, port in [(use.node, use.idx) for use in zero.uses()]:
            result = node.outputs[0]
            if is_op(node, "Mul", "Identity") or (is_op(node, "Div") and port == 0):
                pending.append(result)
            elif is_op(node, "Add"):
                other, known = node.inputs[1 - port], axes.get(result.name or "")
                if other is not None and known is not None and axes.get(other.name or "") == known:
                    made = new_node(model.graph, node, "Identity", [other], name=node.name)
                    take_place(result, made)
                    model.graph.remove(node, safe=True)
    common_passes.RemoveUnusedNodesPass()(model)


def _replaced(model: ir.Model, how: RandomOps, path: Path) -> list[tuple[NoiseInput, ir.Value]]:
    """Replace every op that draws, in place; return the input of each, and the value that has its shape."""
    axes = axes_of(model) if how is RandomOps.INPUT else {}
    found = []
    for node in [node for node in model.graph if draws(node)]:
        writer = _Writer(model.graph, node, path)
        noise = writer.distribution()
        if how is RandomOps.ZERO:
            found.append((noise, writer.mean(noise)))
        else:
            found.append((noise, writer.input(noise, axes.get(writer.shape_source() or ""))))
        model.graph.remove(node, safe=True)
    return found


@dataclass(frozen=True, eq=False)
class _Writer:
    """Hold an op that draws, and write what replaces it."""

    graph: ir.Graph
    node: ir.Node
    path: Path

    def distribution(self) -> NoiseInput:
        name = f"{PREFIX}{self.node.name}"
        if self._is_by_chance():
            return NoiseInput(name, False, 0.0, 1.0)
        if self.node.op_type.startswith("RandomNormal"):
            return NoiseInput(name, True, *(float(attribute(self.node, n, d)) for n, d in (("mean", 0), ("scale", 1))))
        if self.node.op_type.startswith("RandomUniform"):
            return NoiseInput(name, False, *(float(attribute(self.node, n, d)) for n, d in (("low", 0), ("high", 1))))
        raise self._refused(
            "draws places, which have no mean and no distribution of their own", "the places as an input"
        )

    def shape_source(self) -> str | None:
        """Return the tensor whose shape the numbers have; None where an attribute gives the shape."""
        source = self.node.inputs[0] if self.node.inputs else None
        return None if source is None else source.name

    def mean(self, noise: NoiseInput) -> ir.Value:
        """Write the mean, and return it."""
        data, result = self.node.inputs[0] if self.node.inputs else None, self.node.outputs[0]
        if self._is_by_chance():
            if len(self.node.outputs) > 1 and (self.node.outputs[1].uses() or self.node.outputs[1].is_graph_output()):
                raise self._refused("gives its mask, which has no mean", "model.random=input")
            made = self._cast(self._new("Identity", [data]), data)
            take_place(result, made)
            return made
        kind, value = self._type(), noise.mean
        shape = (
            self._new("Shape", [data]) if data is not None else self._constant("shape", attribute(self.node, "shape"))
        )
        filled = ir.tensor(np.asarray([value], kind.numpy()))
        made = self._new("ConstantOfShape", [shape], value=filled)
        take_place(result, made)
        return made

    def input(self, noise: NoiseInput, axes: object) -> ir.Value:
        """Write the input, and what makes the op's results of it."""
        port = ir.Value(name=noise.name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(self._axes(axes)))
        self.graph.inputs.append(port)
        data, result = self.node.inputs[0] if self.node.inputs else None, self.node.outputs[0]
        if not self._is_by_chance():
            kind = self._type()
            whole = (
                self._new("Cast", [port], to=int(kind))
                if kind is not ir.DataType.FLOAT
                else self._new("Identity", [port])
            )
            take_place(result, whole)
            return port
        if is_op(self.node, "Bernoulli"):
            made = self._new("Less", [port, data])
            take_place(result, self._new("Cast", [made], to=int(self._type())))
            return port
        given = constant(self.node.inputs[1]) if self.node.inputs[1] is not None else 0.5
        if given is None or not 0 <= (ratio := float(given)) < 1:
            found = "a ratio that is no constant" if given is None else f"the ratio {float(given):g}"
            raise self._refused(
                f"has {found}", "model.random=zero, or a constant ratio of 0 and above, and less than 1"
            )
        kept = self._new("Not", [self._new("Less", [port, self._constant("ratio", ratio, np.float32)])])
        scaled = self._new("Mul", [data, self._constant("factor", 1 / (1 - ratio), np.float32)])
        take_place(result, self._new("Where", [kept, scaled, self._constant("zero", 0.0, np.float32)]))
        if len(self.node.outputs) > 1:
            take_place(self.node.outputs[1], self._new("Identity", [kept]))
        return port

    def _axes(self, axes: object) -> list[int | str | None]:
        """Return the axes of the numbers, of which the first is the samples'."""
        if self.node.inputs:
            if not isinstance(axes, list | tuple):
                raise self._refused("draws numbers of a shape that cannot be inferred", "model.random=zero")
            return list(axes)
        shape = [int(n) for n in attribute(self.node, "shape")]
        if not shape or shape[0] != 1:
            raise self._refused(
                f"draws {shape} numbers whatever the number of samples is: they have no axis of samples",
                "model.random=zero",
            )
        return ["samples", *shape[1:]]

    def _is_by_chance(self) -> bool:
        """Return whether the numbers decide about the elements of an input, and are not the result themselves."""
        return is_op(self.node, "Bernoulli", "Dropout")

    def _type(self) -> ir.DataType:
        source = self.node.inputs[0] if self.node.inputs else None
        default = source.dtype if source is not None and source.dtype is not None else ir.DataType.FLOAT
        return ir.DataType(int(attribute(self.node, "dtype", int(default))))

    def _cast(self, value: ir.Value, data: ir.Value | None) -> ir.Value:
        kind = self._type()
        same = data is None or data.dtype in (None, kind)
        return value if same else self._new("Cast", [value], to=int(kind))

    def _constant(self, name: str, value: object, dtype: type = np.int64) -> ir.Value:
        return new_constant(self.graph, f"{self.node.name}/{name}", np.asarray(value, dtype))

    def _new(self, op: str, inputs: list[ir.Value | None], **attributes: object) -> ir.Value:
        name = f"{self.node.name}/{op}"
        made = new_node(self.graph, self.node, op, inputs, name=name, attributes=attributes)
        made.name = f"{name}_output"
        return made

    def _refused(self, found: str, legal: str) -> ModelError:
        return ModelError(
            f"{self.node.op_type} {found}; legal is {legal}", stage=STAGE, where=f"{self.path}, node {self.node.name!r}"
        )
