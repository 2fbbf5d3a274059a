"""Match tensors and nodes of two cleaned models of the same network.

Takes the float original and the float model of a quantized file; gives their counterparts. Tools rename tensors, remove
nodes and insert others, so names are the first criterion and the wiring from the inputs on is the second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import Family, rule_of


@dataclass(frozen=True, eq=False)
class Pairing:
    """Hold counterparts: tensors and nodes of the other model -> tensors and nodes of the original."""

    tensors: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)


def paired(original: Graph, other: Graph) -> Pairing:
    """Return the counterparts of another model's tensors and nodes in the original.

    A node's counterpart has the same op and result shapes, and makes a tensor of its name or reads the counterparts of
    its inputs. Clamps do not count: tools leave them out where stored integers do their work, and the import restores
    some. A node that the original does not have is skipped if it keeps the shape. Anything without a counterpart is
    left out.
    """
    found, taken, mates = Pairing(), set[str](), _Mates(original, other)
    for place, port in enumerate(other.inputs):
        name = port.name if port.name in original.input_names else None
        if name is None and place < len(original.inputs):
            name = original.inputs[place].name
        if name is not None and _alike(original, name, other, port.name):
            found.tensors[port.name] = name
    for node in other.nodes:
        mate = next((n for n in mates.of(node, found) if n.name not in taken), None)
        if mate is not None:
            taken.add(mate.name)
            found.nodes[node.name] = mate.name
            found.tensors.update({o: m for o, m in zip(node.outputs, mate.outputs, strict=False) if o and m})
        elif (passed := _passed(node, original, other, found)) is not None:
            found.tensors[node.outputs[0]] = passed
    return found


class _Mates:
    """Nodes of the original by what they read, clamps between aside."""

    def __init__(self, original: Graph, other: Graph) -> None:
        self._original, self._other = original, other
        self._base: dict[str, str] = {}
        self._readers: dict[str, list[Node]] = {}
        for node in original.nodes:
            reads = _reads(node, original)
            if is_clamp(node) and reads:
                self._base[node.outputs[0]] = self._base.get(reads[0], reads[0])
            for tensor in reads:
                self._readers.setdefault(self._base.get(tensor, tensor), []).append(node)

    def of(self, node: Node, found: Pairing) -> Iterator[Node]:
        """Yield what may be a node's counterpart: by the name of its result first, then by what it reads."""
        named = self._original.producers.get(node.outputs[0])
        known = [found.tensors.get(t) for t in _reads(node, self._other)]
        bases = [self._base.get(t, t) if t is not None else "" for t in known]
        readers = self._readers.get(bases[0], []) if bases else []
        if named is not None and self._fits(node, named):
            yield named
        for mate in readers:
            own = [self._base.get(t, t) for t in _reads(mate, self._original)]
            if self._fits(node, mate) and sorted(own) == sorted(bases):
                yield mate

    def _fits(self, node: Node, mate: Node) -> bool:
        if (mate.op != node.op and not (is_clamp(mate) and is_clamp(node))) or len(mate.outputs) != len(node.outputs):
            return False
        ends = zip(node.outputs, mate.outputs, strict=True)
        return all(_alike(self._original, m, self._other, o) for o, m in ends if o and m)


def _reads(node: Node, graph: Graph) -> list[str]:
    return [t for t in node.inputs if t and not graph.is_constant(t)]


def is_clamp(node: Node) -> bool:
    """Return whether a node does nothing but bound its input."""
    rule = rule_of(node)
    return rule is not None and rule.family is Family.CLAMP


def _passed(node: Node, original: Graph, other: Graph, found: Pairing) -> str | None:
    """Return the counterpart of the input of a node without one, if its only result has the same shape."""
    reads = _reads(node, other)
    if len(reads) != 1 or len(node.outputs) != 1 or reads[0] not in found.tensors:
        return None
    return found.tensors[reads[0]] if _alike(original, found.tensors[reads[0]], other, node.outputs[0]) else None


def _alike(original: Graph, name: str, other: Graph, named: str) -> bool:
    return original.shapes.get(name) == other.shapes.get(named)
