"""Float islands: connected parts of the graph that stay in float, and the conversions that their borders cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quantpipe.annotate.disjoint import DisjointSets
from quantpipe.graph.view import Graph
from quantpipe.oprules.masks import OF_SHAPES
from quantpipe.types import Form, Topology

REAL = "float32"


@dataclass(frozen=True)
class Island:
    """Describe nodes in float that hang together.

    `nodes` are in graph order. `place`: entry (fed by the model's inputs only), exit (read by its outputs only),
    inside.

    `conversions`: tensors that are dequantized for it or quantized after it, once each per run.
    """

    nodes: tuple[str, ...]
    place: str
    conversions: int


def islands(graph: Graph, topology: Topology) -> tuple[Island, ...]:
    """Return all islands of float nodes, in graph order."""
    float_nodes = [n for n in graph.nodes if n.name in topology.float_nodes and computes_reals(graph, n.name)]
    classes = DisjointSets(n.name for n in float_nodes)
    names = {n.name for n in float_nodes}
    for node in float_nodes:
        for tensor in (*node.inputs, *node.captured):
            producer = graph.producers.get(tensor)
            if producer is not None and producer.name in names:
                classes.merge(producer.name, node.name)
    made = stored_as(topology)
    return tuple(_island(graph, topology, made, nodes) for nodes in classes.in_order())


def computes_reals(graph: Graph, node: str) -> bool:
    """Return whether a node computes floats; arithmetic on shapes and indices does not.

    A node that makes floats of integers alone (the Cast of a mask) does not either: it converts them, like a
    quantization does.
    """
    made = graph.by_name[node]
    read = [graph.dtypes.get(t, REAL) for t in made.inputs if t]
    lets_in = bool(read) and REAL not in read and not made.has_body
    return not lets_in and any(graph.dtypes.get(t, REAL) == REAL for t in made.outputs if t)


def stored_as(topology: Topology) -> Mapping[str, Form]:
    """Return a mapping: tensor -> the form in which its kernel makes it."""
    return {k.output: k.form for k in topology.kernels}


def conversions(graph: Graph, topology: Topology) -> tuple[int, int]:
    """Return (at the model's ends, between nodes): how many tensors change their form in a run."""
    made = stored_as(topology)
    inputs = {i.name for i in graph.inputs}
    ends = inner = 0
    wanted: dict[str, set[Form]] = {}
    for kernel in topology.kernels:
        for operand in kernel.operands:
            if not graph.is_constant(operand.tensor):
                wanted.setdefault(operand.tensor, set()).add(operand.form)
    for node in graph.nodes:
        if node.name in topology.float_nodes and node.op not in OF_SHAPES:
            for tensor in node.inputs:
                if tensor in made:
                    wanted.setdefault(tensor, set()).add(Form.FLOAT)
    for tensor, forms in wanted.items():
        changed = len(forms - {made.get(tensor, Form.FLOAT)})
        if tensor in inputs:
            ends += changed
        else:
            inner += changed
    ends += sum(t in made and Form.FLOAT not in wanted.get(t, set()) for t in graph.output_names)
    return ends, inner


def rescales(topology: Topology) -> int:
    """Return how many operands are brought to another scale on their way into an op that keeps scales."""
    return sum(o.rescaled for k in topology.kernels for o in k.operands)


def _island(graph: Graph, topology: Topology, made: Mapping[str, Form], nodes: tuple[str, ...]) -> Island:
    own = set(nodes)
    read = dict.fromkeys(t for n in nodes for t in (*graph.by_name[n].inputs, *graph.by_name[n].captured) if t)
    written = [t for n in nodes for t in graph.by_name[n].outputs if t]
    stored = {o.tensor for k in topology.kernels for o in k.operands}
    entering = [t for t in read if t in made]
    leaving = [t for t in written if t in stored]
    fed = [n for t in read if (n := _producer(graph, t)) is not None and n not in own and computes_reals(graph, n)]
    place = "entry" if not fed else "exit" if not leaving else "inside"
    return Island(nodes, place, len(entering) + len(leaving))


def _producer(graph: Graph, tensor: str) -> str | None:
    node = graph.producers.get(tensor)
    return node.name if node is not None else None
