"""The network with some channels in other units: the same function, other constants.

T' = (T - offset) / factor per channel. With f, o of what a layer makes and f_in, o_in of what it reads:

    W' = W · f_in / f        b' = (b + W·o_in - o) / f        limits' = (limit - o) / f

in float64, stored in the constants' own type (Nagel et al. 2019, section 4.1, with offsets). A clamp whose limits then
differ from channel to channel becomes a Max and a Min with constants, and its kernel gets limits per channel; a change
may also name limits of its own, the same for all channels.
Takes graph, topology and changes by tensor; gives a graph and a topology that every later stage can work with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from quantpipe.arrays import Floats, along
from quantpipe.errors import ArtifactError
from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import Family, rule_of
from quantpipe.oprules.channels import AFFINE, COLUMNS
from quantpipe.plan import ChannelChange
from quantpipe.recover.rescale.apply_rotation import rotate_weights
from quantpipe.recover.rescale.channel_regions import LayerPair, layer_pairs
from quantpipe.recover.rescale.constant_writer import Writer
from quantpipe.types import Kernel, Topology


def rescale_channels(
    graph: Graph,
    topology: Topology,
    changes: Mapping[str, ChannelChange],
    rotations: Mapping[str, Floats] = MappingProxyType({}),
) -> tuple[Graph, Topology]:
    """Return graph and topology with streams rotated, then every change made.

    `rotations`: stream -> orthogonal matrix `[C, C]` float64. Raises ArtifactError for what the network has no place
    for.
    """
    if rotations:
        graph = rotate_weights(graph, topology, rotations)
    if not changes:
        return graph, topology
    known, _ = layer_pairs(graph, topology)
    writer = Writer(graph)
    kernels = dict(topology.kernel_of)
    made = {known[t].producer: (known[t], c) for t, c in changes.items() if _fits(known, t, c)}
    read = {r: (known[t], c) for t, c in changes.items() for r in known[t].consumers}
    for node in graph.nodes:
        if node.name in made or node.name in read:
            _change_constants(graph, topology, writer, node, made=made.get(node.name), read=read.get(node.name))
    for link, change in made.values():
        _change_clamps(graph, topology, writer, kernels, link=link, change=change)
    return writer.graph(), replace(topology, kernels=tuple(kernels[k.node] for k in topology.kernels))


def compose(first: ChannelChange, second: ChannelChange) -> ChannelChange:
    """Return the change that does both, one after the other; the second sets the limits."""
    return ChannelChange(first.factor * second.factor, first.offset + first.factor * second.offset, second.limits)


def clamp_limits(graph: Graph, node: Node) -> tuple[float, float] | None:
    """Return the real limits of a clamp on the way.

    The result: None where a change has given each channel its own already (it is a Max or a Min then), as it may
    again.
    """
    rule = rule_of(node)
    return rule.bounds(node, graph) if rule is not None and rule.family is Family.CLAMP else None


def _fits(known: Mapping[str, LayerPair], tensor: str, change: ChannelChange) -> bool:
    link = known.get(tensor)
    sizes = {change.factor.shape, change.offset.shape}
    if link is None or sizes != {(link.channels,)} or not np.all(change.factor > 0):
        raise ArtifactError(f"changes the channels of {tensor}, which does not fit this model", stage="recover")
    if not link.offsets and np.any(change.offset):
        raise ArtifactError(f"moves the channels of {tensor}, which can only be scaled", stage="recover")
    return True


def _change_constants(
    graph: Graph,
    topology: Topology,
    writer: Writer,
    node: Node,
    *,
    made: tuple[LayerPair, ChannelChange] | None,
    read: tuple[LayerPair, ChannelChange] | None,
) -> None:
    """New weight and bias, or gain and offset, of one node."""
    if node.op in AFFINE:
        assert made is not None  # noqa: S101  (such nodes are changed as producers only)
        if made[0].view is not None:
            node = writer.copy_for(node, graph.by_name[made[0].view])
        for port, moved in ((AFFINE[node.op].gain, False), (AFFINE[node.op].offset, True)):
            if port is not None and port < len(node.inputs) and node.inputs[port]:
                old = graph.constant(node.inputs[port])
                new = old.astype(np.float64) - made[1].offset if moved else old.astype(np.float64)
                writer.constant(node, port, new / made[1].factor)
            elif moved and np.any(made[1].offset):
                raise ArtifactError(f"moves the channels of {node.name}, which has no offset", stage="recover")
        return
    rule, kernel = rule_of(node), topology.kernel_of[node.name]
    assert rule is not None and rule.weight is not None and kernel.weight is not None  # noqa: S101
    weight = graph.constant(kernel.weight).astype(np.float64)
    bias = None if kernel.bias is None else graph.constant(kernel.bias).astype(np.float64)
    if read is not None:
        link, change = read
        form = COLUMNS[node.op]
        if bias is not None and np.any(change.offset):
            bias = bias + form.response(node, weight, np.repeat(change.offset, link.repeats)).reshape(bias.shape)
        weight = form.scaled(node, weight, np.repeat(change.factor, link.repeats))
    if made is not None:
        change = made[1]
        weight = weight / along(change.factor, rule.channel_axis(node, graph), weight.ndim)
        if bias is not None:
            bias = (bias - change.offset.reshape(bias.shape)) / change.factor.reshape(bias.shape)
    writer.constant(node, rule.weight, weight)
    if bias is not None and rule.bias is not None:
        writer.constant(node, rule.bias, bias)


def _change_clamps(
    graph: Graph,
    topology: Topology,
    writer: Writer,
    kernels: dict[str, Kernel],
    *,
    link: LayerPair,
    change: ChannelChange,
) -> None:
    """Other limits for the clamp of a link, in the graph and in the kernel that holds it."""
    if link.clamp is None:
        return
    node = graph.by_name[link.clamp]
    original = clamp_limits(graph, node)
    assert original is not None  # noqa: S101  (layer_pairs are made of the float model's clamps)
    low, high = original
    repeats = graph.shapes[node.outputs[0]][link.axis] // link.channels
    factor, offset = np.repeat(change.factor, repeats), np.repeat(change.offset, repeats)
    limits = (low - offset) / factor, (high - offset) / factor
    if change.limits is not None:
        limits = np.full(len(factor), change.limits[0]), np.full(len(factor), change.limits[1])
    same = all(np.all(bound == bound[0]) for bound in limits)
    owner = topology.fused_into.get(node.name, node.name)
    if owner not in kernels:
        writer.clamp(node, limits, None if same else link.axis)
        return
    kernel = kernels[owner]
    if not same and not link.clamp_fused:
        raise ArtifactError(f"bounds the channels of {link.tensor} one by one, outside its layer", stage="recover")
    added = writer.clamp(node, limits, None if same else link.axis)
    kernels[owner] = replace(
        kernel,
        fused=tuple(n for f in kernel.fused for n in ((*added, f) if f == node.name else (f,))),
        bounds=(float(limits[0].min()), float(limits[1].max())),
        channel_bounds=None if same else (tuple(limits[0].tolist()), tuple(limits[1].tolist())),
    )
