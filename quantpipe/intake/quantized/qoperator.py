"""Replace ops that are integer by their name, such as QLinearConv, by the float op that each represents."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from quantpipe.graph.edit import attribute, new_constant, operand
from quantpipe.graph.op_tables import INTEGER_OPS, IntegerOp, Ports
from quantpipe.intake.quantized.grids import grid_of, refused, whole
from quantpipe.intake.quantized.quantized_ops import AXES
from quantpipe.intake.quantized.walk import DequantizeWalk
from quantpipe.types import ImportedGrid

DROPPED = frozenset({"channels_last", "opset"})
"""Attributes of integer ops that their float ops do not have."""


def integer_op(walk: DequantizeWalk, node: ir.Node) -> None:
    """Put the float op in the place of an integer one with scales of its own."""
    form = INTEGER_OPS[node.op_type]
    if attribute(node, "channels_last", 0) or attribute(node, "opset", 13) < 13:
        return  # another order of axes than the float op has: it stays as it is
    data = [_operand(walk, node, ports, None) for ports in _data(node, form)]
    weight = _operand(walk, node, form.weight, AXES[form.op](node)) if form.weight is not None else None
    if any(v is None for v in data) or (form.weight is not None and weight is None):
        return
    inputs = [*data, *([weight] if weight is not None else [])]
    scaled = form.scale is not None and operand(node, form.scale) is not None
    if (bias := _bias(walk, node, form)) is not None:
        inputs.append(bias)
    attributes = {k: a.value for k, a in node.attributes.items() if k not in DROPPED}
    walk.forms["QOperator"] = None
    real = walk.node(node, form.op, inputs, attributes=attributes)
    if not scaled:
        walk.replace(node.outputs[0], real, node)
        return
    grid = grid_of(node, operand(node, form.scale), operand(node, form.zero), node.outputs[0])
    if grid is None:
        raise refused(node, "the scale of its result is computed at run time; legal is a constant")
    walk.keep(node.outputs[0], walk.clamp(real, grid, node), grid)


def _data(node: ir.Node, form: IntegerOp) -> tuple[Ports, ...]:
    if not form.repeats:
        return form.data
    return tuple(Ports(p, p + 1, p + 2) for p in range(2, len(node.inputs), 3))


def _operand(walk: DequantizeWalk, node: ir.Node, ports: Ports, axis: int | None) -> ir.Value | None:
    """Return the real value of an operand; None if its scale is no constant, or its grid is unknown."""
    integers = operand(node, ports.data)
    if integers is None:
        return None
    known = walk.stored.get(integers)
    grid = grid_of(node, operand(node, ports.scale), operand(node, ports.zero), integers, axis=axis)
    if grid is None:
        return None
    if known is not None and known.grid is not None and (integers.const_value is None or known.grid.same(grid)):
        _refuse_another(node, integers, known.grid, grid)
        return known.real
    if integers.const_value is not None:
        return walk.constant(node, integers, grid)
    return walk.port(integers, grid) if integers in walk.graph.inputs else None


def _refuse_another(node: ir.Node, integers: ir.Value, made: ImportedGrid, read: ImportedGrid) -> None:
    if not made.same(read):
        raise refused(
            node,
            f"it reads {integers.name!r} with scale {read.scale.reshape(-1)[0]:g} and zero point "
            f"{read.zero.reshape(-1)[0]}; it is stored with {made.scale.reshape(-1)[0]:g} and "
            f"{made.zero.reshape(-1)[0]}",
        )


def _bias(walk: DequantizeWalk, node: ir.Node, form: IntegerOp) -> ir.Value | None:
    """Return the real bias of an int32 one at the scale of the products."""
    integers = operand(node, form.bias)
    values = whole(integers)
    if integers is None or values is None or form.weight is None:
        return None
    scales = [operand(node, p.scale) for p in (form.data[0], form.weight)]
    steps = [np.asarray(s.const_value.numpy(), np.float64) for s in scales if s is not None and s.const_value]
    if values.dtype.kind == "f" or len(steps) < 2:
        return integers
    step = steps[0].reshape(()) * steps[1].reshape(-1) * float(attribute(node, "alpha", 1.0))
    real = (values.astype(np.float64) * (step if step.size > 1 else step.reshape(()))).astype(np.float32)
    return new_constant(walk.graph, f"{integers.name}_real", real)
