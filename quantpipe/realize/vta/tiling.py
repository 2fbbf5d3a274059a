"""Cut a layer into tiles that fit the buffers of the shipped configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from quantpipe.errors import HardwareError
from quantpipe.realize.vta.isa import ACCUMULATORS, INPUTS, MOST_PAD, WEIGHTS
from quantpipe.realize.vta.vta_layers import FORM, Map, VtaLayer, VtaTerm

FACTOR = (1 << 11) - 1
"""The greatest stride of a loop."""


@dataclass(frozen=True)
class Patch:
    """State the part of a source map that a tile of results reads, and the zeros around it."""

    top: int
    left: int
    height: int
    width: int
    pads: tuple[int, int, int, int]
    """At the top, the bottom, the left, the right."""

    @property
    def inside(self) -> Patch:
        """Return the same without the zeros around it."""
        return Patch(self.top, self.left, self.height, self.width, (0, 0, 0, 0))

    @property
    def rows(self) -> int:
        """Return its rows in the buffer."""
        return self.height + self.pads[0] + self.pads[1]

    @property
    def columns(self) -> int:
        """Return its columns in the buffer."""
        return self.width + self.pads[2] + self.pads[3]


@dataclass(frozen=True)
class TilePlace:
    """State a tile of the result: its first row and column, and its size."""

    top: int
    left: int
    height: int
    width: int

    @property
    def count(self) -> int:
        """Return the number of its vectors in one block of channels."""
        return self.height * self.width


def patch_of(term: VtaTerm, place: TilePlace) -> Patch:
    """Return a term's input patch for a tile of results."""
    spans = []
    for axis, (first, count) in enumerate(((place.top, place.height), (place.left, place.width))):
        stride, size = term.strides[axis], (term.source.height, term.source.width)[axis]
        start = first * stride - term.begin[axis]
        stop = start + (count - 1) * stride + (term.taps[axis] - 1) * term.dilations[axis] + 1
        low, high = min(max(start, 0), size), min(max(stop, 0), size)
        spans.append(
            (low, max(high - low, 0), max(0, min(-start, stop - start)), max(0, stop - max(high, max(start, 0))))
        )
    (top, height, above, below), (left, width, before, behind) = spans
    return Patch(top, left, height, width, (above, below, before, behind))


def size_of_tile(layer: VtaLayer) -> tuple[int, int]:
    """Return rows and columns of the tiles of a layer.

    Raises HardwareError where not even one vector of results fits the buffers.
    """
    height, width = layer.result.height, layer.result.width
    while not _fits(layer, height, width):
        if height > 1:
            height = -(-height // 2)
        elif width > 1:
            width = -(-width // 2)
        else:
            taps = [prod(t.taps) for t in layer.terms]
            raise HardwareError(
                f"its window of {max(taps)} elements does not fit VTA's buffers ({INPUTS} input vectors, {WEIGHTS} "
                f"tiles of weights, pads of at most {MOST_PAD}). Legal are smaller windows; or keep it in float "
                "(annotate.float_nodes)",
                stage="realize",
                where=f"{FORM}: {layer.node}",
            )
    return height, width


def _fits(layer: VtaLayer, height: int, width: int) -> bool:
    if accumulators(layer, 1, height * width) > ACCUMULATORS:
        return False
    for term in layer.terms:
        if prod(term.taps) > WEIGHTS:
            return False
        for place in places(layer.result, height, width):
            patch = patch_of(term, place)
            if layer.greatest:
                patch = patch.inside
            if patch.columns * term.strides[0] > FACTOR:
                return False
            if patch.rows * patch.columns > INPUTS or max(patch.pads) > MOST_PAD or not patch.height or not patch.width:
                return False
    return True


def accumulators(layer: VtaLayer, blocks: int, count: int) -> int:
    """Return the vectors of accumulators that a tile takes, those for bounds of channels and pools included."""
    own = layer.narrowing is not None and layer.narrowing.by_channel is not None
    regions = len(layer.terms)
    if layer.greatest:
        return blocks * 2 * count
    return blocks * (regions * count + (2 if own else 0))


def places(result: Map, height: int, width: int) -> Iterator[TilePlace]:
    """Yield the tiles of a result."""
    for top in range(0, result.height, height):
        for left in range(0, result.width, width):
            yield TilePlace(top, left, min(height, result.height - top), min(width, result.width - left))


def runs(items: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yield the items in groups of at most so many."""
    for first in range(0, len(items), max(most, 1)):
        yield list(items[first : first + max(most, 1)])
