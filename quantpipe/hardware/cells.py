"""Select the recurrent layers that are written as their steps or as loops, since a device runs them in no other way."""

from __future__ import annotations

from enum import StrEnum

from quantpipe.errors import ConfigError
from quantpipe.intake.rewrites.recurrent import CELLS, PARTS
from quantpipe.option_checks import word_of
from quantpipe.types import NO_CELLS, HardwareSpec, LoopForms


class Recurrent(StrEnum):
    """Name what becomes of recurrent layers.

    `cells`: they stay as they are, in float. `steps`: layers of a fixed length are written as their steps, others as
    loops where the device describes products in loops. `loops`: all as loops. `auto`: as steps and loops where the
    device has integers for these, and no such layer itself.
    """

    AUTO = "auto"
    CELLS = "cells"
    STEPS = "steps"
    LOOPS = "loops"


def read_recurrent(value: object) -> Recurrent:
    """Return the value of `model.recurrent`.

    Raises ConfigError for an unknown word.
    """
    return word_of(Recurrent, value, "model.recurrent")


def cell_forms(spec: HardwareSpec, wanted: Recurrent) -> LoopForms:
    """Return the recurrent ops of a model by the form in which a device runs them.

    Raises HardwareError for loops on a device whose file does not describe products in loops.
    """
    if wanted is Recurrent.CELLS:
        return NO_CELLS
    if wanted is Recurrent.LOOPS and spec.recurrent is None:
        raise ConfigError(
            f"is loops, and {spec.name} does not say how it multiplies a state in a loop; legal are "
            "+hardware.recurrent.inputs=int8 (docs/hardware.md), or auto, cells and steps",
            where="model.recurrent",
        )
    able = all(any(s.is_integer for s in spec.ops.get(op, ())) for op in PARTS)
    asked = wanted is not Recurrent.AUTO
    inside = tuple(op for op in CELLS if asked or (able and op not in spec.ops))
    outside = tuple(op for op in CELLS if asked or op not in spec.ops) if spec.recurrent is not None else ()
    stored = spec.recurrent is not None and spec.recurrent.cell_state is not None
    return LoopForms(() if wanted is Recurrent.LOOPS else inside, outside, cells=stored)
