"""Single channels as several: the same function, with one channel more for each copy.

A channel that is far greater than the others sets the step for all of them. As two channels of half its values it no
longer does (Zhao et al., "Improving Neural Network Quantization without Retraining using Outlier Channel Splitting",
2019):

    of values    T_c -> T_c/k, k times          the layer that makes T divides row and bias, layers that read T copy
    of weights   W[:, c] -> W[:, c]/k, k times  the layer that makes T copies, layers that read T divide the column

Copies follow the channels that were there. Where a depthwise convolution reads T, it has the copies, too, and the
layers after it end the way. What it costs is what the device pays for more channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.variants import Topologies
from quantpipe.arrays import along
from quantpipe.errors import ConfigError, nearest
from quantpipe.graph.view import Graph, Node
from quantpipe.intake.fixed import fixed_hash
from quantpipe.oprules import rule_of
from quantpipe.oprules.channels import COLUMNS, PASSAGES, TARGET_SHAPES
from quantpipe.recover.rescale.constant_writer import Writer
from quantpipe.recover.rescale.splittable import SplitPath, splittable
from quantpipe.types import HardwareSpec, Schema, Topology

KEY = "annotate.split_channels"
GROUPS = "group"

Wanted = Mapping[str, Sequence[int]]


@dataclass(frozen=True, eq=False)
class ChannelSplit:
    """Hold how the channels of a way are split: what each one's values and weights are divided by, `[C]` int64."""

    way: SplitPath
    values: NDArray[np.int64]
    weights: NDArray[np.int64]

    @property
    def order(self) -> NDArray[np.int64]:
        """Return which of the old channels each of the new ones is."""
        each = np.arange(self.way.channels)
        return np.concatenate([each, np.repeat(each, self.values * self.weights - 1)])


def with_split_channels(graph: Graph, spec: HardwareSpec, schema: Schema, wanted: Wanted) -> Graph:
    """Return the graph with channels split, as another model than the file's; the graph itself where none are.

    `spec`: the device, which decides between which layers a tensor is stored. `wanted`: tensor or weight -> channels,
    named once per copy. Raises ConfigError for an unknown name or channel, or a place where channels cannot be split.
    """
    if not wanted:
        return graph
    return split_channels(graph, Topologies(graph, spec, schema, AnnotateOptions()).base, wanted)


def split_channels(graph: Graph, topology: Topology, wanted: Wanted) -> Graph:
    """Return the graph with channels split.

    `wanted`: tensor or weight -> channels, each time one is named one more copy of it. Raises ConfigError for a name
    that is none, channels that are none, or a place where channels cannot be split.
    """
    splits = _splits(graph, topology, wanted)
    writer = Writer(graph)
    made = {split.way.producer: split for split in splits}
    read = {name: split for split in splits for name in split.way.consumers}
    for node in graph.nodes:
        if node.name in made or node.name in read:
            _change_layer(graph, topology, writer, node, made=made.get(node.name), read=read.get(node.name))
    for split in splits:
        _change_way(graph, topology, writer, split)
    return replace(
        writer.graph(),
        model_hash=fixed_hash(graph.model_hash, {KEY: {name: list(wanted[name]) for name in sorted(wanted)}}),
        imported=graph.imported,
        as_given=graph.timed,
    )


def _splits(graph: Graph, topology: Topology, wanted: Wanted) -> list[ChannelSplit]:
    known, reasons = splittable(graph, topology)
    found: dict[str, ChannelSplit] = {}
    for name, channels in wanted.items():
        way = known.get(name)
        if way is None:
            why = reasons.get(name)
            said = f": {why}" if why else nearest(name, known)
            raise ConfigError(
                f"{name!r} is no tensor whose channels can be split{said}; legal are results of layers that other "
                "layers alone read, and weights of these",
                where=KEY,
            )
        if beyond := [c for c in channels if not 0 <= c < way.channels]:
            raise ConfigError(
                f"{name} has no channel {beyond[0]}; legal are 0 to {way.channels - 1}, each as often as it is to be "
                "copied",
                where=KEY,
            )
        times = 1 + np.bincount(np.asarray(channels, np.int64), minlength=way.channels)
        one = np.ones_like(times)
        before = found.get(way.producer, ChannelSplit(way, one, one))
        values, weights = (times, one) if name in way.tensors else (one, times)
        found[way.producer] = ChannelSplit(way, before.values * values, before.weights * weights)
    return list(found.values())


