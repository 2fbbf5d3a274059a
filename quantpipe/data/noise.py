"""Random numbers as inputs of a model: drawn once for each sample by the seed, so that all models get equal ones."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.splits import Splits
from quantpipe.data.subset import SamplesView
from quantpipe.types import Batch, Samples
from quantpipe.types.run_files import SourceRecord

Arrays = Mapping[str, NDArray[Any]]
Shapes = Callable[[Arrays], Mapping[str, tuple[int, ...]]]
"""A model: feeds to the shapes of the inputs of random numbers, by name."""


class NoiseSource(Protocol):
    """Describe an input of random numbers, and draw numbers for it."""

    @property
    def name(self) -> str:
        """Return the name of the input."""

    def drawn(self, shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[np.float32]:
        """Return numbers of its distribution."""


class NoisySamples(SamplesView):
    """The samples of a split with inputs of random numbers filled in. Implements `types.Samples`."""

    def __init__(self, samples: Samples, inputs: Sequence[NoiseSource], shapes: Shapes, seed: int) -> None:
        self.samples, self._inputs, self._shapes, self._seed = samples, tuple(inputs), shapes, seed

    @property
    def digest(self) -> str:
        """Return the digest of the samples, the inputs that are drawn with their distributions, and the seed."""
        return f"{self.samples.digest}+{','.join(map(repr, self._inputs))}@{self._seed}"

    @property
    def record(self) -> SourceRecord:
        """See `SourceSamples.record`; `drawn` are the inputs of random numbers."""
        own: SourceRecord = getattr(self.samples, "record", SourceRecord())
        return {**own, "drawn": [i.name for i in self._inputs]}

    def batches(self, size: int) -> Iterator[Batch]:
        """See `types.Samples`. A sample has the same numbers in every batch size."""
        for batch in self.samples.batches(size):
            shapes = self._shapes(batch.inputs)
            drawn = {i.name: self._drawn(i, shapes[i.name], batch) for i in self._inputs}
            yield Batch({**batch.inputs, **drawn}, batch.labels, batch.indices)

    def _drawn(self, port: NoiseSource, shape: tuple[int, ...], batch: Batch) -> NDArray[np.float32]:
        name = zlib.crc32(port.name.encode())
        rows = (np.random.default_rng([self._seed, name, int(index)]) for index in batch.indices)
        return np.stack([port.drawn(shape[1:], generator) for generator in rows])


def with_noise(splits: Splits, inputs: Sequence[NoiseSource], shapes: Shapes, seed: int) -> Splits:
    """Return the splits with inputs of random numbers filled in; the splits themselves without such inputs."""
    if not inputs:
        return splits
    return splits.with_roles({role: NoisySamples(s, inputs, shapes, seed) for role, s in splits.roles.items()})
