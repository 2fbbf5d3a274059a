"""Read how a device computes functions (`functions:` in a hardware file), and reject functions without a way."""

from __future__ import annotations

from quantpipe.errors import nearest
from quantpipe.hardware.reader import Reader
from quantpipe.oprules import OP_RULES, Family
from quantpipe.types import FunctionKind, HardwareSpec, RequantizeKind

FORMED = {op: rule for op, rule in OP_RULES.items() if rule.family in (Family.LOOKUP, Family.ROWS)}
"""Ops whose form a hardware file must name; an average that divides integers is named at its row of `ops`."""


def read_functions(reader: Reader, value: object) -> dict[str, FunctionKind]:
    """Return the kind of each function that a file names.

    Raises HardwareError for an op that is no function, and for a kind that the function does not have.
    """
    if value is None:
        return {}
    found: dict[str, FunctionKind] = {}
    for op, kind in reader.mapping(value, "functions", "ops and kinds, such as {Softmax: tflite}").items():
        if op not in FORMED:
            legal = f"functions of one value or of a row: {', '.join(FORMED)}"
            raise reader.error(f"functions.{op}", f"is no function{nearest(str(op), FORMED)}; legal are {legal}")
        kinds = (*FORMED[op].kinds, FunctionKind.FLOAT)
        found[str(op)] = reader.one_of(kinds, kind, f"functions.{op}")
    return found


def refuse_unformed(spec: HardwareSpec, reader: Reader) -> None:
    """Raise HardwareError for a function that runs in integers in a way that the file does not say.

    Functions of one value are tables where the device multiplies by floats or shifts; in fixed point each library has
    its own way.
    """
    for op, rows in spec.ops.items():
        if op not in FORMED or op in spec.functions or all(s.function is not None for s in rows if s.is_integer):
            continue
        rule = FORMED[op]
        if rule.kinds == (FunctionKind.SUM,):
            continue
        if rule.family is Family.LOOKUP and spec.requantize.kind is not RequantizeKind.FIXED_POINT:
            continue
        legal = ", ".join((*rule.kinds, FunctionKind.FLOAT))
        raise reader.error(
            f"ops.{op}",
            f"runs in integers, but functions.{op} does not say how {spec.name} forms it; legal are {legal}",
        )
