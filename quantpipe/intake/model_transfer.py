"""A model on its way from the process that loaded it to the one that goes on with it.

Nodes and small constants travel as a protobuf. A large weight is sent only as far as the other side lacks it. Nothing
is sent if it belongs to the model that both started from, and only the place if it is in a file; otherwise its numbers
are sent.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.graph.external_weights import FilePlace, heavy_weights, place_of, skeleton


@dataclass(frozen=True, eq=False)
class Weight:
    """Hold one weight of a model that travels, in one of three ways.

    It is the name of a weight that both processes have, a file with a place in it, or numbers. `own`: nobody else will
    remove the file. `kept` is not sent: it keeps that file in place until the other process has opened it.
    """

    dtype: int
    shape: tuple[int, ...]
    same: str | None = None
    place: FilePlace | None = None
    own: bool = False
    numbers: NDArray[Any] | None = None
    kept: ir.TensorProtocol | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "kept": None}


@dataclass(frozen=True, eq=False)
class Packed:
    """A model without its large weights, and those."""

    data: bytes
    weights: Mapping[str, Weight]


def pack(model: ir.Model, known: ir.Model) -> Packed:
    """Return the model packed for a process that has `known`, which it was made from."""
    names = {id(v.const_value): name for name, v in known.graph.initializers.items()}
    held = {n: t for n, t in heavy_weights(model).items() if t.dtype is not ir.DataType.STRING}
    weights = {name: _weight(tensor, names.get(id(tensor))) for name, tensor in held.items()}
    return Packed(skeleton(model), weights)


def unpack(packed: Packed, known: ir.Model) -> ir.Model:
    """Return the model of a packed one, in the other process or in this one."""
    model = ir.from_proto(onnx.load_from_string(packed.data))
    for name, weight in packed.weights.items():
        model.graph.initializers[name].const_value = _tensor(name, weight, known)
    return model


def _weight(tensor: ir.TensorProtocol, same: str | None) -> Weight:
    about = (int(tensor.dtype), tuple(int(d) for d in tensor.shape.numpy()))
    if same is not None:
        return Weight(*about, same=same)
    place = place_of(tensor)
    if place is not None:
        return Weight(*about, place=place, own=not isinstance(tensor, ir.ExternalTensor), kept=tensor)
    return Weight(*about, numbers=np.asarray(tensor.numpy()))


def _tensor(name: str, weight: Weight, known: ir.Model) -> ir.TensorProtocol | None:
    dtype, place = ir.DataType(weight.dtype), weight.place
    if weight.same is not None:
        return known.graph.initializers[weight.same].const_value
    if weight.numbers is not None:
        return ir.Tensor(weight.numbers, dtype=dtype, shape=ir.Shape(weight.shape), name=name)
    if place is None or weight.kept is not None:
        return weight.kept
    if not weight.own:
        file = str(place.path)
        return ir.ExternalTensor(file, place.offset, place.length, dtype, shape=ir.Shape(weight.shape), name=name)
    array = np.memmap(place.path, dtype.numpy(), "r+", offset=place.offset, shape=weight.shape)
    weakref.finalize(array, place.path.unlink, missing_ok=True)
    return ir.tensor(array, name=name)
