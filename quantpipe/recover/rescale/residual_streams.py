"""Find where the channels of tensors can be mixed without changing the network.

Such a stream consists of tensors that only additions and other linear ops tie together, the layers that make them, and
the layers that read them. The stream through the residual blocks of a MobileNetV2 is one: convolutions without a clamp
behind them, additions, and the convolutions that read it. With an orthogonal M, T' = M T for all of its tensors: a
maker's weight becomes M W, its bias M b, a reader's weight W Mᵀ.

The input is graph and topology; the result is every such stream, and for each layer whose result is in none why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import Family, rule_of
from quantpipe.oprules.channels import COLUMNS, PASSAGES, keeps_rows
from quantpipe.recover.rescale.channel_regions import users_of_constants
from quantpipe.types import Topology


@dataclass(frozen=True)
class Stream:
    """Describe tensors whose channels can be mixed together.

    `tensors`, `makers` and `readers` (nodes) are in graph order; the first tensor names the stream. `channels`: of each
    of the tensors.
    """

    tensors: tuple[str, ...]
    makers: tuple[str, ...]
    readers: tuple[str, ...]
    channels: int

    @property
    def name(self) -> str:
        """Return the name of the stream, which is its first tensor."""
        return self.tensors[0]


def streams(graph: Graph, topology: Topology) -> tuple[dict[str, Stream], dict[str, str]]:
    """Return all streams by name, in graph order, and for each layer whose result is in none of them why."""
    finder = _Finder(graph, topology)
    found: dict[str, Stream] = {}
    refused: dict[str, str] = {}
    seen: set[str] = set()
    for node in graph.nodes:
        if not finder.is_layer(node) or node.outputs[0] in seen:
            continue
        stream = finder.spread(node)
        if isinstance(stream, str):
            refused[node.name] = stream
        else:
            found[stream.name] = stream
            seen.update(stream.tensors)
    return found, refused


class _Finder:
    def __init__(self, graph: Graph, topology: Topology) -> None:
        self._graph, self._topology = graph, topology
        self._uses = users_of_constants(graph)
        self._number = {name: i for i, n in enumerate(graph.nodes) for name in (n.name, *n.outputs)}

    def is_layer(self, node: Node) -> bool:
        """Return whether the node has a constant weight, and every output channel sees all input channels."""
        kernel = self._topology.kernel_of.get(node.name)
        form = COLUMNS.get(node.op)
        return (
            kernel is not None and kernel.weight is not None and form is not None and form.weight_axis(node) is not None
        )

    def spread(self, start: Node) -> Stream | str:
        """Return the stream of a layer's result, or why it is none."""
        graph, first = self._graph, start.outputs[0]
        tensors = {first: self._place(start, first)}
        makers, readers = {start.name: start}, dict[str, Node]()
        waiting, apart = [first], set[str]()

        def reach(tensor: str, axis: int) -> None:
            if tensor not in tensors:
                tensors[tensor] = axis
                waiting.append(tensor)
            elif tensors[tensor] != axis:
                apart.add(tensor)

        while waiting:
            tensor = waiting.pop()
            if tensor in graph.output_names:
                return f"{tensor} is an output of the model"
            maker = graph.producers.get(tensor)
            if maker is None:
                return f"{tensor} is an input or a constant"
            if self.is_layer(maker):
                makers[maker.name] = maker
                reach(tensor, self._place(maker, tensor))
            elif not self._carries(maker, tensor, tensors[tensor], reach):
                return f"{tensor} is made by {maker.name} ({maker.op}), which does not mix with its channels"
            for reader, _ in graph.consumers.get(tensor, ()):
                if self._reads(reader, tensor):
                    readers[reader.name] = reader
                    reach(tensor, self._place(reader, tensor))
                elif not self._carries(reader, tensor, tensors[tensor], reach):
                    return (
                        f"{tensor} is read by {reader.name} ({reader.op}), which does not let mixtures of channels pass"
                    )
        if not readers:
            return f"no layer reads {first}"
        if apart or len({graph.shapes[t][axis] for t, axis in tensors.items()}) > 1:
            return f"the layers around {first} do not agree about where channels are"
        return self._pinned(tensors, [*makers.values(), *readers.values()]) or Stream(
            self._ordered(tensors), self._ordered(makers), self._ordered(readers), graph.shapes[first][tensors[first]]
        )

    def _carries(self, node: Node, tensor: str, axis: int, reach: Callable[[str, int], None]) -> bool:
        """Return whether the node does the same when its channels are mixed alike before it and after it.

        All tensors that must be mixed then are reached, with the axis of their channels.
        """
        graph, rule, passage = self._graph, rule_of(node), PASSAGES.get(node.op)
        if rule is not None and rule.family is Family.SUM:
            ends = [*node.inputs, *node.outputs]
            if len({graph.shapes[t] for t in ends}) > 1:
                return False
            places = [axis] * len(ends)
        elif tensor in node.inputs[1:]:
            return False
        elif axis == len(graph.shapes[tensor]) - 1 and keeps_rows(node, graph):
            ends = [node.inputs[0], node.outputs[0]]
            places = [len(graph.shapes[end]) - 1 for end in ends]
        elif passage is not None and passage.linear and passage.repeats(node, graph) == 1:
            ends = [node.inputs[0], node.outputs[0]]
            places = [axis if passage.anywhere else 1] * 2
        else:
            return False
        for end, place in zip(ends, places, strict=True):
            reach(end, place)
        return True

    def _reads(self, node: Node, tensor: str) -> bool:
        return self.is_layer(node) and node.inputs[0] == tensor and tensor not in node.inputs[1:]

    def _pinned(self, tensors: Iterable[str], layers: Iterable[Node]) -> str:
        """Why constants or ranges cannot be changed, if so."""
        for node in layers:
            kernel = self._topology.kernel_of[node.name]
            for constant in (kernel.weight, kernel.bias):
                if constant is not None and self._uses.get(constant, 0) > 1:
                    return f"{constant} of {node.name} has other users"
            if kernel.weight is not None and self._topology.weight_of[kernel.weight].fixed is not None:
                return f"the scales of {kernel.weight} are given"
        for tensor in tensors:
            group = self._topology.group_of.get(tensor)
            if group is not None and group.fixed is not None:
                return f"the range of {tensor} is given"
        return ""

    def _place(self, node: Node, tensor: str) -> int:
        """Where a layer has channels, in what it reads or makes."""
        return COLUMNS[node.op].axis % len(self._graph.shapes[tensor])

    def _ordered(self, names: Iterable[str]) -> tuple[str, ...]:
        """Tensors or nodes in graph order."""
        return tuple(sorted(names, key=self._number.__getitem__))
