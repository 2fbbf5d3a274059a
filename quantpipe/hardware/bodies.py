"""Select the loops and branches of a model that are written out, since a device runs their ops in integers."""

from __future__ import annotations

from enum import StrEnum

from quantpipe.intake.rewrites.bodies import IF, LOOP, SCAN
from quantpipe.oprules import OP_RULES, Family
from quantpipe.option_checks import word_of
from quantpipe.types import NO_BODIES, BodyForms, HardwareSpec

SELECT = "Where"


class Bodies(StrEnum):
    """Name what becomes of bodies of If, Loop and Scan.

    `keep`: they stay as they are, in float. `inline`: they are written out where that is possible. `auto`: so are those
    with products that the device runs in integers, if it can also select between branches in integers.
    """

    AUTO = "auto"
    KEEP = "keep"
    INLINE = "inline"


def read_bodies(value: object) -> Bodies:
    """Return the value of `model.bodies`.

    Raises ConfigError for an unknown word.
    """
    return word_of(Bodies, value, "model.bodies")


def body_forms(spec: HardwareSpec, asked: Bodies) -> BodyForms:
    """Return the bodies that are written out for a device.

    With `auto`, a Scan stays if the hardware file has `recurrent`: its products run in integers there.
    """
    if asked is Bodies.KEEP:
        return NO_BODIES
    if asked is Bodies.INLINE:
        return BodyForms((IF, LOOP, SCAN), tuple(OP_RULES))
    heavy = tuple(op for op in spec.ops if _multiplies(op) and _in_integers(spec, op))
    holders = {IF: _in_integers(spec, SELECT), LOOP: True, SCAN: spec.recurrent is None}
    return BodyForms(tuple(op for op, wanted in holders.items() if wanted), heavy)


def _multiplies(op: str) -> bool:
    return op in OP_RULES and OP_RULES[op].family is Family.ACCUMULATE


def _in_integers(spec: HardwareSpec, op: str) -> bool:
    return any(signature.is_integer for signature in spec.ops.get(op, ()))
