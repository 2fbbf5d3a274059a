"""Views of samples: what they have in common with the viewed ones, and the first few samples of a split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantpipe.types import Batch, Objects, Samples, groups_of, objects_of, sample_name


class SamplesView:
    """Samples made from `samples`, with the same labels, objects, groups, names and number."""

    samples: Samples

    @property
    def labelled(self) -> bool:
        """Return whether the samples have labels."""
        return self.samples.labelled

    @property
    def objects(self) -> tuple[Objects, ...] | None:
        """Return the objects in each picture, if the data have them."""
        known = objects_of(self.samples)
        return None if known is None else known[: len(self)]

    @property
    def groups(self) -> NDArray[np.str_] | None:
        """Return the group of each sample, if the data have groups."""
        known = groups_of(self.samples)
        return None if known is None else known[: len(self)]

    def name(self, position: int) -> str:
        """Return the name of the sample at a position."""
        return sample_name(self.samples, position)

    def __len__(self) -> int:
        return len(self.samples)


@dataclass(frozen=True, eq=False)
class First(SamplesView):
    """The first `limit` samples of `samples`, in their order."""

    samples: Samples
    limit: int

    @property
    def digest(self) -> str:
        """Return the digest of the samples with their number."""
        return f"{self.samples.digest}[:{len(self)}]"

    def __len__(self) -> int:
        return min(self.limit, len(self.samples))

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the samples in order, at most `size` at a time."""
        left = len(self)
        for batch in self.samples.batches(min(size, max(left, 1))):
            if left <= 0:
                return
            yield batch if len(batch) <= left else _cut(batch, left)
            left -= len(batch)


def underlying(samples: Samples) -> Samples:
    """Return the samples that some are the first of."""
    while isinstance(samples, First):
        samples = samples.samples
    return samples


def _cut(batch: Batch, count: int) -> Batch:
    labels = batch.labels[:count] if batch.labels is not None else None
    return Batch({k: v[:count] for k, v in batch.inputs.items()}, labels, batch.indices[:count])
