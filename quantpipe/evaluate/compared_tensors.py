"""Select the tensors of the simulated and the realized model to compare, with the tolerance of each.

Takes a graph, its topology and the names that both renderings give to integers; gives lists of tensors by kind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from quantpipe.graph.op_tables import SHAPES
from quantpipe.graph.view import Graph, Node
from quantpipe.oprules.decisions import JUMPS
from quantpipe.types import Form, Topology

FLOATS = ("float16", "float32", "float64")


@dataclass(frozen=True)
class Watched:
    """Tensors by what two correct runs may differ by.

    `integers` depend on integers alone: no tolerance. `entries`, integers quantized from the result of a float node,
    and `outside`, floats made by float nodes: the rounding of float32. `reals`, floats made by kernels: no tolerance,
    or the order of a float32 sum where the runtime uses one. `outputs`: the model's, which are compared in every
    session. `loose`: results of a decision on floats (an index, a comparison, a rounding). They may be anything where
    the numbers decided on, which are among `outside`, are near a tie.
    """

    integers: tuple[str, ...]
    entries: tuple[str, ...]
    reals: tuple[str, ...]
    outside: tuple[str, ...]
    outputs: tuple[str, ...]
    loose: frozenset[str] = field(default_factory=frozenset)


def of_half_nodes(graph: Graph, topology: Topology) -> frozenset[str]:
    """Return the real tensors that nodes in float16 make, and what nodes in float make of these."""
    found: set[str] = set()
    for node in graph.nodes if topology.half_nodes else ():
        if node.name in topology.float_nodes and (node.name in topology.half_nodes or found.intersection(node.inputs)):
            found.update(node.outputs)
    return frozenset(found)


def watched(graph: Graph, topology: Topology, shared: Collection[str]) -> Watched:
    """Return the tensors to compare.

    `shared`: the tensors whose integers both renderings hold (accumulators by their own names).
    """
    made = {k.output: k for k in topology.kernels}
    entries = island_entries(graph, topology)
    outputs = tuple(o.name for o in graph.outputs)
    handed_on = [
        t for t, k in made.items() if k.form is Form.RAW and t in graph.dtypes and f"{t} (accumulator)" not in shared
    ]
    ends = [t for t in (*entries, *outputs) if t not in made and t in graph.producers]
    decided = {t: tuple(_decided_on(graph, topology, t)) for t in ends}
    asked = [t for tensors in decided.values() for t in tensors if t not in made and t in graph.producers]
    return Watched(
        integers=tuple(t for t in shared if t not in entries),
        entries=tuple(t for t in shared if t in entries),
        reals=tuple(handed_on),
        outside=tuple(dict.fromkeys((*asked, *(t for t in outputs if t in decided)))),
        outputs=outputs,
        loose=frozenset(t for t, tensors in decided.items() if tensors),
    )


def island_entries(graph: Graph, topology: Topology) -> frozenset[str]:
    """Return stored tensors that are quantized from the result of a float node (not from the model's own inputs)."""
    made = {k.output for k in topology.kernels}
    read = {o.tensor for k in topology.kernels for o in k.operands if o.form is Form.QUANTIZED}
    return frozenset(t for t in read if t not in made and t in graph.producers)


def _decided_on(graph: Graph, topology: Topology, tensor: str) -> Iterator[str]:
    """Yield the floats on which decisions before a tensor depend.

    It yields nothing if all nodes on the way are continuous. The way ends where integers enter.
    """
    pending, seen = [tensor], set()
    while pending:
        current = pending.pop()
        node = graph.producers.get(current)
        if current in seen or node is None or node.name in topology.kernel_of or node.name in topology.fused_into:
            continue
        seen.add(current)
        if node.op in SHAPES:
            continue
        real = [t for t in (*node.inputs, *node.captured) if t and graph.dtypes.get(t) in FLOATS]
        real = [t for t in real if not graph.is_constant(t)]
        if real and _decides(graph, node, current):
            yield from real
        pending += [t for t in (*node.inputs, *node.captured) if t]


def _decides(graph: Graph, node: Node, tensor: str) -> bool:
    return node.op in JUMPS or graph.dtypes.get(tensor) not in FLOATS
