"""Weights of a simulated graph: integer ones become floats when a session is loaded, and these are not kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from quantpipe.arrays import Array
from quantpipe.types import WeightTensor

MANY = 1 << 26
"""Bytes of integer weights from which on no session holds floats of them."""


def are_many(weights: Iterable[WeightTensor]) -> bool:
    """Return whether the integer weights of a plan are too many to be held as floats, too."""
    held = {id(w.values): w.values.nbytes for w in weights}
    return sum(held.values()) >= MANY


@dataclass(frozen=True)
class FloatWeight:
    """The integers of a weight less their zero points, as float32: four times the bytes of the integers."""

    weight: WeightTensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Return its shape."""
        return self.weight.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return its type."""
        return np.dtype(np.float32)

    def array(self) -> Array:
        """Return the floats; every call makes them again."""
        return np.asarray(self.weight.centred().astype(np.float32))


class BoundWeights(Mapping[str, Array]):
    """Hold weights by name; floats of integer weights are made when they are read."""

    def __init__(self) -> None:
        self._held: dict[str, Array | FloatWeight] = {}

    def __getitem__(self, name: str) -> Array:
        held = self._held[name]
        return held.array() if isinstance(held, FloatWeight) else held

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def put(self, name: str, value: Array | FloatWeight) -> None:
        """Add a weight."""
        self._held[name] = value

    def equals(self, name: str, value: Array | FloatWeight) -> bool:
        """Return whether `name` has that value."""
        held = self._held.get(name)
        if isinstance(held, FloatWeight) or isinstance(value, FloatWeight):
            return (
                isinstance(held, FloatWeight)
                and isinstance(value, FloatWeight)
                and held.weight.digest == value.weight.digest
            )
        return held is not None and held.dtype == value.dtype and np.array_equal(held, value)

    def tensor(self, name: str) -> ir.TensorProtocol:
        """Return a weight for a model; the model does not hold floats that can be made again."""
        held = self._held[name]
        if not isinstance(held, FloatWeight):
            return ir.tensor(held)
        make = partial(_tensor, held)
        return ir.LazyTensor(make, ir.DataType.FLOAT, ir.Shape(held.shape), name=name)


def _tensor(held: FloatWeight) -> ir.TensorProtocol:
    return ir.tensor(held.array())
