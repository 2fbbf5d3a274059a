"""The network with the channels of streams rotated: the same function, other constants.

T' = M T for every tensor of a stream, M orthogonal: a producer's weight becomes M W and its bias M b, a reader's weight
W Mᵀ, a constant that is added M c. A reader after a normalization with gain g and offset o takes these up: its weight
becomes W diag(g) Mᵀ, its bias b + W o, and the normalization has gain 1 and offset 0. In float64, stored in the
constants' own type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from quantpipe.arrays import Floats, along
from quantpipe.errors import ArtifactError
from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import rule_of
from quantpipe.oprules.channels import AFFINE, COLUMNS
from quantpipe.recover.rescale.constant_writer import Writer
from quantpipe.recover.rescale.optimize_rotation import StreamWeight
from quantpipe.recover.rescale.residual_streams import Stream, streams
from quantpipe.types import Topology

ORTHOGONAL = 1e-6
"""Most deviation of M Mᵀ from the identity: the function would be another one."""


def rotate_weights(graph: Graph, topology: Topology, rotations: Mapping[str, Floats]) -> Graph:
    """Return the graph with rotations by stream; the topology stays as it is.

    `rotations`: stream -> orthogonal matrix `[C, C]` float64. Raises ArtifactError for a rotation that the network has
    no place for.
    """
    known, _ = streams(graph, topology)
    made: dict[str, Floats] = {}
    read: dict[str, _Reading] = {}
    writer = Writer(graph)
    for name, matrix in rotations.items():
        stream = _fitting(known, name, matrix)
        made |= dict.fromkeys(stream.producers, matrix)
        read |= {reader: _Reading(matrix, *_affine(graph, stream, reader)) for reader in stream.consumers}
        for node, port in stream.constants:
            added = graph.constant(graph.by_name[node].inputs[port]).astype(np.float64)
            writer.constant(graph.by_name[node], port, added @ matrix.T)
        for norm, _ in stream.norms:
            _make_plain(graph, writer, graph.by_name[norm])
    for layer in graph.nodes:
        if layer.name in made or layer.name in read:
            _rotate_layer(graph, topology, writer, layer, made=made.get(layer.name), read=read.get(layer.name))
    return writer.graph()


def stream_weights(graph: Graph, topology: Topology, stream: Stream) -> list[StreamWeight]:
    """Return the weights around a stream as its channels meet them, with the scales that the device gives them."""
    found = []
    for names, is_maker in ((stream.producers, True), (stream.consumers, False)):
        for name in names:
            node, site = graph.by_name[name], topology.weight_of[topology.kernel_of[name].weight or ""]
            axis = _output_axis(graph, node) if is_maker else _input_axis(node)
            weight = np.moveaxis(graph.constant(site.tensor).astype(np.float64), axis, -1)
            if not is_maker:
                weight = weight * _affine(graph, stream, name)[0]
            if site.axis is None:
                found.append(StreamWeight(weight.reshape(1, -1, stream.channels), (0, 1, 2)))
            elif is_maker:
                found.append(StreamWeight(weight.reshape(1, -1, stream.channels), (0, 1)))
            else:
                rows = np.moveaxis(weight, site.axis - (axis < site.axis), 0)
                found.append(StreamWeight(rows.reshape(len(rows), -1, stream.channels), (1, 2)))
    return found


def _fitting(known: Mapping[str, Stream], name: str, matrix: Floats) -> Stream:
    stream = known.get(name)
    if stream is None or matrix.shape != (stream.channels, stream.channels):
        raise ArtifactError(f"rotates the channels of {name}, which does not fit this model", stage="recover")
    if not np.allclose(matrix @ matrix.T, np.eye(len(matrix)), rtol=0, atol=ORTHOGONAL):
        raise ArtifactError(f"mixes the channels of {name} by a matrix that is no rotation", stage="recover")
    if stream.centred and not np.allclose(matrix.sum(axis=1), 1.0, rtol=0, atol=ORTHOGONAL):
        raise ArtifactError(f"rotates the channels of {name} and moves their mean, which it must keep", stage="recover")
    return stream


@dataclass(frozen=True, eq=False)
class _Reading:
    """How a layer reads a rotated stream: gain and offset `[C]` of the normalization between, 1 and 0 without one."""

    matrix: Floats
    gain: Floats
    offset: Floats


def _affine(graph: Graph, stream: Stream, reader: str) -> tuple[Floats, Floats]:
    """Return gain and offset `[C]` between a stream and a layer that reads it."""
    norm = next((name for name, consumers in stream.norms if reader in consumers), None)
    found = [np.ones(stream.channels), np.zeros(stream.channels)]
    for number, port in enumerate(() if norm is None else _ports(graph.by_name[norm])):
        if port is not None:
            found[number] = graph.constant(graph.by_name[norm or ""].inputs[port]).astype(np.float64)
    return found[0], found[1]


def _ports(norm: Node) -> tuple[int | None, int | None]:
    """Return the ports of gain and offset that a normalization has."""
    gain, offset = AFFINE[norm.op].gain, AFFINE[norm.op].offset
    there = offset is not None and offset < len(norm.inputs) and norm.inputs[offset]
    return gain, offset if there else None


def _make_plain(graph: Graph, writer: Writer, norm: Node) -> None:
    """Give a normalization gain 1 and offset 0."""
    for port, value in zip(_ports(norm), (1.0, 0.0), strict=True):
        if port is not None:
            writer.constant(norm, port, np.full(graph.shapes[norm.inputs[port]], value))


def _rotate_layer(
    graph: Graph, topology: Topology, writer: Writer, node: Node, *, made: Floats | None, read: _Reading | None
) -> None:
    kernel, rule = topology.kernel_of[node.name], rule_of(node)
    assert rule is not None and rule.weight is not None and kernel.weight is not None  # noqa: S101  (a layer)
    weight = graph.constant(kernel.weight).astype(np.float64)
    bias = None if kernel.bias is None else graph.constant(kernel.bias).astype(np.float64)
    before = bias
    if read is not None:
        if bias is not None and np.any(read.offset):
            bias = bias + COLUMNS[node.op].response(node, weight, read.offset).reshape(bias.shape)
        axis = _input_axis(node)
        weight = _along(read.matrix, weight * along(read.gain, axis, weight.ndim), axis)
    if made is not None:
        weight = _along(made, weight, _output_axis(graph, node))
        if bias is not None:
            bias = (made @ bias.reshape(-1)).reshape(bias.shape)
    writer.constant(node, rule.weight, weight)
    if bias is not before and bias is not None and rule.bias is not None:
        writer.constant(node, rule.bias, bias)


def _along(matrix: Floats, values: Floats, axis: int) -> Floats:
    return np.moveaxis(np.tensordot(matrix, values, ([1], [axis])), 0, axis)


def _input_axis(node: Node) -> int:
    axis = COLUMNS[node.op].weight_axis(node)
    assert axis is not None  # noqa: S101  (streams have no others)
    return axis


def _output_axis(graph: Graph, node: Node) -> int:
    rule = rule_of(node)
    assert rule is not None  # noqa: S101  (a layer)
    return rule.channel_axis(node, graph)
