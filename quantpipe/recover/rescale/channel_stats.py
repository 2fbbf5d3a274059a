"""Extremes and means per channel of the tensors of pairs of layers, from one pass of the float model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import Floats
from quantpipe.graph.execute import Session, available_cores
from quantpipe.graph.outputs import with_outputs
from quantpipe.graph.view import Graph
from quantpipe.recover.rescale.channel_regions import LayerPair
from quantpipe.types import Samples

IMAGES = 2
"""Samples of one run, where the model's batch is free: all the watched tensors of a run are in memory at once."""


@dataclass(frozen=True, eq=False)
class ChannelExtremes:
    """Hold statistics per channel, `[C]` float64 each, over all samples and places.

    C are the channels of the link's producer. `mean` and `deviation` are NaN where they were not asked for.
    """

    minimum: Floats
    maximum: Floats
    mean: Floats
    deviation: Floats


def channel_extremes(
    graph: Graph, found: Sequence[LayerPair], samples: Samples, *, moments: bool = True
) -> Mapping[str, ChannelExtremes]:
    """Return statistics of what each link's consumers read, and of what its clamp gives, by tensor.

    `moments`: whether mean and deviation are measured, which take several times as long as extremes. Returns tensor ->
    its statistics.
    """
    if not found:
        return {}
    sums = {tensor: _Sums(link, moments) for link in found for tensor in (link.tensor, link.clamp_output)}
    session = Session(with_outputs(graph.model, list(sums)), spin=False, where=graph.source)
    fixed = graph.inputs[0].shape[0] if graph.inputs and graph.inputs[0].shape else None
    with ThreadPoolExecutor(available_cores()) as pool:
        for batch in samples.batches(fixed or min(IMAGES, graph.batch_size)):
            values = session.run(batch.inputs, list(sums))
            largest = sorted(sums, key=lambda tensor: -values[tensor].size)
            list(pool.map(_Sums.add, (sums[t] for t in largest), (values[t] for t in largest)))
    return {tensor: one.finish() for tensor, one in sums.items()}


class _Sums:
    def __init__(self, link: LayerPair, moments: bool) -> None:
        self._link, self._moments = link, moments
        self._low, self._high = np.full(link.channels, np.inf), np.full(link.channels, -np.inf)
        self._total, self._squares, self._count = np.zeros(link.channels), np.zeros(link.channels), 0

    def add(self, array: NDArray[np.float32]) -> None:
        """Include a batch of the tensor."""
        rows = np.moveaxis(array, self._link.axis, 1).reshape(len(array), self._link.channels, -1)
        self._low = np.minimum(self._low, rows.min(axis=2).min(axis=0))
        self._high = np.maximum(self._high, rows.max(axis=2).max(axis=0))
        if self._moments:
            self._total += rows.sum(axis=2, dtype=np.float64).sum(axis=0)
            self._squares += np.einsum("ncp,ncp->c", rows, rows, dtype=np.float64)
            self._count += len(rows) * rows.shape[2]

    def finish(self) -> ChannelExtremes:
        mean = spread = np.full(self._link.channels, np.nan)
        if self._moments:
            mean = self._total / self._count
            spread = np.sqrt(np.maximum(self._squares / self._count - mean**2, 0.0))
        return ChannelExtremes(self._low, self._high, mean, spread)
