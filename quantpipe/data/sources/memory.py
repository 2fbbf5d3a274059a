"""A source whose samples are already in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.preprocess import SourceLayout
from quantpipe.data.source import SINGLE, Hasher, NumberedSamples, Rows
from quantpipe.types import Objects


@dataclass(frozen=True, eq=False)
class MemorySource(NumberedSamples):
    """Hold images in memory as a source.

    `images` is `[N, …]` with `labels` int64 `[N]` or None, or with `objects`, what each shows; `where` names them in
    messages.
    """

    where: str
    images: NDArray[Any]
    labels: NDArray[np.int64] | None
    layout: SourceLayout
    sequences: NDArray[np.int64] | None = None
    cheap: bool = False
    objects: tuple[Objects, ...] | None = None

    @property
    def fields(self) -> Mapping[str, SourceLayout]:
        """Return the layout of the one field."""
        return {SINGLE: self.layout}

    def __len__(self) -> int:
        return len(self.images)

    def read(self, indices: NDArray[np.int64]) -> Mapping[str, Rows]:
        """Return the rows of these samples."""
        return {SINGLE: self.images[indices]}

    def hash_into(self, hasher: Hasher, indices: NDArray[np.int64]) -> None:
        """Include type, shape and content of these samples in a digest."""
        chosen = self.images[indices]
        hasher.update(f"{chosen.dtype.str}{chosen.shape}".encode())
        hasher.update(np.ascontiguousarray(chosen).tobytes())
