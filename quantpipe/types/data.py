"""Samples on their way into a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Outputs = NDArray[Any] | tuple[NDArray[Any], ...]
"""A model's output over some samples: one array `[N, ...]`, or N arrays where its shape follows the sample."""


@dataclass(frozen=True)
class TensorInfo:
    """Name, shape (None where an axis is free, as the batch axis is) and NumPy dtype name of a model port."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class Batch:
    """Some samples: `inputs` maps input names to arrays `[N, ...]`; `labels` is int64 `[N]` or None."""

    inputs: dict[str, NDArray[Any]]
    labels: NDArray[np.int64] | None
    indices: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.indices)


class Samples(Protocol):
    """One split of a data set (calibrate, search or evaluate): a fixed, ordered list of samples, read as often as
    needed.

    `digest` names the content and the preprocessing, so that artifacts made from it can be recognized.
    """

    @property
    def digest(self) -> str: ...

    @property
    def labelled(self) -> bool: ...

    def __len__(self) -> int: ...

    def batches(self, size: int) -> Iterator[Batch]:
        """The samples in order, at most `size` at a time: the last batch may be smaller, and a batch holds samples of
        one shape, so others may be smaller, too."""
        ...
