"""A recurrent layer read off its node: weights by direction, functions, states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.graph.edit import attribute, constant, is_op
from quantpipe.intake.rewrites.recurrent.functions import Function, functions_of

Array = NDArray[np.float32]


@dataclass(frozen=True)
class CellKind:
    """Say what a cell has: its gates, the functions of a direction by default, and whether it has a cell state."""

    gates: int
    functions: tuple[str, ...]
    cell: bool = False


CELLS: Mapping[str, CellKind] = {
    "LSTM": CellKind(4, ("Sigmoid", "Tanh", "Tanh"), cell=True),
    "GRU": CellKind(3, ("Sigmoid", "Tanh")),
    "RNN": CellKind(1, ("Tanh",)),
}
"""Gates in ONNX's order: LSTM input, output, forget, cell; GRU update, reset, hidden."""

PARTS = ("MatMul", "Add", "Mul", "Sigmoid", "Tanh", "Slice", "Concat")
"""What the steps of the usual functions are made of."""

ZEROS = ("ConstantOfShape", "Expand")


@dataclass(frozen=True, eq=False)
class Direction:
    """Hold the numbers of one direction.

    `weight` is `[G·H, I]`, `recurrent` `[G·H, H]`, `bias` `[G·H]` of the input and `[G·H]` of the state, `peephole`
    `[3·H]` (input, output, forget) or None.
    """

    name: str
    place: int
    reverse: bool
    weight: Array
    recurrent: Array
    bias: tuple[Array, Array]
    peephole: Array | None
    functions: tuple[Function, ...]


@dataclass(frozen=True, eq=False)
class RecurrentLayer:
    """Hold a recurrent layer: its node, directions, states and attributes.

    `steps` is None for a free length. `hidden` and `cell` are None if they are zero; `lengths` is None if all samples
    have the whole length.
    """

    node: ir.Node
    kind: CellKind
    size: int
    steps: int | None
    data: ir.Value
    directions: tuple[Direction, ...]
    hidden: ir.Value | None
    cell: ir.Value | None
    lengths: ir.Value | None
    clip: float | None
    input_forget: bool
    reset_after: bool


def layer_of(node: ir.Node, most: int | None = None) -> RecurrentLayer | None:
    """Return the layer that a node is; None if it is no layer, or cannot be written as nodes.

    `most` is the maximum number of steps, which must be fixed; None: any number, or a free one.
    """
    if not is_op(node, *CELLS) or int(attribute(node, "layout", 0)):
        return None
    kind = CELLS[node.op_type]
    data, weight, recurrent, bias, lengths, hidden, cell, peephole = (*node.inputs, *[None] * 8)[:8]
    steps = data.shape[0] if data is not None and data.shape is not None and len(data.shape) == 3 else None
    fixed = steps if isinstance(steps, int) else None
    if data is None or (fixed is not None and fixed < 1):
        return None
    if most is not None and (fixed is None or fixed > most):
        return None
    numbers = [constant(v) for v in (weight, recurrent)]
    if any(n is None for n in numbers) or any(v is not None and constant(v) is None for v in (bias, peephole)):
        return None
    directions = _directions(node, kind, numbers, bias=constant(bias), peephole=constant(peephole))
    if directions is None:
        return None
    whole = constant(lengths)
    clip = attribute(node, "clip")
    return RecurrentLayer(
        node,
        kind,
        directions[0].recurrent.shape[1],
        fixed,
        data,
        directions,
        None if _is_zero(hidden) else hidden,
        None if _is_zero(cell) or not kind.cell else cell,
        None if lengths is None or (whole is not None and fixed is not None and np.all(whole >= fixed)) else lengths,
        None if clip is None else float(clip),
        bool(attribute(node, "input_forget", 0)),
        bool(attribute(node, "linear_before_reset", 0)),
    )


def _directions(
    node: ir.Node, kind: CellKind, numbers: list[Any], *, bias: Any, peephole: Any
) -> tuple[Direction, ...] | None:
    weight, recurrent = (np.asarray(n, np.float32) for n in numbers)
    way = str(attribute(node, "direction", "forward"))
    names = {"forward": ("forward",), "reverse": ("reverse",), "bidirectional": ("forward", "reverse")}.get(way)
    if names is None or len(weight) != len(names):
        return None
    rows = weight.shape[1]
    bias = np.zeros((len(names), 2 * rows), np.float32) if bias is None else np.asarray(bias, np.float32)
    count = len(kind.functions)
    given = attribute(node, "activations", kind.functions * len(names))
    alphas, betas = (attribute(node, f"activation_{which}", ()) for which in ("alpha", "beta"))
    functions = functions_of([str(g) for g in given], tuple(alphas), tuple(betas))
    if functions is None or len(functions) != count * len(names):
        return None
    return tuple(
        Direction(
            name,
            place,
            name == "reverse",
            weight[place],
            recurrent[place],
            (bias[place, :rows], bias[place, rows:]),
            None if peephole is None or not np.any(peephole[place]) else np.asarray(peephole[place], np.float32),
            functions[place * count : (place + 1) * count],
        )
        for place, name in enumerate(names)
    )


def _is_zero(value: ir.Value | None) -> bool:
    """Return whether a state is zero or absent: exporters write out zeros of the batch's size."""
    if value is None:
        return True
    known = constant(value)
    if known is not None:
        return not np.any(known)
    maker = value.producer()
    if maker is None or not is_op(maker, *ZEROS):
        return False
    if is_op(maker, "Expand"):
        return _is_zero(maker.inputs[0])
    filled = attribute(maker, "value")
    return filled is None or not np.any(filled.numpy())
