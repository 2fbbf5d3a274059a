"""The step `rotate`: a rotation per stream (see `streams`), found from the weights around it alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quantpipe.arrays import Floats
from quantpipe.graph.view import Graph
from quantpipe.option_checks import integer
from quantpipe.recover.parameters import KEY
from quantpipe.recover.rescale.apply_rotation import rotate_weights, stream_weights
from quantpipe.recover.rescale.optimize_rotation import crest_factor, optimize_rotation, rotated
from quantpipe.recover.rescale.residual_streams import Stream
from quantpipe.types import Topology


@dataclass(frozen=True, eq=False)
class RotationResult:
    """Hold the `matrix` `[C, C]` of one stream.

    `crest_factor`: the mean squared crest factor of the weights around it, before and after.
    """

    matrix: Floats = field(repr=False)
    crest_factor: tuple[float, float]

    @property
    def gain_db(self) -> float:
        """Return by how much the rounding of these weights loses less, as far as their ranges decide."""
        return 10 * math.log10(self.crest_factor[0] / self.crest_factor[1])


@dataclass(frozen=True)
class Rotation:
    """State how a rotation is searched for; `iterations`: most steps."""

    iterations: int = 40

    def __post_init__(self) -> None:
        integer(f"{KEY}.iterations", self.iterations, least=1)


def rotations(
    graph: Graph,
    topology: Topology,
    found: Iterable[Stream],
    options: Rotation,
    *,
    apply: Callable[..., Iterable[Any]] = map,
) -> Mapping[str, RotationResult]:
    """Return the rotations by stream that lower the crest factors of the weights around it.

    A stream without gain is not rotated. A layer between two streams is rotated on both sides, so the crest
    factors are computed with all rotations.

    `apply`: shares the work on single weights among threads, as `map` would do it. Returns stream -> its rotation.
    """
    around = {stream: stream_weights(graph, topology, stream) for stream in found}
    made: dict[Stream, Floats] = {}
    for stream, weights in around.items():
        matrix = optimize_rotation(weights, stream.channels, options.iterations, apply, centred=stream.centred)
        if crest_factor(rotated(weight, matrix) for weight in weights) < crest_factor(weights):
            made[stream] = matrix
    turned = rotate_weights(graph, topology, {stream.name: matrix for stream, matrix in made.items()})
    return {
        stream.name: RotationResult(
            matrix, (crest_factor(around[stream]), crest_factor(stream_weights(turned, topology, stream)))
        )
        for stream, matrix in made.items()
    }
