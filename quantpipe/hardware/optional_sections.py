"""Read the short sections of a hardware file that may be absent: `device`, `tables`, `recurrent`, `cache`.

`device` decides nothing. `tables`: how tables of rows are stored. `recurrent`: how a recurrent layer in a loop
multiplies its state. `cache`: the types of a decoder's keys and values of earlier tokens.
"""

from __future__ import annotations

from quantpipe.hardware.reader import Data, Reader, listed
from quantpipe.types import (
    CacheLimits,
    Chip,
    ChipType,
    DType,
    Granularity,
    HardwareSpec,
    RecurrentLimits,
    TableLayout,
    TableLimits,
    TableNumbers,
)

CHIP_FIELDS = ("type", "provider", "chip")
TABLE_FIELDS = ("bits", "offset", "numbers", "layout", "min_bytes")
WIDTHS = (8, 4)
INPUTS = (DType.UINT8, DType.INT8, DType.INT16)
STATES = (DType.INT16, DType.INT8, DType.UINT8)
CACHE_FIELDS = ("keys", "values", "granularity", "length")
CACHED = (DType.UINT8, DType.INT8, DType.UINT16, DType.INT16)
AUTO = "auto"
"""The first of CACHED that the ops of the device store; so a file that is like another may have other types."""


def read_chip(reader: Reader, data: Data) -> Chip | None:
    """Return the chip that a file describes; None where it has no section `device`.

    Raises HardwareError for an unknown type, and for a field that is missing or no text.
    """
    if data.get("device") is None:
        return None
    part = reader.section(data, "device", CHIP_FIELDS)
    for field in CHIP_FIELDS:
        if not isinstance(part.get(field), str) or not part[field].strip():
            said = "is missing" if part.get(field) is None else f"is {part[field]!r}"
            raise reader.error(f"device.{field}", f"{said}; legal is a text, such as {{type: npu, provider: Arm, "
                               "chip: Ethos-U55}")  # fmt: skip
    return Chip(reader.choice(ChipType, part["type"], "device.type"), part["provider"], part["chip"])


def read_tables(reader: Reader, data: Data) -> TableLimits | None:
    """Return the limits of tables; None (no section in the file) leaves tables in float.

    Raises HardwareError that names the field, its value and the legal values.
    """
    if data.get("tables") is None:
        return None
    part = reader.section(data, "tables", TABLE_FIELDS, "bits")
    bits = tuple(listed(part.get("bits", 8)))
    if not bits or len(set(bits)) < len(bits) or any(isinstance(b, bool) or b not in WIDTHS for b in bits):
        raise reader.error("tables.bits", f"is {part.get('bits')!r}; legal are 8, 4, [8, 4] and [4, 8]")
    offset = reader.flag(part, "tables", "offset", default=False)
    layout = reader.choice(TableLayout, part.get("layout") or TableLayout.BESIDE, "tables.layout")
    if layout is TableLayout.FUSED and not offset:
        raise reader.error(
            "tables.layout", "is fused, and a fused row has an offset; legal is offset: true, or layout `beside`"
        )
    return TableLimits(
        tuple(int(str(b)) for b in bits),
        offset,
        reader.choice(TableNumbers, part.get("numbers") or TableNumbers.FLOAT32, "tables.numbers"),
        layout,
        reader.whole(part.get("min_bytes", TableLimits.min_bytes), "tables.min_bytes", 0),
    )


def read_recurrent_limits(reader: Reader, data: Data) -> RecurrentLimits | None:
    """Return how products in a loop take the state; None (no section in the file) leaves them in float.

    Raises HardwareError that names the field, its value and the legal values.
    """
    if data.get("recurrent") is None:
        return None
    part = reader.section(data, "recurrent", ("inputs", "cell_state"), "inputs")
    inputs = reader.one_of(INPUTS, part.get("inputs"), "recurrent.inputs")
    given = part.get("cell_state")
    if given is None or str(given) == DType.FLOAT32:
        return RecurrentLimits(inputs, None)
    return RecurrentLimits(inputs, reader.one_of((*STATES, DType.FLOAT32), given, "recurrent.cell_state"))


def read_cache(reader: Reader, data: Data, spec: HardwareSpec) -> CacheLimits | None:
    """Return how caches are held; None (no section in the file) leaves the ports of a file in float.

    `spec` is the rest of the file. Raises HardwareError that names the field, its value and the legal values: types
    whose sign and width a stored activation of the device has.
    """
    if data.get("cache") is None:
        return None
    part = reader.section(data, "cache", CACHE_FIELDS, "keys")
    reader.one_of((Granularity.PER_TENSOR,), part.get("granularity", Granularity.PER_TENSOR), "cache.granularity")
    length = None if part.get("length") is None else reader.whole(part["length"], "cache.length", 1)
    stored = {
        s.input(0) for rows in spec.declared.values() for s in rows if s.is_integer and not spec.is_wide(s.input(0))
    }
    legal = [d for d in CACHED if any(d.signed is s.signed and d.bits <= s.bits for s in stored)]
    given = {"keys": part.get("keys"), "values": part.get("values", part.get("keys"))}
    own = next((d for d in legal if d in stored), None)
    found = {
        field: own if value == AUTO else reader.one_of(CACHED, value, f"cache.{field}")
        for field, value in given.items()
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
