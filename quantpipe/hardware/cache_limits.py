"""Reading `cache` of a hardware file: how a decoder's keys and values of earlier tokens are held."""

from __future__ import annotations

from quantpipe.hardware.reader import Data, Reader
from quantpipe.types import CacheLimits, DType, Granularity, HardwareSpec

FIELDS = ("keys", "values", "granularity", "length")
TYPES = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16)


def read_cache(reader: Reader, data: Data) -> CacheLimits | None:
    """Return how caches are held; None (no section in the file) leaves the ports of a file in float.

    Raises HardwareError that names the field, its value and the legal values.
    """
    if data.get("cache") is None:
        return None
    part = reader.section(data, "cache", FIELDS, "keys")
    keys = reader.one_of(TYPES, part.get("keys"), "cache.keys")
    reader.one_of((Granularity.PER_TENSOR,), part.get("granularity", Granularity.PER_TENSOR), "cache.granularity")
    length = part.get("length")
    return CacheLimits(
        keys,
        reader.one_of(TYPES, part.get("values", keys.value), "cache.values"),
        None if length is None else reader.whole(length, "cache.length", 1),
    )


def refuse_other_signs(spec: HardwareSpec, reader: Reader) -> None:
    """Raise HardwareError for a type of caches whose sign, or width, no stored activation of the device has."""
    if spec.cache is None:
        return
    stored = {
        s.input(0) for rows in spec.declared.values() for s in rows if s.is_integer and not spec.is_wide(s.input(0))
    }
    legal = [d for d in TYPES if any(d.signed is s.signed and d.bits <= s.bits for s in stored)]
    for field, dtype in (("keys", spec.cache.keys), ("values", spec.cache.values)):
        if dtype not in legal:
            raise reader.error(
                f"cache.{field}",
                f"is {dtype}, and the ops of the device store {', '.join(sorted(stored))}; legal are "
                f"{', '.join(legal) or 'none'}",
            )
