"""Reading single fields of a hardware file: each mistake is named with the field, the value and the legal values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from typing import Any, TypeVar

from quantpipe.errors import HardwareError, nearest
from quantpipe.hardware.legality import CONDITIONS, WORDS
from quantpipe.oprules import FLOAT_OPS, OP_RULES, Family
from quantpipe.option_checks import is_integer, is_number
from quantpipe.types import (
    MULTIPLIER_BITS,
    Accumulator,
    DType,
    FixedRounding,
    FloatType,
    FunctionKind,
    OpSignature,
    Overflow,
    RequantizeKind,
    RequantizeSpec,
    Rounding,
)

E = TypeVar("E", bound=StrEnum)
Data = Mapping[str, Any]

SIGNATURE = ("in", "out", "when", "requantize", "function", "accumulator", "fixed_scale")
NARROWING = ("kind", "rounding", "max_shift", "zero", "multiplier_bits", "ratio")
RATIOS = ("float64", "float32")
LEAST_MULTIPLIER = 2
"""Bits of the narrowest fixed-point multiplier."""
STORABLE = tuple(d for d in DType if d is not DType.INT64)
"""What tensors between ops may be: int64 is for accumulators alone."""
ACCUMULATORS = (DType.INT16, DType.INT32, DType.INT64)
LEAST_SUM_BITS, MOST_SUM_BITS = 9, 48
"""Widths of sums that are computed exactly whatever the device does with what is beyond them."""
ROUNDINGS: Mapping[RequantizeKind, tuple[Rounding | FixedRounding, ...]] = {
    RequantizeKind.FLOAT_MULTIPLIER: (Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.HALF_AWAY, Rounding.FLOOR),
    RequantizeKind.FIXED_POINT: (FixedRounding.DOUBLE, FixedRounding.SINGLE, FixedRounding.SINGLE_AWAY),
    RequantizeKind.SHIFT: (Rounding.HALF_UP, Rounding.HALF_EVEN, Rounding.HALF_AWAY, Rounding.FLOOR),
}
"""Legal roundings by kind, the default first."""


class Zero(StrEnum):
    """State whether the zero point is added before or after the rounding."""

    FIRST = "first"
    LAST = "last"


class Reader:
    """Reads fields of one file and words its errors."""

    def __init__(self, name: str) -> None:
        self._name = name

    def error(self, field: str, problem: str) -> HardwareError:
        """Return the error of a field: its name, then `problem`."""
        return HardwareError(f"{field} {problem}", stage="hardware", where=self._name, field=field)

    def keys(self, data: Data, legal: Sequence[str], field: str) -> None:
        """Reject keys that are not legal in the section `field` (empty: the file itself).

        Raises HardwareError for the first such key, with near and legal names.
        """
        for key in data:
            if key not in legal:
                label = f"{field}.{key}" if field else str(key)
                raise self.error(label, f"is not a field{nearest(str(key), legal)}; legal are {', '.join(legal)}")

    def part(self, data: Data, field: str, legal: Sequence[str]) -> Data:
        """Return the section `field`, whose keys must be legal."""
        part = self.mapping(data[field], field, ", ".join(legal))
        self.keys(part, legal, field)
        return part

    def mapping(self, value: object, field: str, of: str = "ops") -> Data:
        """Return the value, which must be a mapping of `of`."""
        if not isinstance(value, Mapping):
            raise self.error(field, f"must be a mapping of {of}, not {value!r}")
        return value

    def flag(self, part: Data, field: str, key: str, default: bool = True) -> bool:
        """Return a bool of a section (`field` empty: the file itself), or the default where the key is absent.

        Raises HardwareError where the value is neither true nor false.
        """
        value = part.get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{field}.{key}".lstrip("."), f"is {value!r}; legal are true and false")
        return value

    def number(self, value: object, field: str, least: float = 0.0) -> float:
        """Return a positive number of at least `least` as a float."""
        if isinstance(value, bool) or not isinstance(value, int | float) or value < least or value <= 0:
            raise self.error(field, f"is {value!r}; it needs positive numbers{f' from {least:g}' if least else ''}")
        return float(value)

    def rates(self, value: object) -> dict[str, float]:
        """Return `macs_per_cycle`: operand width -> rate."""
        field = "cost.macs_per_cycle"
        rates = self.mapping(value, field, "dtypes and rates")
        of = {self.one_of((*DType, FloatType.FLOAT16), k, field).value: v for k, v in rates.items()}
        return {name: self.number(rate, f"{field}.{name}") for name, rate in of.items()}

    def storable(self, value: object, field: str) -> DType:
        """Return the type named by a value, which must be one that tensors are stored in."""
        return self.one_of(STORABLE, value, field)

    def one_of(self, legal: Sequence[E], value: object, field: str) -> E:
        """Return the one of some members of an enumeration that a value names."""
        found = next((k for k in legal if k.value == str(value)), None)
        if found is None:
            raise self.error(
                field, f"is {value!r}{nearest(str(value), [k.value for k in legal])}; legal are {', '.join(legal)}"
            )
        return found

    def chains(self, value: object) -> tuple[tuple[str, ...], ...]:
        """Return the chains of ops that are run as one kernel; the value must be a list of lists."""
        lists = isinstance(value, list | tuple) and all(isinstance(chain, list | tuple) for chain in value)
        if not isinstance(value, list | tuple) or not lists:
            raise self.error("fuse", f"must be a list of lists of ops, such as [[Conv, Relu]], not {value!r}")
        return tuple(tuple(str(op) for op in chain) for chain in value)

    def choice(self, kind: type[E], value: object, field: str) -> E:
        """Return the member of an enumeration that a value names.

        Raises HardwareError for an unknown name, with near and legal names.
        """
        return self.one_of(tuple(kind), value, field)

    def bits(self, part: Data, field: str) -> int:
        """Return the bits of a section, 2 to 16; 8 where it does not say."""
        value = part.get("bits", 8)
        if not is_integer(value, 2, 16):
            raise self.error(f"{field}.bits", f"is {value!r}; legal are 2 to 16")
        return value

    def raised(self, part: Data, field: str) -> int:
        """Return the bits that tensors of a section may be raised to; 0 where it does not say."""
        value, least = part.get("raise_to"), self.bits(part, field)
        if value is not None and not is_integer(value, least, 16):
            raise self.error(f"{field}.raise_to", f"is {value!r}; legal are {field}.bits, which is {least}, to 16")
        return value or 0

    def section(self, data: Data, field: str, legal: Sequence[str], short: str | None = None) -> Data:
        """Return a section that may also be written as the value of its field `short` alone.

        For example, `accumulator: int32` is short for `accumulator: {dtype: int32}`. With `short=None` the section must
        be a mapping. Raises HardwareError for any other value, and for an unknown field.
        """
        value = data[field]
        if short is not None and isinstance(value, str | int) and not isinstance(value, bool):
            return {short: value}
        return self.part(data, field, legal)

    def whole(self, value: object, field: str, least: int) -> int:
        """Return an integer of at least `least`."""
        if not is_integer(value, least):
            raise self.error(
                field,
                f"is {value!r}; it needs positive numbers from 1"
                if least == 1
                else f"is {value!r}; legal are integers from {least}",
            )
        return value

    def optional_number(self, part: Data, field: str, key: str, least: float, *, default: float | None) -> float | None:
        """Return a number of at least `least`, or the default where the field is absent or null.

        Raises HardwareError where the value is no number or too small.
        """
        value = part.get(key)
        if value is None:
            return default
        if not is_number(value) or value < least:
            raise self.error(f"{field}.{key}", f"is {value!r}; legal are numbers from {least:g}")
        return float(value)

    def op_names(self, value: object, field: str) -> tuple[str, ...]:
        """Return names of ops; each must be a known one."""
        names = tuple(str(op) for op in listed(value or ()))
        for op in names:
            if op not in OP_RULES and op not in FLOAT_OPS:
                raise self.error(field, f"names the unknown op {op!r}{nearest(op, [*OP_RULES, *FLOAT_OPS])}")
        return names

    def requantize(self, data: Data, before: str, *, adds: bool = False) -> RequantizeSpec:
        """Return the section `requantize` of the file or of a signature: how accumulators are narrowed.

        `before` is the prefix of its name in errors, empty for the file itself; `adds` marks the section of an
        addition. Raises HardwareError for an unknown field, and for a value that is not legal.
        """
        field = f"{before}requantize"
        part = self.section({field: data["requantize"]}, field, NARROWING, "kind")
        kind = self.choice(RequantizeKind, part.get("kind"), f"{field}.kind")
        legal, rounding = ROUNDINGS[kind], part.get("rounding")
        if adds and kind is RequantizeKind.FIXED_POINT:
            legal = (*legal, FixedRounding.COMMON_SHIFT)
        zero = part.get("zero")
        if zero is not None and (kind is not RequantizeKind.FLOAT_MULTIPLIER or adds):
            raise self.error(f"{field}.zero", f"is of float_multiplier alone, and not of additions; the kind is {kind}")
        how = legal[0] if rounding is None else self.one_of(legal, rounding, f"{field}.rounding")
        return RequantizeSpec(
            kind,
            int(self.number(part.get("max_shift", 31), f"{field}.max_shift", least=1)),
            how,
            None if zero is None else self.choice(Zero, zero, f"{field}.zero") is Zero.FIRST,
            self._multiplier_bits(part.get("multiplier_bits"), how, f"{field}.multiplier_bits"),
            self._single_ratio(part.get("ratio"), kind, f"{field}.ratio"),
        )

    def _single_ratio(self, given: object, kind: RequantizeKind, field: str) -> bool:
        if given is None:
            return False
        if kind is not RequantizeKind.FIXED_POINT:
            raise self.error(field, f"is of fixed_point alone; the kind is {kind}")
        if given not in RATIOS:
            raise self.error(field, f"is {given!r}; legal are {', '.join(RATIOS)}")
        return given == RATIOS[1]

    def _multiplier_bits(self, given: object, how: Rounding | FixedRounding, field: str) -> int:
        if given is None:
            return MULTIPLIER_BITS
        if how not in ROUNDINGS[RequantizeKind.FIXED_POINT]:
            raise self.error(field, f"is of fixed_point alone, and not of common_shift; the rounding is {how}")
        bits = int(self.number(given, field, least=LEAST_MULTIPLIER))
        if bits > MULTIPLIER_BITS:
            raise self.error(field, f"is {bits}; legal are {LEAST_MULTIPLIER} to {MULTIPLIER_BITS}")
        return bits

    def accumulator(self, value: object, field: str) -> Accumulator:
        """Return the accumulator: a type, bits of the smallest type that holds them, or bits of a type.

        Raises HardwareError for an unknown field, and for a value that is not legal.
        """
        part = self.section({field: value}, field, ("dtype", "overflow", "bits"), "dtype")
        bits = part.get("bits") or 0
        known = is_integer(bits, LEAST_SUM_BITS, MOST_SUM_BITS)
        if bits and not known:
            raise self.error(f"{field}.bits", f"is {bits!r}; legal are {LEAST_SUM_BITS} to {MOST_SUM_BITS}, or a dtype")
        least = next((dtype for dtype in ACCUMULATORS if dtype.bits >= bits), None) if bits else None
        dtype = self.one_of(ACCUMULATORS, part.get("dtype") or least, f"{field}.dtype")
        if bits > dtype.bits:
            raise self.error(f"{field}.bits", f"is {bits}, more than {field}.dtype, which is {dtype}, holds")
        overflow = self.choice(Overflow, part.get("overflow", Overflow.WRAP), f"{field}.overflow")
        return Accumulator(dtype, overflow, 0 if bits == dtype.bits else bits)

    def fixed_scale(self, value: object, field: str) -> tuple[float, int]:
        """Return the fixed scale and zero point of a result: a number, or {scale, zero_point}.

        A scale may be a quotient in text, 1/256. Raises HardwareError for an unknown field, and for a value that is not
        legal.
        """
        bare = {"scale": value} if isinstance(value, float) else value
        part = self.section({field: bare}, field, ("scale", "zero_point"), "scale")
        try:
            scale = float(Fraction(str(part.get("scale")))) if not isinstance(part.get("scale"), bool) else 0.0
        except (ValueError, ZeroDivisionError):
            scale = 0.0
        if not 2.0**-126 <= scale < float("inf"):
            raise self.error(
                f"{field}.scale", f"is {part.get('scale')!r}; legal are numbers above 0, such as 0.0078125 or 1/128"
            )
        zero = part.get("zero_point", 0)
        if not is_integer(zero):
            raise self.error(f"{field}.zero_point", f"is {zero!r}; legal are integers")
        return scale, zero

    def function(self, op: str, kind: object, field: str) -> FunctionKind:
        """Return the kind by which a kernel computes a function.

        Raises HardwareError for an op that is no function, and for a kind that the function does not have.
        """
        if op not in OP_RULES or not OP_RULES[op].kinds:
            legal = ", ".join(name for name, rule in OP_RULES.items() if rule.kinds)
            raise self.error(field, f"has no effect, since {op} is no function; legal of {legal}")
        return self.one_of(OP_RULES[op].kinds, kind, field)

    def signatures(self, op: str, rows: object) -> tuple[OpSignature, ...]:
        """Return the signatures of an op from the rows of its list.

        Raises HardwareError for ops without a rule, rows other than a list of mappings, and integer signatures of
        float-only ops.
        """
        if op not in OP_RULES and op not in FLOAT_OPS:
            plugged = "; an op of a plug-in package needs plugins=[PACKAGE] on the command line" if "." in op else ""
            raise self.error(f"ops.{op}", f"is no op with a rule{nearest(op, [*OP_RULES, *FLOAT_OPS])}{plugged}")
        if isinstance(rows, Mapping):
            rows = [rows]
        if not isinstance(rows, Sequence) or isinstance(rows, str) or not rows:
            raise self.error(f"ops.{op}", "must be a list of {in: [...], out: [...], when: {...}}")
        found = tuple(self._signature(op, row) for row in rows)
        if op not in OP_RULES and any(s.is_integer for s in found):
            raise self.error(
                f"ops.{op}", f"runs in float only ({FLOAT_OPS[op]}); legal is {{in: float32, out: float32}}"
            )
        return found

    def _signature(self, op: str, row: object) -> OpSignature:
        if not isinstance(row, Mapping) or "in" not in row or "out" not in row:
            raise self.error(f"ops.{op}", f"needs `in` and `out`, found {row!r}")
        self.keys(row, SIGNATURE, f"ops.{op}")
        when = self.mapping(row.get("when") or {}, f"ops.{op}.when", ", ".join(CONDITIONS))
        self.keys(when, tuple(CONDITIONS), f"ops.{op}.when")
        self._when_values(op, when)
        inputs = tuple(self.storable(d, f"ops.{op}.in") for d in listed(row["in"]))
        outputs = tuple(self.storable(d, f"ops.{op}.out") for d in listed(row["out"]))
        if not inputs or not outputs:
            raise self.error(f"ops.{op}", "needs at least one dtype in `in` and in `out`")
        adds = op in OP_RULES and OP_RULES[op].family is Family.SUM
        own = None if row.get("requantize") is None else self.requantize(row, f"ops.{op}.", adds=adds)
        place, sums, grid = f"ops.{op}", row.get("accumulator"), row.get("fixed_scale")
        return OpSignature(
            inputs,
            outputs,
            tuple((str(k), str(v)) for k, v in when.items()),
            own,
            None if row.get("function") is None else self.function(op, row["function"], f"{place}.function"),
            None if sums is None else self.accumulator(sums, f"{place}.accumulator"),
            None if grid is None else self.fixed_scale(grid, f"{place}.fixed_scale"),
        )

    def _when_values(self, op: str, when: Data) -> None:
        """Check that each condition can read its value in the file."""
        for key, value in when.items():
            field, legal = f"ops.{op}.when.{key}", WORDS.get(key, ())
            words = str(value).split("|") if key != "window" else [str(value)]
            for word in words if legal else ():
                if word not in legal:
                    raise self.error(field, f"is {value!r}{nearest(word, legal)}; legal are {', '.join(legal)}")
            try:
                CONDITIONS[key](1, str(value))
            except ValueError:
                raise self.error(field, f"is {value!r}, which means nothing to it") from None


def listed(value: object) -> Sequence[object]:
    """Return a sequence as it is, and any other value (a text, too) as a tuple of one."""
    return value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
