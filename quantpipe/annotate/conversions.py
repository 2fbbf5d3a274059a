"""Conversions moved through ops that work on both types, so that as few tensors as possible change their form.

Ops that move values (Reshape, Transpose, MaxPool, …) give the same numbers in integers as in float. Where the device
has them in both, each takes the side that costs the graph the fewest conversions: the smallest cut between what must be
integer and what must be float, one unit per tensor that is dequantized or quantized. Ties leave a node where it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping

import numpy as np

from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import Family, rule_of

Integer = Callable[[str], bool]
"""Whether a node runs in integers, as far as is decided."""

SOURCE, SINK = "integer", "float"
Vertex = tuple[str, str]
Capacities = dict[Vertex, dict[Vertex, int]]


def fewest_conversions(
    graph: Graph, integer: Integer, free: Mapping[str, bool], makers: Collection[str] = ()
) -> dict[str, bool]:
    """Return a mapping: node -> whether it runs in integers, for the nodes of `free` whose side changes.

    `free`: Nodes that may be on either side, and where each of them is. `makers`: Integer nodes that can give floats at
    no cost, where one node alone reads them.
    """
    found: dict[str, bool] = {}
    real = frozenset((*graph.output_names, *(t for n in graph.nodes for t in n.captured)))
    for members in _components(graph, free):
        side = _integer_side(_network(graph, integer, members, free, real=real, makers=makers))
        found |= {n: n in side for n in members if (n in side) is not free[n]}
    return found


def may_move(node: Node, graph: Graph, is_integer: bool) -> bool:
    """Return whether an op moves values only.

    Into integers it comes alone: several operands would have to share a scale.
    """
    rule = rule_of(node)
    if rule is None or rule.family is not Family.MOVE:
        return False
    return is_integer or len(rule.activations(node, graph)) == 1


def _components(graph: Graph, free: Mapping[str, bool]) -> list[list[str]]:
    """Free nodes that share tensors, in graph order; tensors between two components are decided already."""
    seen: set[str] = set()
    found = []
    for node in graph.nodes:
        if node.name not in free or node.name in seen:
            continue
        members, waiting = [], deque([node.name])
        seen.add(node.name)
        while waiting:
            name = waiting.popleft()
            members.append(name)
            for near in _around(graph, graph.by_name[name]):
                if near in free and near not in seen:
                    seen.add(near)
                    waiting.append(near)
        found.append(members)
    return found


def _around(graph: Graph, node: Node) -> list[str]:
    """Nodes that make or read a tensor that the node makes or reads."""
    found = []
    for tensor in _touched(graph, node):
        producer = graph.producers.get(tensor)
        found += [producer.name] if producer is not None else []
        found += [reader.name for reader, _ in graph.consumers.get(tensor, ())]
    return found


def _touched(graph: Graph, node: Node) -> list[str]:
    """Data tensors of a node: what it reads as activations and what it makes."""
    rule = rule_of(node)
    ports = rule.activations(node, graph) if rule is not None else ()
    return [node.inputs[p] for p in ports if not graph.is_constant(node.inputs[p])] + [node.outputs[0]]


def _network(
    graph: Graph,
    integer: Integer,
    members: list[str],
    free: Mapping[str, bool],
    *,
    real: Collection[str],
    makers: Collection[str],
) -> Capacities:
    """Return capacities whose minimum cut is the conversions of the tensors around `members`.

    Changed sides are counted, too, at far less. `real`: tensors that are read as floats from outside the graph's
    nodes.
    """
    inside, unit = set(members), len(members) + 1
    everything = unit * (2 * sum(len(_touched(graph, graph.by_name[m])) for m in members) + 1)
    net: Capacities = {(SOURCE, ""): {}, (SINK, ""): {}}

    def edge(a: Vertex, b: Vertex, capacity: int) -> None:
        net.setdefault(a, {})[b] = net.setdefault(a, {}).get(b, 0) + capacity
        net.setdefault(b, {}).setdefault(a, 0)

    def vertex(name: str | None) -> Vertex:
        if name in inside:
            return ("node", name or "")
        return (SOURCE, "") if name is not None and integer(name) else (SINK, "")

    for member in members:
        if free[member]:
            edge((SOURCE, ""), ("node", member), 1)
        else:
            edge(("node", member), (SINK, ""), 1)
    for tensor in dict.fromkeys(t for m in members for t in _touched(graph, graph.by_name[m])):
        producer = graph.producers.get(tensor)
        maker = vertex(producer.name if producer is not None else None)
        readers = [vertex(reader.name) for reader, _ in graph.consumers.get(tensor, ())]
        readers += [(SINK, "")] if tensor in real else []
        given = producer is not None and producer.name in makers and len(readers) == 1
        edge(maker, ("real", tensor), 0 if given else unit)  # dequantized, if the maker is integer and a reader is not
        edge(("stored", tensor), maker, unit)  # quantized, if the maker is float and a reader is not
        for reader in dict.fromkeys(readers):
            edge(("real", tensor), reader, everything)
            edge(reader, ("stored", tensor), everything)
    return net


def _integer_side(net: Capacities) -> set[str]:
    """The nodes on the source's side of a minimum cut (of several: the one with the fewest nodes there)."""
    from scipy.sparse import csr_array  # here, as it takes half a second that not every command needs
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    number = {vertex: i for i, vertex in enumerate(net)}
    rows, columns, capacities = zip(*((number[a], number[b], c) for a in net for b, c in net[a].items()), strict=True)
    size = (len(net), len(net))
    places = np.array(rows, np.int32), np.array(columns, np.int32)  # before SciPy 1.15 maximum_flow takes no others
    graph = csr_array((np.array(capacities, np.int32), places), shape=size)
    source, sink = number[SOURCE, ""], number[SINK, ""]
    left = graph - maximum_flow(graph, source, sink).flow
    left.eliminate_zeros()
    reached = set(breadth_first_order(left, source, return_predecessors=False).tolist())
    return {name for (kind, name), i in number.items() if kind == "node" and i in reached}
