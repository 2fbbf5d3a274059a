"""Additions and products that are left in float, since only float nodes read them and no more tensors are converted.

After a dense layer whose kernel can give floats, an addition in integers would store the layer's result, the
other operand and the sum, only for a LayerNormalization to read all that as floats again. In float nothing is
stored in between, and nothing is converted that was not before. The square of a stored tensor, of which a mean is taken
in float, costs one conversion either way: of the square, or of the tensor. Only in float does it keep its
precision, which the difference of two such means needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import Family, rule_of


def real_sums(
    graph: Graph,
    integer: Collection[str],
    candidates: Collection[str],
    *,
    makers: Collection[str],
    moves: Collection[str],
) -> set[str]:
    """Return the additions and products that are real at no cost, chains of them included.

    `integer`: The nodes that run in integers, as far as is decided. `candidates`: The additions and products among them
    that the device also runs in float. `makers`: The nodes among them that can give floats instead of stored ones.
    `moves`: Nodes that only move values, and may be on either side.
    """
    around = _Around(graph, frozenset(integer), frozenset(makers), frozenset(moves), set(candidates))
    while lost := around.lost() or around.dear():
        around.found.difference_update(lost)
    return around.found


@dataclass(frozen=True, eq=False)
class _Around:
    """What is around the nodes that are real (`found`), which get fewer until none of them costs a conversion."""

    graph: Graph
    integer: frozenset[str]
    makers: frozenset[str]
    moves: frozenset[str]
    found: set[str]

    def lost(self) -> set[str]:
        """Return nodes whose result an integer node reads."""
        return {name for name in self.found if not self._read_as_real(self._result(name))}

    def dear(self) -> set[str]:
        """Return nodes of the chains for which more stored tensors are made real than results would have been."""
        found: set[str] = set()
        for chain in self._chains():
            stored = {name: self._stored(name) for name in chain}
            leaving = {name for name in chain if self._read_in_float(self._result(name))}
            if len(set().union(*stored.values())) > len(leaving):
                inner = {name for name in chain if stored[name] and name not in leaving}
                found |= inner or {name for name in chain if stored[name]}
        return found

    def _chains(self) -> list[list[str]]:
        """The nodes that are real, by what is connected through their results."""
        chain_of: dict[str, list[str]] = {}
        for node in self.graph.nodes:
            if node.name not in self.found:
                continue
            before = {id(c): c for t in self._operands(node) if (c := chain_of.get(self._maker(t))) is not None}
            joined = [name for chain in before.values() for name in chain] + [node.name]
            chain_of |= dict.fromkeys(joined, joined)
        return list({id(chain): chain for chain in chain_of.values()}.values())

    def _maker(self, tensor: str) -> str:
        """The node that computes a tensor, before ops that only move it."""
        maker = self.graph.producers.get(tensor)
        while maker is not None and maker.name in self.moves:
            maker = self.graph.producers.get(maker.inputs[0])
        return "" if maker is None else maker.name

    def _stored(self, name: str) -> set[str]:
        """The operands that are stored, and that no float node reads as floats anyway."""
        return {t for t in self._operands(self.graph.by_name[name]) if not self._comes_as_real(t)}

    def _comes_as_real(self, tensor: str) -> bool:
        maker = self.graph.producers.get(tensor)
        while True:
            if self._read_in_float(tensor):
                return True
            if maker is None or maker.name not in self.moves or not self._read_as_real(tensor):
                break
            tensor, maker = maker.inputs[0], self.graph.producers.get(maker.inputs[0])
        if maker is None or maker.name in self.found or maker.name not in self.integer:
            return True
        return maker.name in self.makers and self._read_as_real(tensor)

    def _read_as_real(self, tensor: str) -> bool:
        """Whether nothing but float nodes, and nodes that are real, read it."""
        readers = list(_readers(self.graph, tensor, self.moves))
        return bool(readers) and all(r is None or r.name in self.found or r.name not in self.integer for r in readers)

    def _read_in_float(self, tensor: str) -> bool:
        """Whether a node reads it that is in float in any case, or an output of the model holds it."""
        return any(r is None or r.name not in self.integer for r in _readers(self.graph, tensor, self.moves))

    def _operands(self, node: Node) -> list[str]:
        rule = rule_of(node)
        ports = rule.activations(node, self.graph) if rule is not None else ()
        return [node.inputs[port] for port in ports if not self.graph.is_constant(node.inputs[port])]

    def _result(self, name: str) -> str:
        return self.graph.by_name[name].outputs[0]


def may_be_real(node: Node) -> bool:
    """Return whether a node is an addition or a product of two tensors."""
    rule = rule_of(node)
    return rule is not None and rule.family in (Family.SUM, Family.PRODUCT)


def _readers(graph: Graph, tensor: str, moves: Collection[str]) -> Iterator[Node | None]:
    """Who reads a tensor, after nodes that only move it; None for what reads an output of the model."""
    if tensor in graph.output_names:
        yield None
    for reader, _ in graph.consumers.get(tensor, ()):
        if reader.name in moves:
            yield from _readers(graph, reader.outputs[0], moves)
        else:
            yield reader
