"""plan.json and certificate.json as the checks read them: quantizers, weights, bounds, names of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.verify.checked_blocks import expect_blocks
from quantpipe.verify.files import Wrong, array_digest, expect
from quantpipe.verify.realized_model import Model

Array = NDArray[Any]
Ints = NDArray[np.int64]
EXACT = 1 << 24


class ClaimedNumbers:
    """Look up what is claimed; names that are not there are Wrong."""

    def __init__(self, plan: Mapping[str, Any], certificate: Mapping[str, Any], model: Model) -> None:
        self.plan, self.certificate, self.model = plan, certificate, model
        self.kernels: Mapping[str, Any] = plan["kernels"]
        self.claims: Mapping[str, Any] = certificate["kernels"]
        self.form = str(certificate["form"])
        self.raw: dict[str, int] = {}
        """Maximum magnitude of tensors that are passed on as accumulators."""
        self.uncompared: list[str] = []
        """Kernels that are neither proved nor compared with plan.json."""

    def value(self, tensor: str, form: str = "quantized") -> str:
        """Return the name of the value in the model that holds a tensor."""
        name = tensor if form == "quantized" else f"{tensor} (accumulator)"
        if tensor in self.plan["constants"] and form == "quantized":
            return self._constant(tensor)
        if form == "raw" and self.form != "integer":
            return tensor
        found = self.certificate["values"].get(name)
        if not isinstance(found, str):
            raise Wrong("certificate.json", f"it does not say which value of the model holds {name}")
        return found

    def _constant(self, tensor: str) -> str:
        name = f"{tensor}_q"
        array = self.model.constant(name)
        expect(array_digest(array) == self.plan["constants"][tensor], name, "it is not the constant of plan.json")
        return name

    def quantizer(self, tensor: str) -> Mapping[str, Any]:
        """Return the entry of a stored tensor in plan.json.

        Raises Wrong if it is missing.
        """
        found = self.plan["quantizers"].get(tensor)
        if found is None:
            raise Wrong("plan.json", f"it has no quantizer of {tensor}")
        return found  # type: ignore[no-any-return]

    def codes(self, tensor: str) -> Array:
        """Return every integer that a stored tensor can hold, `[1, N]`, in its type."""
        q = self.quantizer(tensor)
        low, high = (int(v) for v in q["range"])
        return np.arange(low, high + 1).astype(storage(q["dtype"])).reshape(1, -1)

    def centred(self, tensor: str) -> Ints:
        """Return q - z of all integers that a tensor can hold, int64."""
        return self.codes(tensor).astype(np.int64) - int(self.quantizer(tensor)["zero_point"])

    def peak(self, tensor: str, form: str = "quantized") -> int:
        """Return the largest |q - z| of a stored tensor, or the largest magnitude of an accumulator."""
        if form == "raw":
            if tensor not in self.raw:
                raise Wrong("plan.json", f"no bound of the accumulator {tensor} is known")
            return self.raw[tensor]
        return int(np.max(np.abs(self.centred(tensor))))

    def grid(self, tensor: str) -> tuple[np.float32, int]:
        """Return scale and zero point of a stored tensor."""
        q = self.quantizer(tensor)
        return np.float32(q["scale"]), int(q["zero_point"])


BYTES = {"int2": "int8", "uint2": "uint8", "int4": "int8", "uint4": "uint8"}


def storage(name: str) -> np.dtype[Any]:
    """Return the NumPy type that holds a stored tensor; integers of 2 and 4 bits take a byte each."""
    try:
        return np.dtype(BYTES.get(name, name))
    except TypeError:
        raise Wrong("plan.json", f"{name} is no integer type") from None


def limits(name: str) -> tuple[int, int]:
    """Return the minimum and maximum integer of a type of plan.json."""
    bits = int("".join(c for c in name if c.isdigit()) or "0")
    expect(2 <= bits <= 64, "plan.json", f"{name} is no integer type")
    return (0, (1 << bits) - 1) if name.startswith("u") else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def checked_weight(
    numbers: ClaimedNumbers, name: str, where: str, centred: Array | None, *, stored: Array | None, outputs: int = 1
) -> Array:
    """Return the integers of a weight less their zero points, int64, in the layout of the float weight.

    `centred`: the integers with the zero points taken off already, or None. `stored`: the integers as they lie in the
    model, or None.
    """
    entry = numbers.plan["weights"].get(name)
    if entry is None:
        raise Wrong("plan.json", f"it has no weight {name}")
    expect(entry["axis"] in (None, entry["channel_axis"]), name, "its scales do not follow its output channels")
    given = stored if stored is not None else centred
    assert given is not None  # noqa: S101  (one of the two is given)
    array = given.T if given.ndim == 2 and entry["channel_axis"] != outputs else given
    zero = along(np.asarray(entry["zero_point"], np.int64), entry["axis"], array.ndim)
    if not zero.ndim or zero.shape[entry["axis"]] == array.shape[entry["axis"]]:
        q = array.astype(np.int64) + (0 if stored is not None else zero)
        held = q.astype(storage(entry["dtype"]))
        if array_digest(held) == entry["values"] and np.all(q == held):
            expect_blocks(entry, q, name)
            return np.asarray(q - zero)
    raise Wrong(where, f"its weights are not those that plan.json names ({name})")


def along(values: Array, axis: int | None, rank: int) -> Array:
    """Return numbers per channel along one axis; a single one as it is.

    `values`: `[C]` or `()`. `axis`: the axis of channels; None for a single number.
    """
    if values.ndim == 0 or axis is None:
        return values.reshape(()) if values.size == 1 else values
    shape = [1] * rank
    shape[axis] = -1
    return values.reshape(shape)


def reach(weight: Array, channel_axis: int, peak: int) -> Ints:
    """Return the largest |sum of products| of each output channel, for any input.

    Returns `[C]`, int64.
    """
    expect(channel_axis < weight.ndim, "plan.json", "a weight has its channels along an axis that it does not have")
    others = tuple(a for a in range(weight.ndim) if a != channel_axis)
    return np.asarray(np.abs(weight).sum(axis=others) * peak, np.int64)
