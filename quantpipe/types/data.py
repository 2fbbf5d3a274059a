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
    """Describe a model port: name, shape (None where an axis is free, as the batch axis is) and NumPy dtype name.

    `given` is the half-precision type that the user's file gives a port which is float32 here. Values of the port are
    rounded to that type, and held in float32.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    given: str | None = None

    @property
    def type_name(self) -> str:
        """Return the type as the user's file has it."""
        return self.given or self.dtype

    def rounded(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values as they come through the port, in `dtype`; infinite where the given type ends before them."""
        if self.given is None:
            return values
        with np.errstate(over="ignore"):
            return values.astype(self.given).astype(self.dtype)


@dataclass(frozen=True, eq=False)
class Objects:
    """Hold what one picture shows: `boxes` `[n, 4]` float64, `classes` `[n]` int64, `crowd` `[n]` bool.

    A box is left, top, right and bottom as parts of the picture's width and height. `crowd`: the box is around many
    objects that are not told apart, so that a detection inside is neither right nor wrong; none: no box is.
    """

    boxes: NDArray[np.float64]
    classes: NDArray[np.int64]
    crowd: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.classes)


@dataclass(frozen=True, eq=False)
class Batch:
    """Hold some samples: `inputs` maps input names to arrays `[N, ...]`; `labels` is int64 `[N]` or None."""

    inputs: dict[str, NDArray[Any]]
    labels: NDArray[np.int64] | None
    indices: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.indices)


class Samples(Protocol):
    """Give one split of a data set (calibrate, search or evaluate) as a fixed, ordered list of samples.

    A split is read as often as needed. `digest` names the content and the preprocessing, so that artifacts made from it
    can be recognized.
    """

    @property
    def digest(self) -> str:
        """Return a text that is equal for equal content and equal preprocessing."""

    @property
    def labelled(self) -> bool:
        """Return whether every batch carries a label per sample."""

    def __len__(self) -> int: ...

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the samples in order, at most `size` at a time.

        The last batch may be smaller. A batch holds samples of one shape, so other batches may be smaller, too.
        """


def groups_of(samples: Samples) -> NDArray[np.str_] | None:
    """Return the group of each sample of a split by `dataset.groups`, `[N]`; None without groups.

    The samples may have a property `groups`.
    """
    known: NDArray[np.str_] | None = getattr(samples, "groups", None)
    return known


def sample_name(samples: Samples, position: int) -> str:
    """Return the name of the sample at a position of a split: its file, or its row in the source.

    The samples may have a method `name`.
    """
    named = getattr(samples, "name", None)
    return f"sample {position}" if named is None else str(named(position))


def objects_of(samples: Samples) -> tuple[Objects, ...] | None:
    """Return the objects in each picture of a split; None where its data describe no objects.

    The samples may have a property `objects`.
    """
    known: tuple[Objects, ...] | None = getattr(samples, "objects", None)
    return known
