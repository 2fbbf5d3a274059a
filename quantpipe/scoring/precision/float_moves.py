"""Group nodes that may be left in float together: nodes with the same role in repeated blocks are one move.

A transformer of six layers adds six masks and twelve residuals. No single node regains the loss of all six, so a search
by single nodes sees no gain anywhere. Measurements of a role do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from quantpipe.annotate.choices import bits_key
from quantpipe.annotate.range_choices import range_key
from quantpipe.graph.view import Graph, Node
from quantpipe.hardware.cost import macs
from quantpipe.types import ScaleGroup, Topology

MOST_ROLES = 16
"""More roles than this are taken together, by what lies nearer around a node, so that a budget can measure each."""

STEPS = 2
"""How far around a node its role looks."""


@dataclass(frozen=True)
class PrecisionMove:
    """Nodes that are left in float, or not, as one. `share`: of the model's multiply-accumulates."""

    nodes: tuple[str, ...]
    op: str
    share: float

    @property
    def heavy(self) -> bool:
        """Return whether the nodes do the multiplications that integers are there for."""
        return self.share > 0

    def halves(self) -> tuple[PrecisionMove, ...]:
        """Return the first and the second half in execution order; nothing for a single node."""
        middle = len(self.nodes) // 2
        if middle == 0:
            return ()
        parts = (self.nodes[:middle], self.nodes[middle:])
        return tuple(PrecisionMove(part, self.op, self.share * len(part) / len(self.nodes)) for part in parts)


def named(move: PrecisionMove) -> str:
    """Return a move as text: the op, the number of nodes, the first and the last node."""
    if len(move.nodes) == 1:
        return f"{move.op} {move.nodes[0]}"
    return f"{len(move.nodes)} x {move.op}: {move.nodes[0]} to {move.nodes[-1]}"


def moves_of(graph: Graph, nodes: Collection[str]) -> tuple[PrecisionMove, ...]:
    """Return the roles that `nodes` fall into, in execution order of their first nodes.

    Two nodes have one role if their op, the shapes of their constants, and the roles of their neighbours up to `STEPS`
    away are equal (colours of Weisfeiler and Lehman). If that makes more than `MOST_ROLES` roles, fewer steps count.
    """
    chosen = [node for node in graph.nodes if node.name in nodes]
    total = sum(macs(node, graph) for node in graph.nodes) or 1
    parts: Mapping[object, list[Node]] = {}
    for steps in range(STEPS, -1, -1):
        colour = _colours(graph, steps)
        parts = _parted(chosen, [(node.op, macs(node, graph) > 0, colour[node.name]) for node in chosen])
        if len(parts) <= MOST_ROLES:
            break
    else:
        parts = _parted(chosen, [(node.op, macs(node, graph) > 0) for node in chosen])
    return tuple(
        PrecisionMove(tuple(n.name for n in part), part[0].op, sum(macs(n, graph) for n in part) / total)
        for part in parts.values()
    )


def range_moves(graph: Graph, groups: Sequence[ScaleGroup]) -> tuple[PrecisionMove, ...]:
    """Return the scale groups by the op that makes their first tensor, each by the key of its choice of range."""
    parts: dict[str, list[str]] = {}
    for group in groups:
        producer = graph.producers.get(group.key)
        parts.setdefault("input" if producer is None else producer.op, []).append(range_key(group.key))
    return tuple(PrecisionMove(tuple(keys), op, 0.0) for op, keys in parts.items())


def raised_moves(graph: Graph, topology: Topology, keys: Collection[str]) -> tuple[PrecisionMove, ...]:
    """Return the tensors that may have more bits, by the role of the node that makes them, with weights read by them.

    A layer that reads a tensor of more bits runs in the wider type, in which more bits of its weight cost nothing.

    Returns the moves, by the keys of the choices of bits; inputs of the model are one move each.
    """
    groups = {group.key: group for group in topology.groups if group.key in keys}
    makers = {key: producer.name for key in groups if (producer := graph.producers.get(key)) is not None}
    roles = [
        (move.op, [key for key in groups if makers.get(key) in move.nodes])
        for move in moves_of(graph, frozenset(makers.values()))
    ]
    roles = [("input", [key]) for key in groups if key not in makers] + roles
    moves = []
    for op, found in roles:
        tensors = {tensor for key in found for tensor in groups[key].tensors}
        layers = (k for k in topology.kernels if any(o.tensor in tensors for o in k.operands))
        weights = [k.weight for k in layers if k.weight is not None and k.weight in keys]
        moves.append(PrecisionMove(tuple(bits_key(name) for name in dict.fromkeys((*found, *weights))), op, 0.0))
    return tuple(moves)


def _parted(nodes: Sequence[Node], keys: Sequence[object]) -> dict[object, list[Node]]:
    parts: dict[object, list[Node]] = {}
    for node, key in zip(nodes, keys, strict=True):
        parts.setdefault(key, []).append(node)
    return parts


def _colours(graph: Graph, steps: int) -> dict[str, int]:
    """Node -> a number that two nodes share where they look alike up to `steps` away."""
    colour = _numbered({n.name: (n.op, _constants(graph, n), len(n.outputs)) for n in graph.nodes})
    for _ in range(steps):
        around: dict[str, object] = {}
        for node in graph.nodes:
            before = tuple(_colour_of(graph, t, colour) for t in node.inputs)
            after = sorted(colour[r.name] for t in node.outputs for r, _ in graph.consumers.get(t, ()))
            around[node.name] = (colour[node.name], before, tuple(after))
        colour = _numbered(around)
    return colour


def _constants(graph: Graph, node: Node) -> tuple[object, ...]:
    return tuple(graph.shapes.get(t, ()) if t and graph.is_constant(t) else None for t in node.inputs)


def _colour_of(graph: Graph, tensor: str, colour: Mapping[str, int]) -> int:
    producer = graph.producers.get(tensor)
    return -1 if producer is None else colour[producer.name]


def _numbered(keys: Mapping[str, object]) -> dict[str, int]:
    numbers: dict[object, int] = {}
    return {name: numbers.setdefault(key, len(numbers)) for name, key in keys.items()}
