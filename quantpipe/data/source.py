"""What a data set reads from: raw samples by index, before any preprocessing, with labels where there are some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.preprocess import SourceLayout


class Hasher(Protocol):
    """The part of a hashlib object that a source needs."""

    def update(self, data: bytes, /) -> None: ...


class Source(Protocol):
    """Raw samples in a stable order.

    `where` names the file or folder in messages; `labels` is int64 `[len(self)]` or None; `layout` says how the axes
    of a sample are meant.
    """

    @property
    def where(self) -> str: ...

    @property
    def layout(self) -> SourceLayout: ...

    @property
    def labels(self) -> NDArray[np.int64] | None: ...

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """How messages call one sample, file included."""
        ...

    def read(self, indices: NDArray[np.int64]) -> Sequence[NDArray[Any]] | NDArray[Any]:
        """The samples at sorted `indices`: one array `[n, …]`, or a list if shapes may differ. DataError if broken."""
        ...

    def hash_into(self, hasher: Hasher, indices: NDArray[np.int64]) -> None:
        """Feed the content of the samples at sorted `indices`, in bounded memory."""
        ...
