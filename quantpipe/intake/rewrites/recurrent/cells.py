"""One step of each cell. Every tensor is `[1, B, …]`: the step's axis stays, so that nothing has to be reshaped.

The product of the input with its weights, biases included, comes in as `gates`; a state of None is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantpipe.intake.rewrites.recurrent.functions import Function
from quantpipe.intake.rewrites.recurrent.layer import Array, Direction, RecurrentLayer
from quantpipe.intake.rewrites.recurrent.writer import FEATURES, StepWriter


@dataclass(frozen=True)
class CellState:
    """Hold the state that a step passes to the next step; None is zero. `cell` belongs to an LSTM."""

    hidden: ir.Value | None = None
    cell: ir.Value | None = None


@dataclass(frozen=True, eq=False)
class Weights:
    """Hold the constants of a direction, as its steps multiply by them.

    `input` is `[I, G·H]` and `bias` `[G·H]`, for all steps at once; `recurrent` `[H, …]` by name of the product.
    """

    input: Array
    bias: Array
    recurrent: Mapping[str, Array]
    within: Array | None = None
    """Of a GRU that resets behind its product: the bias of that product."""


@dataclass(frozen=True, eq=False)
class CellStep:
    """Hold what a step is written with: the writer, the layer, the direction, its weights, and the step's name."""

    writer: StepWriter
    layer: RecurrentLayer
    way: Direction
    weights: Weights
    name: str

    def op(self, op: str, *inputs: ir.Value | None, name: str) -> ir.Value:
        """Append a node of this step."""
        return self.writer.op(op, *inputs, name=f"{self.name}/{name}")

    def part(self, value: ir.Value, first: int, count: int, name: str) -> ir.Value:
        """Return some of the gates, each of H features."""
        size = self.layer.size
        return self.writer.part(value, FEATURES, first * size, (first + count) * size, name=f"{self.name}/{name}")

    def product(self, hidden: ir.Value, which: str, name: str) -> ir.Value:
        """Return a state times recurrent weights."""
        held = self.writer.constant(f"{self.way.name}/{which}", self.weights.recurrent[which])
        return self.op("MatMul", hidden, held, name=name)

    def function(self, value: ir.Value, place: int, name: str) -> ir.Value:
        """Return the function of gates, or of a state, clipped first where the layer has a clip."""
        function: Function = self.way.functions[place]
        if self.layer.clip is not None:
            low, high = (
                self.writer.constant(f"clip_{side}", np.float32(sign * self.layer.clip))
                for side, sign in (("low", -1), ("high", 1))
            )
            value = self.op("Clip", value, low, high, name=f"{name}_clip")
        return function.written(self.writer, value, f"{self.name}/{name}")


def lstm(step: CellStep, gates: ir.Value, state: CellState) -> CellState:
    """Write a step of an LSTM: c' = f·c + i·g, h' = o·act(c')."""
    hidden, cell = state.hidden, state.cell
    if hidden is not None:
        gates = step.op("Add", gates, step.product(hidden, "recurrent", "product"), name="gates")
    if step.way.peephole is None:
        opened = step.function(step.part(gates, 0, 3, "open_in"), 0, "open")
        i, o, f = (step.part(opened, place, 1, name) for place, name in enumerate(("i", "o", "f")))
        if step.layer.input_forget:
            f = _rest(step, i, "f_rest")
    else:
        i, f = _peeped(step, gates, 0, cell, name="i"), _peeped(step, gates, 2, cell, name="f")
        if step.layer.input_forget:
            f = _rest(step, i, "f_rest")
        o = None
    fresh = step.op("Mul", i, step.function(step.part(gates, 3, 1, "g_in"), 1, "g"), name="fresh")
    if cell is not None:
        fresh = step.op("Add", step.op("Mul", f, cell, name="kept"), fresh, name="cell")
    if o is None:
        o = _peeped(step, gates, 1, fresh, name="o")
    # The bound is on what gates are made of: runtimes leave the cell state as it is.
    shown = step.way.functions[2].written(step.writer, fresh, f"{step.name}/shown")
    return CellState(step.op("Mul", o, shown, name="hidden"), fresh)


