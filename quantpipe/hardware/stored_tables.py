"""Reading `tables` of a hardware file: how tables of which rows are looked up are stored."""

from __future__ import annotations

from quantpipe.hardware.reader import Data, Reader, listed
from quantpipe.types import TableLayout, TableLimits, TableNumbers

WIDTHS = (8, 4)
FIELDS = ("bits", "offset", "numbers", "layout", "min_bytes")


def read_tables(reader: Reader, data: Data) -> TableLimits | None:
    """Return the limits of tables; None (no section in the file) leaves tables in float.

    Raises HardwareError that names the field, its value and the legal values.
    """
    if data.get("tables") is None:
        return None
    part = reader.section(data, "tables", FIELDS, "bits")
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
