"""Name the solved layers of a walk, so that an interrupted one continues with them.

A layer's name is a digest of all that its numbers follow from: options, samples, seed, and the scales, constants and
layers up to it. So a file can only be found by a walk that would make the same numbers, in any step of recovery. A walk
in other units of channels finds the layers before the first that has them.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.artifacts.checkpoint import Arrays
from quantpipe.graph.structure import nodes_digest
from quantpipe.graph.view import Graph
from quantpipe.recover.reconstruct.segments import Segment
from quantpipe.types import QuantPlan, Topology


class WalkDigest:
    """Hold the digest of a walk so far."""

    def __init__(self, graph: Graph, topology: Topology, plan: QuantPlan, *settings: Any) -> None:
        self._graph, self._topology, self._plan = graph, topology, plan
        self._digest = hashlib.blake2b(repr(settings).encode(), digest_size=16)
        self._planned = {*plan.weights, *plan.tables}

    def reached(self, part: Segment) -> None:
        """Include what a segment computes with: its nodes, their constants, and the scales of their tensors."""
        nodes = [self._graph.by_name[name] for name in part.nodes]
        kernels = [k for k in (*self._topology.kernels, *self._topology.weighted) if k.node in part.nodes]
        self._digest.update(repr(kernels).encode())
        self._digest.update(nodes_digest(self._graph, nodes, self._planned))
        plan = self._plan
        for name in dict.fromkeys(t for n in nodes for t in (*n.inputs, *n.captured, *n.outputs)):
            if (q := plan.quantizers.get(name)) is not None:
                self._digest.update(repr((name, float(q.scale), q.zero_point, q.qmin, q.qmax, q.dtype)).encode())
            if (known := plan.weights.get(name, plan.tables.get(name))) is not None:
                self._digest.update(known.digest)

    def key(self, name: str, *arrays: NDArray[Any] | None) -> str:
        """Return the key of the next layer, made of its node and the arrays that its numbers are made from."""
        self._digest.update(name.encode())
        self._add(*arrays)
        return self._digest.hexdigest()

    def solved(self, layer: Arrays) -> None:
        """Include the layer's numbers, which all later ones follow from."""
        self._add(*layer.values())

    def _add(self, *arrays: NDArray[Any] | None) -> None:
        for array in arrays:
            if array is not None:
                self._digest.update(repr((array.dtype.str, array.shape)).encode())
                self._digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
