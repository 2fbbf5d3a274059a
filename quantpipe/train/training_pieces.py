"""Samples as training takes them: inputs with the float model's outputs, joined where each sample has its own row.

An output may have its samples on another axis, or several rows per sample. Such samples stay together as they ran.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quantpipe.errors import DataError
from quantpipe.types import Samples

Values = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class TrainingPiece:
    """Hold samples: inputs, references (the float network's tensors), labels, and what a network reads (`read`).

    `whole`: the samples cannot be divided, because some tensor has no row for each of them.
    """

    inputs: Values
    references: Values
    labels: Tensor | None
    read: Values
    whole: bool = False

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[TrainingPiece]:
        """Yield parts of at most `size` samples, in a random order with a generator; the piece where it is whole."""
        if self.whole:
            yield self
            return
        count = len(self)
        order = torch.arange(count) if generator is None else torch.randperm(count, generator=generator)
        for first in range(0, count, size):
            chosen = order[first : first + size]
            inputs = _rows(self.inputs, chosen)
            yield TrainingPiece(
                inputs,
                _rows(self.references, chosen),
                None if self.labels is None else self.labels[chosen.to(self.labels.device)],
                inputs if self.read is self.inputs else _rows(self.read, chosen),
            )


def pieces_of(
    samples: Samples, size: int, outputs: Callable[[Values], Values], device: torch.device
) -> list[TrainingPiece]:
    """Return the samples with the float network's `outputs`, computed for `size` samples at a time.

    Raises DataError where there are no samples.
    """
    found = []
    for batch in samples.batches(size):
        inputs = {name: torch.from_numpy(np.array(value)).to(device) for name, value in batch.inputs.items()}
        labels = None if batch.labels is None else torch.from_numpy(np.array(batch.labels)).to(device)
        found.append(TrainingPiece(inputs, outputs(inputs), labels, inputs))
    if not found:
        raise DataError("there are no samples to train on", stage="data")
    return joined(found)


def joined(pieces: Sequence[TrainingPiece]) -> list[TrainingPiece]:
    """Return the pieces of equal shapes as one, where all their tensors have a row per sample; others are whole."""
    gathered: dict[Any, list[TrainingPiece]] = {}
    for number, piece in enumerate(pieces):
        parts = (piece.inputs, piece.references, piece.read)
        by_row = all(value.ndim > 0 and len(value) == len(piece) for part in parts for value in part.values())
        shapes = tuple(tuple(value.shape[1:]) for part in parts for value in part.values())
        gathered.setdefault((by_row, shapes if by_row else number), []).append(piece)
    found = []
    for (by_row, _), some in gathered.items():
        labels = [piece.labels for piece in some if piece.labels is not None]
        inputs = _joined([piece.inputs for piece in some])
        found.append(
            TrainingPiece(
                inputs,
                _joined([piece.references for piece in some]),
                torch.cat(labels) if len(labels) == len(some) else None,
                inputs if some[0].read is some[0].inputs else _joined([piece.read for piece in some]),
                whole=not by_row,
            )
        )
    return found


def _joined(parts: Sequence[Values]) -> Values:
    if len(parts) == 1:
        return parts[0]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _rows(values: Values, chosen: Tensor) -> Values:
    return {name: value[chosen.to(value.device)] for name, value in values.items()}
