"""Reading `recurrent` of a hardware file: how a recurrent layer in a loop multiplies its state."""

from __future__ import annotations

from quantpipe.errors import nearest
from quantpipe.hardware.reader import Data, Reader
from quantpipe.types import DType, RecurrentLimits

FIELDS = ("inputs", "cell_state")
INPUTS = (DType.UINT8, DType.INT8, DType.INT16)
STATES = (DType.INT16, DType.INT8, DType.UINT8)


def read_recurrent_limits(reader: Reader, data: Data) -> RecurrentLimits | None:
    """Return how products in a loop take the state; None (no section in the file) leaves them in float.

    Raises HardwareError that names the field, its value and the legal values.
    """
    if data.get("recurrent") is None:
        return None
    part = reader.section(data, "recurrent", FIELDS, "inputs")
    inputs = part.get("inputs")
    if str(inputs) not in INPUTS:
        near = nearest(str(inputs), [str(word) for word in INPUTS])
        raise reader.error("recurrent.inputs", f"is {inputs!r}{near}; legal are {', '.join(INPUTS)}")
    return RecurrentLimits(DType(str(inputs)), _cell_state(reader, part.get("cell_state")))


def _cell_state(reader: Reader, given: object) -> DType | None:
    """Return the type of a cell state between two steps; None for floats."""
    if given is None or str(given) == DType.FLOAT32:
        return None
    if str(given) not in STATES:
        legal = [*STATES, DType.FLOAT32]
        near = nearest(str(given), [str(word) for word in legal])
        raise reader.error("recurrent.cell_state", f"is {given!r}{near}; legal are {', '.join(legal)}")
    return DType(str(given))
