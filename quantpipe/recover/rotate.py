"""The step `rotate`: a rotation per stream (see `streams`), found from the weights around it alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.graph.view import Graph
from quantpipe.recover.mixed import faces
from quantpipe.recover.parameters import whole
from quantpipe.recover.rotation import crest, flattest, rotated
from quantpipe.recover.streams import Stream
from quantpipe.types import Topology

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rotation:
    """`iterations`: most steps of the search for a rotation."""

    iterations: int = 40

    def __post_init__(self) -> None:
        whole("iterations", self.iterations, 1)


def rotations(
    graph: Graph,
    topology: Topology,
    found: Iterable[Stream],
    options: Rotation,
    apply: Callable[..., Iterable[Any]] = map,
) -> Mapping[str, Floats]:
    """The rotations by stream that lower the crest factors of the weights around it; a stream that has nothing to gain
    has none."""
    made: dict[str, Floats] = {}
    for stream in found:
        around = faces(graph, topology, stream)
        matrix = flattest(around, stream.channels, options.iterations, apply)
        if crest(rotated(face, matrix) for face in around) < crest(around):
            made[stream.name] = matrix
    return made
