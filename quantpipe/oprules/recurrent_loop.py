"""Find products of a state by constants in the body of a loop (Scan); a state comes from the step before.

A hidden state is read by a product as it is, or after a gate of 0 to 1 (a GRU that resets before its product). All such
inputs of a product are in the range of the states, which the loop shows step by step as one of its outputs.

Files of this feature, all `recurrent_loop.py`: `oprules` (finds them), `types`, `annotate` (decides), `lowering`
(writes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from quantpipe.graph.view import Graph, Node

GATES = frozenset({"Sigmoid", "HardSigmoid"})
VIEWS = frozenset({"Slice", "Identity"})
SHAPES = frozenset({"Squeeze", "Unsqueeze", "Identity"})


@dataclass(frozen=True)
class LoopProducts:
    """Hold what a loop multiplies: the output that shows all states, and the body's products by node and constant.

    `others`: outputs that show the other floats that go from step to step; `unseen`: how many no output shows.
    """

    state: str
    products: tuple[tuple[str, str], ...]
    others: tuple[str, ...] = ()
    unseen: int = 0


def body_of(node: Node) -> ir.Graph | None:
    """Return the body of a Scan; None for another op."""
    if node.op != "Scan" or node.domain:
        return None
    found = node.attributes["body"].value
    return found if isinstance(found, ir.Graph) else None


def products_of(node: Node, graph: Graph) -> LoopProducts | None:
    """Return the products of a loop by constants of the graph around it.

    None if it has no such product, if they read several states, or if no output shows the state.
    """
    body = body_of(node)
    if body is None:
        return None
    states = len(node.inputs) - int(node.attr("num_scan_inputs", 0))
    carried = {value: place for place, value in enumerate(body.inputs[:states])}
    found: list[tuple[str, str]] = []
    places: set[int] = set()
    for inner in body:
        weight = _constant(inner, graph)
        place = None if weight is None else _state_of(inner.inputs[0], carried)
        if weight is not None and place is not None:
            found.append((name_of(inner), weight))
            places.add(place)
    if len(places) != 1 or len({name for name, _ in found}) < len(found):
        return None
    multiplied_place = places.pop()
    state = _shown(node, body, multiplied_place, states)
    if state is None:
        return None
    more = [p for p in range(states) if p != multiplied_place and body.inputs[p].dtype in (None, ir.DataType.FLOAT)]
    shown = [_shown(node, body, place, states) for place in more]
    others = dict.fromkeys(t for t in shown if t is not None and t != state)
    return LoopProducts(state, tuple(found), tuple(others), shown.count(None))


def _shown(node: Node, body: ir.Graph, place: int, states: int) -> str | None:
    """Return the output of a loop that shows every value of a state."""
    made = made_of(body.outputs[place])
    if made is None or made.producer() is None:
        return None  # the step before had it already
    shown = (k for k, v in enumerate(body.outputs[states:], states) if made_of(v) is made)
    return next((node.outputs[k] for k in shown if k < len(node.outputs) and node.outputs[k]), None)


def name_of(inner: ir.Node) -> str:
    """Return the name of a node of a body; its result's name if it has no name, as other exporters leave it."""
    return inner.name or inner.outputs[0].name or ""


def multiplied(node: Node, graph: Graph) -> Mapping[str, int]:
    """Return how many weights each product of a loop by a constant of the graph has, by its node in the body."""
    body = body_of(node)
    if body is None:
        return {}
    weights = ((name_of(inner), _constant(inner, graph)) for inner in body)
    return {name: graph.constant(weight).size for name, weight in weights if weight is not None}


def _constant(inner: ir.Node, graph: Graph) -> str | None:
    """Return the matrix of the graph around a body that one of its nodes multiplies by."""
    if inner.op_type != "MatMul" or inner.domain:
        return None
    name = (inner.inputs[1].name if inner.inputs[1] is not None else None) or ""
    known = bool(name) and graph.is_constant(name) and graph.constant(name).ndim == 2
    return name if known else None


def _state_of(value: ir.Value | None, carried: Mapping[ir.Value, int]) -> int | None:
    """Return the state that a value is, or is made from by a gate."""
    if value is None:
        return None
    if value in carried:
        return carried[value]
    maker = value.producer()
    if maker is None or maker.op_type != "Mul":
        return None
    a, b = maker.inputs
    for gate, state in ((a, b), (b, a)):
        if state is not None and state in carried and _is_gate(gate):
            return carried[state]
    return None


def _is_gate(value: ir.Value | None) -> bool:
    maker = None if value is None else value.producer()
    while maker is not None and maker.op_type in VIEWS:
        maker = None if maker.inputs[0] is None else maker.inputs[0].producer()
    return maker is not None and maker.op_type in GATES


def made_of(value: ir.Value | None) -> ir.Value | None:
    """Return the result of a step, after the choices between it and the value of a sample that has ended."""
    while value is not None and (maker := value.producer()) is not None:
        if maker.op_type in SHAPES:
            value = maker.inputs[0]
        elif maker.op_type == "Where":
            value = maker.inputs[1]
        else:
            break
    return value
