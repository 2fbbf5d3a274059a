"""Reading `device` of a hardware file: which chip it describes, of whom. It decides nothing."""

from __future__ import annotations

from quantpipe.errors import nearest
from quantpipe.hardware.reader import Data, Reader
from quantpipe.types import Chip, ChipType

FIELDS = ("type", "provider", "chip")


def read_chip(reader: Reader, data: Data) -> Chip | None:
    """Return the chip that a file describes; None where it has no section `device`.

    Raises HardwareError for an unknown type, and for a field that is missing or no text.
    """
    if data.get("device") is None:
        return None
    part = reader.section(data, "device", FIELDS)
    for field in FIELDS:
        if not isinstance(part.get(field), str) or not part[field].strip():
            said = "is missing" if part.get(field) is None else f"is {part[field]!r}"
            raise reader.error(f"device.{field}", f"{said}; legal is a text, such as {{type: npu, provider: Arm, "
                               "chip: Ethos-U55}")  # fmt: skip
    if part["type"] not in tuple(ChipType):
        near = nearest(part["type"], list(ChipType))
        raise reader.error("device.type", f"is {part['type']!r}{near}; legal are {', '.join(ChipType)}")
    return Chip(ChipType(part["type"]), part["provider"], part["chip"])
