"""Inputs and outputs of a file that are stored integers: caches, whose present is the next past as it is.

The file states their numbers in its metadata (`quantpipe.caches`, a JSON list). Sessions of quantpipe take floats for
such inputs, and give floats for such outputs, so that whatever runs a model need not know of them. Programs of users
pass the integers on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.types import DType

KEY = "quantpipe.caches"
"""Of the metadata entry."""


@dataclass(frozen=True)
class StoredPort:
    """Hold the numbers of a cache: real = scale · (q - zero_point), low <= q <= high, held as `stored` at both ports.

    `holds`: keys or values.
    """

    input: str
    output: str
    holds: str
    stored: DType
    scale: float
    zero_point: int
    low: int
    high: int

    def encoded(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the integers of floats; integers as they are."""
        if array.dtype.kind != "f":
            return array
        return intmath.quantize(array, self.scale, self.zero_point, qmin=self.low, qmax=self.high, dtype=self.stored)

    def decoded(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the floats of integers."""
        return intmath.dequantize(array, np.float32(self.scale), self.zero_point)

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers as plain data."""
        found = {name: getattr(self, name) for name in ("input", "output", "holds", "scale", "zero_point")}
        return {**found, "stored": self.stored.value, "range": [self.low, self.high]}


def state_ports(model: ir.Model, ports: Sequence[StoredPort]) -> None:
    """Write into a model which of its inputs and outputs are caches in integers, if it has any."""
    if ports:
        model.metadata_props[KEY] = json.dumps([port.as_dict() for port in ports])


def stored_ports(model: ir.Model) -> tuple[StoredPort, ...]:
    """Return the caches that a model states in its metadata, if its ports have the types that are stated there.

    An entry of another form is somebody else's, and no cache.
    """
    kinds = {value.name: value.dtype for value in (*model.graph.inputs, *model.graph.outputs)}
    try:
        ports = [_read(row) for row in json.loads(model.metadata_props.get(KEY, "[]"))]
    except (ValueError, TypeError, KeyError):
        return ()
    return tuple(p for p in ports if kinds.get(p.input) == kinds.get(p.output) == ir.DataType[p.stored.name])


def _read(row: Mapping[str, Any]) -> StoredPort:
    low, high = (int(end) for end in row["range"])
    past, present, holds = (str(row[key]) for key in ("input", "output", "holds"))
    scale, zero_point = float(row["scale"]), int(row["zero_point"])
    port = StoredPort(past, present, holds, DType(row["stored"]), scale, zero_point, low, high)
    if not 0 < port.scale < math.inf:
        raise ValueError(f"a scale of {port.scale}")
    return port


def encoded(ports: Sequence[StoredPort], feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return feeds with the integers of caches in place of floats."""
    of = {port.input: port for port in ports}
    return {name: of[name].encoded(array) if name in of else array for name, array in feeds.items()}


def decoded(ports: Sequence[StoredPort], found: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return outputs with the floats of caches in place of integers."""
    of = {port.output: port for port in ports}
    return {name: of[name].decoded(array) if name in of else array for name, array in found.items()}
