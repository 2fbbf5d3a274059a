"""Follow the channels of an attention's values through its heads: views, the weighing by the scores, and back.

    values [B, S, C] -> [B, S, H, D] -> [B, H, S, D];  scores [B, H, T, S] · that = [B, H, T, D] -> … -> [B, T, C]

Each channel of the result is a weighted sum of the same channel of the values, whatever the scores are, so a factor per
channel passes. That is seen by numbers: each place of a tensor is given the number of its channel, and the numbers go
the way that the values go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from quantpipe.graph.view import Graph, Node
from quantpipe.oprules.scores import VIEWS

Places = NDArray[np.int32]
"""The number of the channel at each place of a tensor, in its shape."""


def _viewed(node: Node, graph: Graph, places: Places, port: int) -> Places | None:
    shape = graph.shapes[node.outputs[0]]
    return places.reshape(shape) if port == 0 and places.size == np.prod(shape) else None


def _turned(node: Node, graph: Graph, places: Places, port: int) -> Places | None:
    return places.transpose(node.attr("perm") or tuple(reversed(range(places.ndim))))


def _weighed(node: Node, graph: Graph, places: Places, port: int) -> Places | None:
    """Sum over the rows of the values: all of them must hold the same channels, and there must be more than one."""
    weights, shape = node.inputs[0], graph.shapes[node.outputs[0]]
    if port != 1 or graph.is_constant(weights) or places.ndim < 2 or places.shape[-2] < 2 or shape[-2] < 2:
        return None
    rows = places[..., :1, :]
    return np.broadcast_to(rows, shape) if np.all(places == rows) else None


ROUTES: Mapping[str, Callable[[Node, Graph, Places, int], Places | None]] = {
    **dict.fromkeys(VIEWS, _viewed),
    "Transpose": _turned,
    "MatMul": _weighed,
}
"""Ops on the way, and what they make of the numbers: None where they sum over channels, or do something else."""


def through_heads(graph: Graph, tensor: str) -> tuple[str, ...]:
    """Return the tensors from one with channels last, through the heads, to where channels are last again.

    `tensor` holds the values, `[..., C]`. The result lists the tensors after it in order, each of them with a single
    reader; it is empty if no such way begins there. The graph has the shapes of one real run.
    """
    shape = graph.shapes[tensor]
    if not shape or shape[-1] < 2:
        return ()
    own = np.arange(shape[-1], dtype=np.int32)
    places: Places | None = np.broadcast_to(own, shape)
    found: list[str] = []
    weighed = False
    while not weighed or not _lie_last(places, own):
        readers = graph.consumers.get(tensor, ())
        if len(readers) != 1 or tensor in graph.output_names:
            return ()
        ((node, port),) = readers
        route = ROUTES.get(node.op)
        assert places is not None  # noqa: S101  (the loop ends where they are lost)
        places = None if route is None else route(node, graph, places, port)
        if places is None:
            return ()
        weighed = weighed or route is _weighed
        tensor = node.outputs[0]
        found.append(tensor)
    return tuple(found)


def _lie_last(places: Places | None, own: Places) -> bool:
    return places is not None and places.shape[-1] == len(own) and bool(np.all(places == own))
