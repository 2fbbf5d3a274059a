"""Reading `cache` of a hardware file: how a decoder's keys and values of earlier tokens are held."""

from __future__ import annotations

from quantpipe.hardware.reader import Data, Reader
from quantpipe.types import CacheLimits, DType, Granularity, HardwareSpec

FIELDS = ("keys", "values", "granularity", "length")
TYPES = (DType.UINT8, DType.INT8, DType.UINT16, DType.INT16)
AUTO = "auto"
"""The first of TYPES that the ops of the device store; so a file that is like another may have other types."""


def read_cache(reader: Reader, data: Data, spec: HardwareSpec) -> CacheLimits | None:
    """Return how caches are held; None (no section in the file) leaves the ports of a file in float.

    `spec` is the rest of the file. Raises HardwareError that names the field, its value and the legal values: types
    whose sign and width a stored activation of the device has.
    """
    if data.get("cache") is None:
        return None
    part = reader.section(data, "cache", FIELDS, "keys")
    reader.one_of((Granularity.PER_TENSOR,), part.get("granularity", Granularity.PER_TENSOR), "cache.granularity")
    length = None if part.get("length") is None else reader.whole(part["length"], "cache.length", 1)
    stored = {
        s.input(0) for rows in spec.declared.values() for s in rows if s.is_integer and not spec.is_wide(s.input(0))
    }
    legal = [d for d in TYPES if any(d.signed is s.signed and d.bits <= s.bits for s in stored)]
    given = {"keys": part.get("keys"), "values": part.get("values", part.get("keys"))}
    own = next((d for d in legal if d in stored), None)
    found = {
        field: own if value == AUTO else reader.one_of(TYPES, value, f"cache.{field}") for field, value in given.items()
    }
    for field, dtype in found.items():
        if dtype is not None and dtype not in legal:
            raise reader.error(
                f"cache.{field}",
                f"is {dtype}, and the ops of the device store {', '.join(sorted(stored))}; legal are "
                f"{', '.join((*legal, AUTO)) if legal else 'none'}",
            )
    keys, values = found["keys"], found["values"]
    return None if keys is None or values is None else CacheLimits(keys, values, length)
