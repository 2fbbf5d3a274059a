"""Which recurrent layers are written as their steps for a device: those that it runs in no other way."""

from __future__ import annotations

from enum import StrEnum

from quantpipe.errors import ConfigError, nearest
from quantpipe.graph.rewrites.recurrent import CELLS, PARTS
from quantpipe.types import HardwareSpec


class Recurrent(StrEnum):
    """Name what becomes of recurrent layers.

    `cells`: they stay as they are, in float. `steps`: those of a fixed length are written as their steps. `auto`: as
    steps where the device has integers for all of a step, and no such layer itself.
    """

    AUTO = "auto"
    CELLS = "cells"
    STEPS = "steps"


def read_recurrent(value: object) -> Recurrent:
    """Return what `model.recurrent` says.

    Raises:
        ConfigError: for a word that it does not have.
    """
    legal = [str(word) for word in Recurrent]
    if str(value) not in legal:
        near = nearest(str(value), legal)
        raise ConfigError(f"is {value!r}{near}; legal are {', '.join(legal)}", where="model.recurrent")
    return Recurrent(str(value))


def cells_in_steps(spec: HardwareSpec, wanted: Recurrent) -> tuple[str, ...]:
    """Return the ops of recurrent layers that are written as their steps.

    Args:
        spec: the device.
        wanted: what the user asks for.

    Returns:
        The ops, in order.
    """
    if wanted is Recurrent.CELLS:
        return ()
    if wanted is Recurrent.STEPS:
        return tuple(CELLS)
    able = all(any(s.is_integer for s in spec.ops.get(op, ())) for op in PARTS)
    return tuple(op for op in CELLS if able and op not in spec.ops)
