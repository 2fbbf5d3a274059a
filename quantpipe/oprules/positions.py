"""Find the angles that a model computes from positions, up to their Sin and Cos (rotary embeddings).

Positions are integers that grow with the text, so samples do not bound them. Their angles grow, too; the results of Sin
and Cos do not. An embedding that reads rows of a table by positions has the range of its table, and is not among them.
"""

from __future__ import annotations

from quantpipe.graph.view import Graph, Node

PERIODIC = ("Sin", "Cos")
"""Ops whose results have the range [-1, 1], however large their argument is."""


def sines_of(graph: Graph) -> tuple[str, ...]:
    """Return the Sin and Cos nodes of angles that follow from integers alone, in graph order."""
    grown: set[str] = set()
    held: set[str] = set()
    for node in graph.nodes:
        read = _reals(graph, node)
        if graph.dtypes.get(node.outputs[0]) != "float32" or node.has_body or not held.union(grown).issuperset(read):
            continue
        counts = not grown.isdisjoint(read) or _converts_integers(graph, node)
        (grown if counts else held).update(node.outputs)
    return tuple(n.name for n in graph.nodes if n.op in PERIODIC and n.inputs[0] in grown)


def angles_of(graph: Graph) -> frozenset[str]:
    """Return the nodes that `sines_of` finds, and all nodes with floats on the way to them."""
    found: set[str] = set()
    pending = list(sines_of(graph))
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            makers = (graph.producers.get(tensor) for tensor in _reals(graph, graph.by_name[name]))
            pending += [maker.name for maker in makers if maker is not None]
    return frozenset(found)


def _reals(graph: Graph, node: Node) -> list[str]:
    """Return the floats that a node reads, constants aside."""
    return [t for t in node.inputs if t and not graph.is_constant(t) and graph.dtypes.get(t) == "float32"]


def _converts_integers(graph: Graph, node: Node) -> bool:
    """Return whether a node makes floats of integers and nothing else (a Cast)."""
    read = [t for t in node.inputs if t]
    single = len(read) == 1 and not graph.is_constant(read[0])
    return single and graph.dtypes.get(read[0], "").startswith(("int", "uint"))
