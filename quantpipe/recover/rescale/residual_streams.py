"""Find where the channels of tensors can be mixed without changing the network.

Such a stream consists of tensors that only additions and other linear ops tie together, the layers that make them, and
the layers that read them. The stream through the residual blocks of a MobileNetV2 is one: convolutions without a clamp
after them, additions, and the convolutions that read it. With an orthogonal M, T' = M T for all of its tensors: a
producer's weight becomes M W, its bias M b, a reader's weight W Mᵀ.

A transformer's stream passes through additions of constants (places, a class token), which are mixed alike, and is read
by normalizations. One that divides each row by its size does the same to a rotated row, and one that takes off the mean
of each row first does where the rotation keeps that mean (M 1 = 1). Gain and offset go into the layers after it.

The input is graph and topology; the result is every such stream, and for each layer whose result is in none why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from quantpipe.graph.view import Graph, Node
from quantpipe.oprules.channels import AFFINE, COLUMNS
from quantpipe.oprules.masks import OF_SHAPES
from quantpipe.oprules.mixtures import tied
from quantpipe.recover.rescale.channel_regions import LayerPair, layer_pairs, unchangeable, users_of_constants
from quantpipe.types import Topology


@dataclass(frozen=True)
class Stream:
    """Describe tensors whose channels can be mixed together.

    `tensors`, `producers` and `consumers` (nodes) are in graph order; the first tensor names the stream. `channels`:
    of each of the tensors. `constants`: (node, port) of what is added or joined to them, with channels along its
    last axis. `norms`: normalization -> the layers that read it, which are among the consumers, and `behind`: what
    they read. `centred`: one of these takes off the mean of the channels, so only rotations that keep it will do.
    """

    tensors: tuple[str, ...]
    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    channels: int
    constants: tuple[tuple[str, int], ...] = ()
    norms: tuple[tuple[str, tuple[str, ...]], ...] = ()
    behind: tuple[str, ...] = ()
    centred: bool = False

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


@dataclass(eq=False)
class _Found:
    """What of a stream has been found: tensors with the axis of their channels, and what stands around them."""

    tensors: dict[str, int]
    producers: dict[str, Node]
    consumers: dict[str, Node] = field(default_factory=dict)
    constants: list[tuple[str, int]] = field(default_factory=list)
    norms: dict[str, LayerPair] = field(default_factory=dict)
    apart: set[str] = field(default_factory=set)

    def reach(self, tensor: str, axis: int) -> list[str]:
        """Return the tensor if it was not known."""
        known = self.tensors.setdefault(tensor, axis)
        if known != axis:
            self.apart.add(tensor)
        fresh = tensor not in self._seen
        self._seen.add(tensor)
        return [tensor] if fresh else []

    def __post_init__(self) -> None:
        self._seen = set(self.tensors)


def _normalizations(graph: Graph, topology: Topology) -> Mapping[str, LayerPair]:
    """Return the normalizations of rows that layers alone read, by name, with these layers."""
    found = layer_pairs(graph, topology)[0].values()
    return {
        link.producer: link
        for link in found
        if link.affine
        and link.view is None
        and link.clamp is None
        and link.repeats == 1
        and _of_rows(graph, graph.by_name[link.producer])
    }


def _of_rows(graph: Graph, node: Node) -> bool:
    last = len(graph.shapes[node.inputs[0]]) - 1
    alone = not any(node.outputs[1:])
    return AFFINE[node.op].rows and alone and int(node.attr("axis", -1)) in (-1, last)


class _Finder:
    def __init__(self, graph: Graph, topology: Topology) -> None:
        self._graph, self._topology = graph, topology
        self._uses = users_of_constants(graph)
        self._norms = _normalizations(graph, topology)
        self._number = {name: i for i, n in enumerate(graph.nodes) for name in (n.name, *n.outputs)}

    def is_layer(self, node: Node) -> bool:
        """Return whether the node has a constant weight, and every output channel sees all input channels."""
        kernel = self._topology.kernel_of.get(node.name)
        form = COLUMNS.get(node.op)
        return (
            kernel is not None and kernel.weight is not None and form is not None and form.weight_axis(node) is not None
        )

    def spread(self, start: Node) -> Stream | str:
        """Return the stream of a layer's result, or the reason why not."""
        graph, first = self._graph, start.outputs[0]
        found = _Found({first: self._place(start, first)}, {start.name: start})
        waiting = [first]
        while waiting:
            tensor = waiting.pop()
            if tensor in graph.output_names:
                return f"{tensor} is an output of the model"
            producer = graph.producers.get(tensor)
            if producer is None:
                return f"{tensor} is an input"
            around = [] if self.is_layer(producer) else [producer]
            if not around:
                found.producers[producer.name] = producer
                waiting += found.reach(tensor, self._place(producer, tensor))
            for reader, _ in graph.consumers.get(tensor, ()):
                if reader.op in OF_SHAPES:
                    continue
                link = self._norms.get(reader.name)
                if self._reads(reader, tensor):
                    found.consumers[reader.name] = reader
                    waiting += found.reach(tensor, self._place(reader, tensor))
                elif link is not None and reader.inputs[0] == tensor and tensor not in reader.inputs[1:]:
                    found.norms[reader.name] = link
                    found.consumers |= {name: graph.by_name[name] for name in link.consumers}
                    waiting += found.reach(tensor, len(graph.shapes[tensor]) - 1)
                else:
                    around.append(reader)
            for node in around:
                ends = tied(node, graph, tensor, found.tensors[tensor])
                if ends is None:
                    how = "made" if node is producer else "read"
                    return f"{tensor} is {how} by {node.name} ({node.op}), which does not let mixtures of channels pass"
                for end, axis in ends:
                    if not graph.is_constant(end):
                        waiting += found.reach(end, axis)
                    elif reason := self._constant(found, node, end, axis):
                        return reason
        if not found.consumers:
            return f"no layer reads {first}"
        if found.apart or len({graph.shapes[t][axis] for t, axis in found.tensors.items()}) > 1:
            return f"the layers around {first} do not agree about where channels are"
        return self._reason(found) or self._made(found)

    def _made(self, found: _Found) -> Stream:
        names = self._ordered(found.norms)
        tensors = self._ordered(found.tensors)
        return Stream(
            tensors,
            self._ordered(found.producers),
            self._ordered(found.consumers),
            self._graph.shapes[tensors[0]][found.tensors[tensors[0]]],
            tuple(found.constants),
            tuple((name, found.norms[name].consumers) for name in names),
            tuple(t for name in names for t in found.norms[name].tensors),
            any(AFFINE[self._graph.by_name[name].op].centres for name in names),
        )

    def _constant(self, found: _Found, node: Node, constant: str, axis: int) -> str:
        """Take a constant into the stream, or return why that cannot be."""
        if axis != len(self._graph.shapes[constant]) - 1:
            return f"the channels of {constant} at {node.name} do not lie last"
        if self._uses.get(constant, 0) > 1:
            return f"{constant} of {node.name} has other users"
        place = (node.name, node.inputs.index(constant))
        if place not in found.constants:
            found.constants.append(place)
        return ""

    def _reason(self, found: _Found) -> str:
        """Return why the stream cannot be mixed, although all its nodes let mixtures pass; nothing where it can."""
        for name, link in found.norms.items():
            node = self._graph.by_name[name]
            offset = AFFINE[node.op].offset
            there = offset is not None and offset < len(node.inputs) and node.inputs[offset]
            if there and not link.offsets and np.any(self._graph.constant(node.inputs[offset or 0])):
                return f"a layer after {name} has no bias for its offset"
        pinned = [*found.tensors, *(t for link in found.norms.values() for t in link.tensors)]
        return self._pinned(pinned, [*found.producers.values(), *found.consumers.values()])

    def _reads(self, node: Node, tensor: str) -> bool:
        return self.is_layer(node) and node.inputs[0] == tensor and tensor not in node.inputs[1:]

    def _pinned(self, tensors: Iterable[str], layers: Iterable[Node]) -> str:
        """Why constants or ranges cannot be changed, if so."""
        for node in layers:
            if reason := unchangeable(node, self._topology, self._uses):
                return reason
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
