"""What a walk of calibrators goes through, and who decides there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

from quantpipe import extend
from quantpipe.extend import Calibrator
from quantpipe.graph.view import Graph, Node
from quantpipe.types import Batch, Kernel, Samples

BATCHES = 16
"""Aimed at, so that a calibrator can try something on a share of the samples."""

SHARE, LEAST = 3, 32
"""A walk runs on one of so many samples, evenly spread over all, and on so many at least: layer by layer, a sample
costs several times what it costs the float model as a whole."""


@dataclass(frozen=True)
class Calibrated:
    """State what calibrators decided: scale groups and weights by their keys, and who decided each."""

    ranges: Mapping[str, str]
    weights: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Choosing:
    """Name the calibrators: first of packages, then of the threshold option for all kernels (or None)."""

    general: Calibrator | None
    name: str = "threshold"

    def of(self, op: str) -> tuple[str, Calibrator] | None:
        """Return who decides on kernels of an op, by name, and the calibrator; None where nobody does."""
        own = extend.calibrator_of(op)
        if own is not None:
            return own
        return None if self.general is None else (self.name, self.general)


def samples_per_batch(graph: Graph, count: int) -> int:
    """Return how many samples a batch has, so that there are enough batches to try something on a share of them."""
    return graph.fixed_batch or max(1, min(graph.batch_size, ceil(count / BATCHES)))


def walked(graph: Graph, samples: Samples) -> Iterator[Batch]:
    """Yield the batches that a walk runs on: a third of the samples, evenly spread over all."""
    most = min(len(samples), max(LEAST, len(samples) // SHARE))
    size = samples_per_batch(graph, most)
    there = ceil(len(samples) / size)
    count = min(there, max(1, most // size))
    taken = {number * there // count for number in range(count)}
    return (batch for number, batch in enumerate(samples.batches(size)) if number in taken)


COMPARED = 4
"""Decisions whose views of a batch are in memory at once, at most, where calibrators of our own compare some."""


@dataclass(frozen=True, eq=False)
class LayerUnit:
    """Hold a kernel with the clamps it took in, or a node in float."""

    nodes: tuple[Node, ...]
    kernel: Kernel | None
    reads: tuple[str, ...]
    makes: tuple[str, ...]


def units_of(graph: Graph, kernels: Mapping[str, Kernel], fused: Mapping[str, str]) -> Iterator[LayerUnit]:
    """Yield what runs at once, in graph order: `fused` are clamps that belong to another node."""
    for node in graph.nodes:
        if node.name in fused:
            continue
        kernel = kernels.get(node.name)
        nodes = (node, *(graph.by_name[name] for name in (kernel.fused if kernel is not None else ())))
        inner = {t for n in nodes for t in n.outputs}
        reads = [
            t for n in nodes for t in (*n.inputs, *n.captured) if t and t not in inner and not graph.is_constant(t)
        ]
        makes = (kernel.output,) if kernel is not None else tuple(t for t in node.outputs if t)
        yield LayerUnit(nodes, kernel, tuple(dict.fromkeys(reads)), makes)


def samples_at_once(graph: Graph, units: Sequence[LayerUnit], bytes_: int, under_way: int) -> int:
    """Return how many samples may run at once so that what a unit reads and makes fits into a number of bytes.

    What is read is there three times (float, quantized, rounded), what is made once in float and once for each decision
    that is compared. One sample runs in any case.
    """

    def size(tensors: Sequence[str]) -> int:
        return sum(4 * prod(graph.shapes[t]) for t in tensors if t in graph.shapes)

    largest = max((3 * size(u.reads) + (1 + COMPARED) * size(u.makes) for u in units), default=1)
    return max(1, bytes_ // max(1, largest * under_way))