def _change_layer(
    graph: Graph,
    topology: Topology,
    writer: Writer,
    node: Node,
    *,
    made: ChannelSplit | None,
    read: ChannelSplit | None,
) -> None:
    """New weight and bias of the layer at one end of a way, or at the ends of two."""
    rule, kernel = rule_of(node), topology.kernel_of[node.name]
    assert rule is not None and rule.weight is not None and kernel.weight is not None  # noqa: S101
    weight = graph.constant(kernel.weight).astype(np.float64)
    if read is not None:
        axis = COLUMNS[node.op].weight_axis(node)
        assert axis is not None  # noqa: S101  (layers with groups end no way)
        repeats = read.way.repeats
        order = (read.order[:, None] * repeats + np.arange(repeats)).reshape(-1)
        share = 1.0 / np.repeat(read.weights, repeats)
        weight = np.take(COLUMNS[node.op].scaled(node, weight, share), order, axis)
    if made is not None:
        axis = rule.channel_axis(node, graph)
        weight = np.take(weight / along(made.values, axis, weight.ndim), made.order, axis)
        _change_bias(graph, topology, writer, node=node, split=made)
    writer.constant(node, rule.weight, weight)


def _change_bias(graph: Graph, topology: Topology, writer: Writer, *, node: Node, split: ChannelSplit) -> None:
    rule, kernel = rule_of(node), topology.kernel_of[node.name]
    if kernel.bias is not None and rule is not None and rule.bias is not None:
        bias = graph.constant(kernel.bias).astype(np.float64)
        whole = np.broadcast_to(bias, (*bias.shape[:-1], split.way.channels))
        writer.constant(node, rule.bias, np.take(whole / split.values, split.order, -1))


def _change_way(graph: Graph, topology: Topology, writer: Writer, split: ChannelSplit) -> None:
    """The shapes between the layers, what nodes there hold per channel or of shapes, and depthwise convolutions."""
    way = split.way
    for tensor in way.tensors:
        axis, size = way.place(graph, tensor)
        writer.resized(tensor, axis, size * len(split.order))
    for node in way.between(graph):
        slopes = PASSAGES[node.op].slopes if node.op in PASSAGES else None
        if node.name in way.depthwise:
            rule = rule_of(node)
            assert rule is not None and rule.weight is not None  # noqa: S101
            weight = graph.constant(node.inputs[rule.weight]).astype(np.float64)
            writer.constant(node, rule.weight, np.take(weight, split.order, rule.channel_axis(node, graph)))
            writer.attribute(node, GROUPS, len(split.order))
            _change_bias(graph, topology, writer, node=node, split=split)
        elif node.op in TARGET_SHAPES:
            _change_target(graph, writer, node, split)
        elif slopes is not None:
            old = graph.constant(node.inputs[slopes]).astype(np.float64)
            result = node.outputs[0]
            place = way.place(graph, result)[0] - len(graph.shapes[result])
            if old.ndim >= -place and old.shape[place] == way.channels:
                writer.constant(node, slopes, np.take(old, split.order, place))


def _change_target(graph: Graph, writer: Writer, node: Node, split: ChannelSplit) -> None:
    """The target shape of a node."""
    result, port = node.outputs[0], TARGET_SHAPES[node.op]
    axis, size = split.way.place(graph, result)
    target = graph.constant(node.inputs[port]).astype(np.float64)
    place = axis - len(graph.shapes[result]) + len(target)  # that of Expand may leave leading axes out
    if place >= 0 and target[place] == size * split.way.channels:
        target[place] = size * len(split.order)
        writer.constant(node, port, target)
