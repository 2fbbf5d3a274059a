"""Find where the channels of a tensor can be changed without changing the network.

That takes the layer that makes them, the ops in between, and the layers that read them. From graph and topology, the
result is every such link, and for every other layer's result the reason why there is no link.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import Family, rule_of
from quantpipe.oprules.attention import through_heads
from quantpipe.oprules.channels import AFFINE, COLUMNS, PASSAGES, keeps_rows, takes_offsets
from quantpipe.oprules.masks import OF_SHAPES
from quantpipe.types import Form, Topology


@dataclass(frozen=True)
class LayerPair:
    """Describe a tensor whose channels can be changed.

    `tensor` is what the `consumers` read; `channels` belong to the `producer`'s result, each of which is `repeats`
    channels of the tensor (a map flattened into features).

    `tensors`: every tensor on the way, the first being the producer's own result. `clamp`: the node on the way that
    bounds values, `clamp_output` what it gives (`tensor` where there is none: a pool between them may average what
    met a limit away), and `clamp_fused` whether it is part of the producer's kernel. `axis`: where the channels
    are, in every tensor on the way, counted from the end (-1) where it is the last one of each. `offsets`: whether
    channels may also be moved, or only scaled. `affine`: the producer ends with gain and offset per channel instead
    of a weight. `attended`: the scores of an attention weigh the tensor on the way. `view`: others than the
    consumers read what the producer gives, too (the shortcut after a normalization), so a copy of the producer,
    for this node alone, is what changes.
    """

    tensor: str
    producer: str
    consumers: tuple[str, ...]
    tensors: tuple[str, ...]
    clamp: str | None
    clamp_output: str
    clamp_fused: bool
    channels: int
    axis: int
    repeats: int
    offsets: bool
    affine: bool
    attended: bool = False
    view: str | None = None


def layer_pairs(graph: Graph, topology: Topology) -> tuple[dict[str, LayerPair], dict[str, str]]:
    """Return all pairs of layers by their tensor, in graph order, and for each producer without one why."""
    finder = _Finder(graph, topology)
    found: dict[str, LayerPair] = {}
    refused: dict[str, str] = {}
    for node in graph.nodes:
        if not finder.makes(node):
            continue
        link = finder.follow(node)
        if isinstance(link, str):
            refused[node.name] = link
        else:
            found[link.tensor] = link
    return found, refused


def unchangeable(node: Node, topology: Topology, uses: Mapping[str, int]) -> str:
    """Return why a layer's constants cannot be changed, if so; `uses`: how many nodes read each constant."""
    kernel = topology.kernel_of[node.name]
    for constant in (kernel.weight, kernel.bias):
        if constant is not None and uses.get(constant, 0) > 1:
            return f"{constant} of {node.name} has other users"
    if kernel.weight is not None and topology.weight_of[kernel.weight].fixed is not None:
        return f"the scales of {kernel.weight} are given"
    return ""