def _peeped(step: CellStep, gates: ir.Value, place: int, cell: ir.Value | None, *, name: str) -> ir.Value:
    """Return a gate that sees the cell state."""
    own = step.part(gates, place, 1, f"{name}_in")
    if cell is not None and step.way.peephole is not None:
        size = step.layer.size
        weights = step.way.peephole[place * size : (place + 1) * size]
        held = step.writer.constant(f"{step.way.name}/peephole_{name}", weights)
        own = step.op("Add", own, step.op("Mul", cell, held, name=f"{name}_peep"), name=f"{name}_seen")
    return step.function(own, 0, name)


def _rest(step: CellStep, value: ir.Value, name: str) -> ir.Value:
    one = step.writer.constant("one", np.float32(1))
    return step.op("Sub", one, value, name=name)


def gru(step: CellStep, gates: ir.Value, state: CellState) -> CellState:
    """Write a step of a GRU: h' = (1 - z)·n + z·h.

    Where gates go through Sigmoid, 1 - z is the sigmoid of the same gate with its sign flipped. It comes out of the
    product as a gate of its own (`Weights` has it), because many devices cannot subtract.
    """
    hidden, twin = state.hidden, _has_twin(step.way)
    opened = 3 if twin else 2
    own, new = step.part(gates, 0, opened, "open_x"), step.part(gates, opened, 1, "new_x")
    after: ir.Value | None = None
    if step.layer.reset_after:
        if hidden is not None:
            both = step.product(hidden, "recurrent", "product")
            own = step.op("Add", own, step.part(both, 0, opened, "open_h"), name="open_in")
            after = step.part(both, opened, 1, "new_h")
        if step.weights.within is not None:
            held = step.writer.constant(f"{step.way.name}/within", step.weights.within)
            after = held if after is None else step.op("Add", after, held, name="new_h_bias")
    elif hidden is not None:
        own = step.op("Add", own, step.product(hidden, "gates", "product"), name="open_in")
    open_ = step.function(own, 0, "open")
    z = step.part(open_, 0, 1, "z")
    rest = step.part(open_, 1, 1, "rest") if twin else _rest(step, z, "rest")
    if after is not None or (hidden is not None and not step.layer.reset_after):
        r = step.part(open_, opened - 1, 1, "r")
        if after is not None:
            seen = step.op("Mul", r, after, name="reset")
        else:
            seen = step.product(step.op("Mul", r, hidden, name="reset"), "new", "new_product")
        new = step.op("Add", new, seen, name="new_in")
    fresh = step.op("Mul", rest, step.function(new, 1, "new"), name="fresh")
    if hidden is None:
        return CellState(fresh)
    return CellState(step.op("Add", fresh, step.op("Mul", z, hidden, name="kept"), name="hidden"))


def rnn(step: CellStep, gates: ir.Value, state: CellState) -> CellState:
    """Write a step of an Elman cell: h' = act(gates + h·R)."""
    if state.hidden is not None:
        gates = step.op("Add", gates, step.product(state.hidden, "recurrent", "product"), name="gates")
    return CellState(step.function(gates, 0, "hidden"))


WRITERS: Mapping[str, Callable[[CellStep, ir.Value, CellState], CellState]] = {"LSTM": lstm, "GRU": gru, "RNN": rnn}


def weights_of(layer: RecurrentLayer, way: Direction) -> Weights:
    """Return the constants of a direction, turned for products from the left, as its cell multiplies by them."""
    weight, recurrent, (of_input, of_state) = way.weight.T, way.recurrent.T, way.bias
    if layer.node.op_type != "GRU":
        return Weights(weight, of_input + of_state, {"recurrent": recurrent})
    size = layer.size
    bias, within = of_input + of_state, None
    if layer.reset_after:
        bias = np.concatenate([bias[: 2 * size], of_input[2 * size :]])
        within = of_state[2 * size :] if np.any(of_state[2 * size :]) else None
    if _has_twin(way):
        weight, recurrent, bias = (_with_twin(v, size) for v in (weight, recurrent, bias))
    opened = recurrent.shape[1] - size
    parts = {"gates": recurrent[:, :opened], "new": recurrent[:, opened:]}
    return Weights(weight, bias, {"recurrent": recurrent} if layer.reset_after else parts, within)


def _has_twin(way: Direction) -> bool:
    return way.functions[0].name == "Sigmoid"


def _with_twin(values: Array, size: int) -> Array:
    """Return the update gate, the same with its sign turned, then the other gates, along the last axis."""
    update = values[..., :size]
    return np.concatenate([update, -update, values[..., size:]], axis=-1)
