"""The network with the channels of streams rotated: the same function, other constants.

T' = M T for every tensor of a stream, M orthogonal: a maker's weight becomes M W and its bias M b, a reader's weight
W Mᵀ; in float64, stored in the constants' own type.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from quantpipe.errors import ArtifactError
from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import rule_of
from quantpipe.oprules.channels import COLUMNS
from quantpipe.recover.rescale.optimize_rotation import StreamWeight
from quantpipe.recover.rescale.residual_streams import Stream, streams
from quantpipe.recover.rescale.writer import Writer
from quantpipe.types import Topology

Floats = NDArray[np.float64]
ORTHOGONAL = 1e-6
"""Most deviation of M Mᵀ from the identity: the function would be another one."""


def rotate_weights(graph: Graph, topology: Topology, rotations: Mapping[str, Floats]) -> Graph:
    """Return the graph with rotations by stream; the topology stays as it is.

    Args:
        graph: the graph.
        topology: what of it runs in integers.
        rotations: stream -> orthogonal matrix `[C, C]` float64.

    Returns:
        The graph with other constants.

    Raises:
        ArtifactError: for a rotation that the network has no place for.
    """
    known, _ = streams(graph, topology)
    made: dict[str, Floats] = {}
    read: dict[str, Floats] = {}
    for name, matrix in rotations.items():
        stream = _fitting(known, name, matrix)
        made |= dict.fromkeys(stream.makers, matrix)
        read |= dict.fromkeys(stream.readers, matrix)
    writer = Writer(graph)
    for node in graph.nodes:
        if node.name in made or node.name in read:
            _rotate_layer(graph, topology, writer, node, made=made.get(node.name), read=read.get(node.name))
    return writer.graph()


def stream_weights(graph: Graph, topology: Topology, stream: Stream) -> list[StreamWeight]:
    """Return the weights around a stream as its channels meet them, with the scales that the device gives them."""
    found = []
    for names, is_maker in ((stream.makers, True), (stream.readers, False)):
        for name in names:
            node, site = graph.by_name[name], topology.weight_of[topology.kernel_of[name].weight or ""]
            axis = _output_axis(graph, node) if is_maker else _input_axis(node)
            weight = np.moveaxis(graph.constant(site.tensor).astype(np.float64), axis, -1)
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
    return stream


def _rotate_layer(
    graph: Graph, topology: Topology, writer: Writer, node: Node, *, made: Floats | None, read: Floats | None
) -> None:
    kernel, rule = topology.kernel_of[node.name], rule_of(node)
    assert rule is not None and rule.weight is not None and kernel.weight is not None  # noqa: S101  (a layer)
    weight = graph.constant(kernel.weight).astype(np.float64)
    if read is not None:
        weight = _along(read, weight, _input_axis(node))
    if made is not None:
        weight = _along(made, weight, _output_axis(graph, node))
        if kernel.bias is not None and rule.bias is not None:
            bias = graph.constant(kernel.bias).astype(np.float64)
            writer.constant(node, rule.bias, (made @ bias.reshape(-1)).reshape(bias.shape))
    writer.constant(node, rule.weight, weight)


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