class _Finder:
    def __init__(self, graph: Graph, topology: Topology) -> None:
        self._graph, self._topology = graph, topology
        self._uses = users_of_constants(graph)

    def makes(self, node: Node) -> bool:
        """Return whether the node has constants of its own that a change of its result can go into."""
        if node.op in AFFINE:
            return True
        kernel = self._topology.kernel_of.get(node.name)
        return kernel is not None and kernel.weight is not None and node.op in COLUMNS

    def follow(self, producer: Node) -> LayerPair | str:
        """Return the link from a producer, or the reason why not."""
        graph, affine = self._graph, producer.op in AFFINE
        reason = self._affine_reason(producer) if affine else unchangeable(producer, self._topology, self._uses)
        if reason:
            return reason
        tensor = producer.outputs[0]
        axis = self._axis(producer)
        channels = graph.shapes[tensor][axis]
        tensors, repeats, ranks = [tensor], 1, {len(graph.shapes[tensor])}
        view = self._own_view(producer, axis) if affine else None
        if view is not None:
            tensor = view.outputs[0]
            axis = len(graph.shapes[tensor]) - 1
            tensors, ranks = [tensor], {axis + 1}
        clamp: str | None = None
        offsets, attended = self._has_offset(producer), False
        while True:
            if tensor in graph.output_names:
                return f"{tensor} is an output of the model"
            consumers = self._readers(tensor)
            others = [node.name for node in consumers if not self._reads(node, tensor, axis)]
            if consumers and not others:
                break
            if len(consumers) != 1:
                return f"{tensor} is also read by {', '.join(others)}" if consumers else f"nothing reads {tensor}"
            (node,) = consumers
            rule, passage = rule_of(node), PASSAGES.get(node.op)
            if rule is not None and rule.family is Family.CLAMP and rule.refuse(node, graph) is None:
                if clamp is not None:
                    return f"{tensor} is bounded twice, by {clamp} and {node.name}"
                clamp = node.name
            elif self._lies_last(node, tensor, axis):
                axis = len(graph.shapes[node.outputs[0]]) - 1
                ranks.add(axis + 1)
            elif passage is not None and self._passes(node, tensor, axis) and passage.repeats(node, graph):
                repeats *= passage.repeats(node, graph)
                offsets = offsets and passage.offsets(node)
            elif axis == len(graph.shapes[tensor]) - 1 and (way := through_heads(graph, tensor)):
                tensors += way[:-1]
                axis, offsets, attended = len(graph.shapes[way[-1]]) - 1, False, True
                ranks |= {axis + 1, 0}  # in between, channels lie along two axes
                tensor = way[-1]
                tensors.append(tensor)
                continue
            else:
                return f"{tensor} is read by {node.name} ({node.op}), no layer, and none that keeps channels apart"
            tensor = node.outputs[0]
            tensors.append(tensor)
        for node in consumers:
            if reason := unchangeable(node, self._topology, self._uses):
                return reason
            offsets = offsets and self._has_bias(node) and takes_offsets(node)
        if pinned := [t for t in tensors if (g := self._topology.group_of.get(t)) is not None and g.fixed is not None]:
            return f"the range of {pinned[0]} is given"
        return LayerPair(
            tensor,
            producer.name,
            tuple(n.name for n in consumers),
            tuple(tensors),
            clamp,
            tensor if clamp is None else graph.by_name[clamp].outputs[0],
            self._swallows(producer, clamp),
            channels,
            axis if len(ranks) == 1 else -1,
            repeats,
            offsets,
            affine,
            attended,
            None if view is None else view.name,
        )

    def _readers(self, tensor: str) -> list[Node]:
        """Return who reads the values of a tensor, and not its shape alone."""
        return [node for node, _ in self._graph.consumers.get(tensor, ()) if node.op not in OF_SHAPES]

    def _own_view(self, producer: Node, axis: int) -> Node | None:
        """Return the one node that lays the rows of a producer flat for layers, where others read them, too.

        Both run in floats, so that a copy of the producer is no kernel, and has no scale.
        """
        tensor = producer.outputs[0]
        consumers = self._readers(tensor)
        if len(consumers) < 2 or producer.name in self._topology.kernel_of or any(producer.outputs[1:]):
            return None
        views = [n for n in consumers if self._lies_last(n, tensor, axis) and n.name not in self._topology.kernel_of]
        return views[0] if len(views) == 1 else None

    def _reads(self, node: Node, tensor: str, axis: int) -> bool:
        """Return whether the node is a layer in integers that reads the tensor as its data and as nothing else.

        The tensor's channels must lie along `axis`.
        """
        kernel = self._topology.kernel_of.get(node.name)
        if kernel is None or kernel.weight is None or node.op not in COLUMNS:
            return False
        there = COLUMNS[node.op].axis % len(self._graph.shapes[tensor])
        return there == axis and node.inputs[0] == tensor and tensor not in node.inputs[1:]

    def _passes(self, node: Node, tensor: str, axis: int) -> bool:
        """Whether the node takes the tensor for its data, and its channels for channels."""
        passage = PASSAGES[node.op]
        return (passage.anywhere or axis == 1) and node.inputs[0] == tensor and tensor not in node.inputs[1:]

    def _lies_last(self, node: Node, tensor: str, axis: int) -> bool:
        """Whether the node moves rows whose channels are last, before it and after it."""
        last = axis == len(self._graph.shapes[tensor]) - 1
        return last and node.inputs[0] == tensor and tensor not in node.inputs[1:] and keeps_rows(node, self._graph)

    def _affine_reason(self, node: Node) -> str:
        gain = AFFINE[node.op].gain
        if len(node.inputs) <= gain or not self._graph.is_constant(node.inputs[gain]):
            return f"the gain of {node.name} is no constant"
        channels = self._graph.shapes[node.outputs[0]][self._axis(node)]
        if self._graph.shapes[node.inputs[gain]] != (channels,):
            return f"the gain of {node.name} has another shape than its channels"
        return ""

    def _swallows(self, producer: Node, clamp: str | None) -> bool:
        kernel = self._topology.kernel_of.get(producer.name)
        return kernel is not None and clamp in kernel.fused and kernel.form is Form.QUANTIZED

    def _has_offset(self, producer: Node) -> bool:
        """Return whether what a producer adds to each channel is a constant of its own."""
        if producer.op not in AFFINE:
            return self._has_bias(producer)
        port = AFFINE[producer.op].offset
        return port is not None and port < len(producer.inputs) and self._graph.is_constant(producer.inputs[port])

    def _has_bias(self, node: Node) -> bool:
        return self._topology.kernel_of[node.name].bias is not None

    def _axis(self, producer: Node) -> int:
        """Where the channels of a producer's result are."""
        rule = rule_of(producer)
        axis = AFFINE[producer.op].axis if producer.op in AFFINE else rule.output_axis if rule is not None else 1
        return axis % len(self._graph.shapes[producer.outputs[0]])


def users_of_constants(graph: Graph) -> Mapping[str, int]:
    """Return how many ports read each constant."""
    found: dict[str, int] = {}
    for node in graph.nodes:
        for tensor in (*node.inputs, *node.captured):
            if graph.is_constant(tensor):
                found[tensor] = found.get(tensor, 0) + 1
    return found
