"""Find where single channels can be split: the ways from a layer to the layers that read what it makes.

A way is a link of channel_regions.py, or several of them with depthwise convolutions between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from quantpipe.graph.view import Graph, Node
from quantpipe.oprules.channels import TARGET_SHAPES
from quantpipe.recover.rescale.channel_regions import LayerPair, layer_pairs
from quantpipe.recover.rescale.rescale_channels import clamp_limits
from quantpipe.types import Topology


@dataclass(frozen=True, eq=False)
class SplitPath:
    """Describe a way: the `links` on it, in order, each but the last read by one depthwise convolution alone."""

    links: tuple[LayerPair, ...]

    @property
    def producer(self) -> str:
        """Return the layer whose result is split."""
        return self.links[0].producer

    @property
    def depthwise(self) -> tuple[str, ...]:
        """Return the depthwise convolutions between."""
        return tuple(link.producer for link in self.links[1:])

    @property
    def consumers(self) -> tuple[str, ...]:
        """Return the layers at the end, which see all channels."""
        return self.links[-1].consumers

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """Return every tensor on the way."""
        return tuple(tensor for link in self.links for tensor in link.tensors)

    @property
    def channels(self) -> int:
        """Return how many channels the producer makes."""
        return self.links[0].channels

    @property
    def repeats(self) -> int:
        """Return as how many features the consumers read each channel."""
        return self.links[-1].repeats

    def place(self, graph: Graph, tensor: str) -> tuple[int, int]:
        """Return the axis of the channels of a tensor on the way, and their number for each of the producer's."""
        link = next(link for link in self.links if tensor in link.tensors)
        shape = graph.shapes[tensor]
        axis = link.axis % len(shape)
        return axis, shape[axis] // self.channels

    def between(self, graph: Graph) -> list[Node]:
        """Return the nodes between the layers at the ends."""
        return [graph.producers[tensor] for tensor in self.tensors[1:]]


def splittable(graph: Graph, topology: Topology) -> tuple[dict[str, SplitPath], dict[str, str]]:
    """Return where channels can be split, by tensor and weight, and for other results of layers why they cannot be.

    Returns every tensor on a way, and the weights of the layers at its end -> the way; other tensors -> the reason.
    """
    links, without = layer_pairs(graph, topology)
    reasons = {graph.by_name[name].outputs[0]: reason for name, reason in without.items()}
    by_producer = {link.producer: link for link in links.values()}
    found: dict[str, SplitPath] = {}
    inner: set[str] = set()
    for link in links.values():
        if link.producer in inner:
            continue
        way = _path(graph, by_producer, link)
        inner.update(way.depthwise)
        if reason := _reason(graph, way):
            reasons |= dict.fromkeys(way.tensors, reason)
        else:
            weights = [weight for name in way.consumers if (weight := topology.kernel_of[name].weight) is not None]
            found |= dict.fromkeys((*way.tensors, *weights), way)
    return found, reasons


def _path(graph: Graph, links: Mapping[str, LayerPair], first: LayerPair) -> SplitPath:
    found = [first]
    while len(found[-1].consumers) == 1 and found[-1].consumers[0] in links:
        following = links[found[-1].consumers[0]]
        if not _is_depthwise(graph, following, found[-1]):
            break
        found.append(following)
    return SplitPath(tuple(found))


def _is_depthwise(graph: Graph, link: LayerPair, before: LayerPair) -> bool:
    """Whether the producer of a link gives each channel that it reads as one of its own."""
    groups = int(graph.by_name[link.producer].attr("group", 1))
    return groups > 1 and groups == before.channels == link.channels and before.repeats == 1


def _reason(graph: Graph, way: SplitPath) -> str:
    """Why the channels of a way cannot be split, though they could have other units; empty where they can be."""
    for link in way.links:
        if link.affine:
            return f"{link.producer} divides all of its channels by one number"
        if link.attended:
            return f"{link.tensor} is parted into heads"
    for name in (way.producer, *way.consumers):
        if int(graph.by_name[name].attr("group", 1)) != 1:
            return f"{name} works on groups of channels"
    for node in way.between(graph):
        limits = clamp_limits(graph, node)
        if limits is not None and any(bound != 0.0 and np.isfinite(bound) for bound in limits):
            return f"{node.name} bounds the values at {limits[0]:g} and {limits[1]:g}, whole channels or not"
        if node.op in TARGET_SHAPES and not graph.is_constant(node.inputs[TARGET_SHAPES[node.op]]):
            return f"the shape that {node.name} gives is computed"
    return ""
