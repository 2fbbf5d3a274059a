"""Read what a user states about single tensors beforehand.

A statement gives a tensor's scale, its range or its minimum bits, or keeps it in float. There are four kinds, as
data: `uniform` (scale, zero_point, dtype), `calibrated` (min, max), `any` (bits: at least so many), `none` (the tensor
is never held in integers).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from quantpipe.errors import ConfigError, nearest
from quantpipe.option_checks import is_integer, is_number, matching
from quantpipe.types import DType

WHERE = "annotate.constraints"


class ConstraintKind(StrEnum):
    """Name what a statement gives: scale and zero point, a range, the smallest bits, or that the tensor stays real."""

    UNIFORM = "uniform"
    CALIBRATED = "calibrated"
    ANY = "any"
    NONE = "none"


FIELDS = {
    ConstraintKind.UNIFORM: ("scale", "zero_point", "dtype"),
    ConstraintKind.CALIBRATED: ("min", "max"),
    ConstraintKind.ANY: ("bits",),
    ConstraintKind.NONE: (),
}


@dataclass(frozen=True)
class Constraint:
    """One statement; the fields that its kind has are set. A weight may have several scales, one per channel."""

    kind: ConstraintKind
    pattern: str
    scales: tuple[float, ...] = (1.0,)
    zeros: tuple[int, ...] = (0,)
    dtype: DType | None = None
    low: float = 0.0
    high: float = 0.0
    bits: int = 2


def constraints_given(value: Any, folder: Path) -> Mapping[str, Any]:
    """Return the statements as plain data: given themselves, or in a YAML (or JSON) file, relative to `folder`."""
    if not value:
        return {}
    if not isinstance(value, str):
        found = value
    else:
        path = folder / Path(value).expanduser()
        try:
            found = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"{path} is not a readable YAML file: {error}", where=WHERE) from error
    if not isinstance(found, Mapping):
        raise ConfigError(
            f"is {found!r}; it must map names of tensors to statements, or name a YAML file that does", where=WHERE
        )
    return {str(k): v for k, v in found.items()}


def read_constraints(given: Mapping[str, Any]) -> tuple[Constraint, ...]:
    """Return the statements in plain data (tensor name or glob -> `none` or a mapping with `kind`).

    Raises ConfigError, naming the tensor and what would be legal.
    """
    return tuple(_read(str(pattern), value) for pattern, value in given.items())


def constraints_of(constraints: Iterable[Constraint], tensors: Iterable[str]) -> dict[str, Constraint]:
    """Return a mapping: tensor -> its constraint; a later pattern takes precedence.

    A pattern that matches nothing is an error.
    """
    names = list(tensors)
    found: dict[str, Constraint] = {}
    for constraint in constraints:
        pattern = constraint.pattern
        matches = [pattern] if pattern in names else matching(WHERE, pattern, names, "tensor of the cleaned model")
        found |= dict.fromkeys(matches, constraint)
    return found


def _read(pattern: str, value: Any) -> Constraint:
    plain = {"kind": value} if isinstance(value, str) else value
    if not isinstance(plain, Mapping) or "kind" not in plain:
        raise _error(pattern, f"is {value!r}; legal: none, or a mapping with kind: {', '.join(ConstraintKind)}")
    try:
        kind = ConstraintKind(str(plain["kind"]))
    except ValueError:
        near = nearest(str(plain["kind"]), [k.value for k in ConstraintKind])
        text = f"kind is {plain['kind']!r}{near}; legal are {', '.join(ConstraintKind)}"
        raise _error(pattern, text) from None
    fields = FIELDS[kind]
    if set(plain) - {"kind"} != set(fields):
        raise _error(pattern, f"of kind {kind} takes {', '.join(fields) or 'nothing more'}; found {dict(plain)!r}")
    match kind:
        case ConstraintKind.UNIFORM:
            return Constraint(
                kind,
                pattern,
                scales=_numbers(pattern, plain, "scale", positive=True),
                zeros=tuple(int(z) for z in _numbers(pattern, plain, "zero_point")),
                dtype=_dtype(pattern, plain["dtype"]),
            )
        case ConstraintKind.CALIBRATED:
            low, high = _number(pattern, plain, "min"), _number(pattern, plain, "max")
            if low > 0 or high < 0 or low == high:
                raise _error(pattern, f"has the range [{low}, {high}]; it must hold 0 and more than that")
            return Constraint(kind, pattern, low=low, high=high)
        case ConstraintKind.ANY:
            bits = plain["bits"]
            if not is_integer(bits, 2, 16):
                raise _error(pattern, f"bits is {bits!r}; legal are 2 to 16")
            return Constraint(kind, pattern, bits=bits)
        case _:
            return Constraint(kind, pattern)


def _numbers(pattern: str, plain: Mapping[str, Any], field: str, positive: bool = False) -> tuple[float, ...]:
    """A number, or a list of one for each channel."""
    value = plain[field]
    given = list(value) if isinstance(value, list | tuple) else [value]
    if not given:
        raise _error(pattern, f"{field} is {value!r}; it must be a number, or a list of one for each channel")
    return tuple(_number(pattern, {field: v}, field, positive) for v in given)


def _number(pattern: str, plain: Mapping[str, Any], field: str, positive: bool = False) -> float:
    value = plain[field]
    if not is_number(value):
        raise _error(pattern, f"{field} is {value!r}; it must be a number")
    if positive and value <= 0:
        raise _error(pattern, f"{field} is {value!r}; it must be above 0")
    return float(value)


def _dtype(pattern: str, value: Any) -> DType:
    legal = [d.value for d in DType if not d.is_float and 4 <= d.bits <= 16]
    if str(value) not in legal:
        raise _error(pattern, f"dtype is {value!r}{nearest(str(value), legal)}; legal are {', '.join(legal)}")
    return DType(str(value))


def _error(pattern: str, problem: str) -> ConfigError:
    return ConfigError(f"the constraint of {pattern!r} {problem}", where=WHERE)
