"""From a hardware file (plain data) to a `HardwareSpec`, with every mistake named: field, value found, legal values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from quantpipe.errors import HardwareError, nearest
from quantpipe.hardware.legality import CONDITIONS
from quantpipe.oprules import OP_RULES, Family
from quantpipe.types import (
    Accumulator,
    ActivationLimits,
    Cost,
    DType,
    Granularity,
    HardwareSpec,
    OpSignature,
    Overflow,
    RequantizeKind,
    RequantizeSpec,
    Scales,
    Unify,
    WeightLimits,
)

E = TypeVar("E", bound=StrEnum)
Data = Mapping[str, Any]

FIELDS = (
    "name",
    "description",
    "source",
    "preferred_schema",
    "realize",
    "ops",
    "weights",
    "activations",
    "scales",
    "unify",
    "bias",
    "requantize",
    "accumulator",
    "fuse",
    "cost",
)
SIGNATURE = ("in", "out", "when")


def load_hardware(data: Data) -> HardwareSpec:
    """Validate a hardware file. Raises HardwareError naming the field and what would be legal."""
    if not isinstance(data, Mapping):
        raise _Reader("?").error("the file", f"must be a mapping of {', '.join(FIELDS)}, not {data!r}")
    name = str(data.get("name", "?"))
    reader = _Reader(name)
    reader.keys(data, FIELDS, "")
    for key in FIELDS:
        if key not in data:
            raise reader.error(key, "is missing")
    if not str(data["source"]).strip():
        raise reader.error("source", "is empty; say where the facts come from")
    weights = reader.part(data, "weights", ("symmetric", "granularity", "bits", "narrow"))
    activations = reader.part(data, "activations", ("symmetric", "bits", "narrow"))
    requantize = reader.part(data, "requantize", ("kind", "max_shift"))
    accumulator = reader.part(data, "accumulator", ("dtype", "overflow"))
    cost = reader.part(data, "cost", ("macs_per_cycle", "bytes_per_cycle", "channel_block"))
    granularity = tuple(
        reader.choice(Granularity, g, "weights.granularity") for g in _listed(weights.get("granularity") or ())
    )
    if not granularity:
        raise reader.error("weights.granularity", "is empty; list per_channel, per_tensor or both, finest first")
    spec = HardwareSpec(
        name=name,
        description=str(data["description"]),
        source=str(data["source"]),
        preferred_schema=str(data["preferred_schema"]),
        realize=str(data["realize"]),
        ops={str(op): reader.signatures(str(op), rows) for op, rows in reader.mapping(data["ops"], "ops").items()},
        weights=WeightLimits(
            reader.flag(weights, "weights", "symmetric"),
            granularity,
            reader.bits(weights, "weights"),
            reader.flag(weights, "weights", "narrow"),
        ),
        activations=ActivationLimits(
            reader.flag(activations, "activations", "symmetric"),
            reader.bits(activations, "activations"),
            reader.flag(activations, "activations", "narrow"),
        ),
        scales=reader.choice(Scales, data["scales"], "scales"),
        unify=reader.choice(Unify, data["unify"], "unify"),
        bias=reader.integer_type(data["bias"], "bias"),
        requantize=RequantizeSpec(
            reader.choice(RequantizeKind, requantize.get("kind"), "requantize.kind"),
            int(reader.number(requantize.get("max_shift", 31), "requantize.max_shift", least=1)),
        ),
        accumulator=Accumulator(
            reader.integer_type(accumulator.get("dtype"), "accumulator.dtype"),
            reader.choice(Overflow, accumulator.get("overflow"), "accumulator.overflow"),
        ),
        fuse=reader.chains(data["fuse"]),
        cost=Cost(
            reader.rates(cost.get("macs_per_cycle", {})),
            reader.number(cost.get("bytes_per_cycle", 1.0), "cost.bytes_per_cycle"),
            int(reader.number(cost.get("channel_block", 1), "cost.channel_block", least=1)),
        ),
    )
    _contradictions(spec, reader)
    return spec


def _contradictions(spec: HardwareSpec, reader: _Reader) -> None:
    shift = spec.requantize.kind is RequantizeKind.SHIFT
    if spec.accumulator.dtype is not DType.INT32:
        raise reader.error("accumulator.dtype", f"is {spec.accumulator.dtype}; narrower ones than int32 would overflow")
    if shift and spec.scales is not Scales.POWER_OF_TWO:
        raise reader.error("scales", "must be power_of_two where requantize.kind is shift: a shift can do nothing else")
    if shift and Granularity.PER_CHANNEL in spec.weights.granularity:
        raise reader.error("weights.granularity", "must be per_tensor where requantize.kind is shift")
    if shift and spec.unify is Unify.FREE:
        raise reader.error("unify", "must be max_scale or min_scale where requantize.kind is shift")
    if not shift and spec.unify is not Unify.FREE:
        raise reader.error("unify", "must be free where requantize.kind is float_multiplier")
    if shift and not spec.activations.symmetric:
        raise reader.error("activations.symmetric", "must be true where requantize.kind is shift")
    if "float32" not in spec.cost.macs_per_cycle:
        raise reader.error("cost.macs_per_cycle", "needs a float32 entry for what stays in float")
    for chain in spec.fuse:
        for position, op in enumerate(chain):
            if op not in OP_RULES:
                raise reader.error("fuse", f"names the unknown op {op!r}{nearest(op, OP_RULES)}")
            if not shift and position and OP_RULES[op].family is Family.SUM:
                raise reader.error(
                    "fuse", f"{list(chain)} hands an accumulator to {op}, which needs requantize.kind shift"
                )


class _Reader:
    """Reads fields of one file and words its errors."""

    def __init__(self, name: str) -> None:
        self._name = name

    def error(self, field: str, problem: str) -> HardwareError:
        return HardwareError(f"{field} {problem}", stage="hardware", where=self._name)

    def keys(self, data: Data, legal: Sequence[str], field: str) -> None:
        for key in data:
            if key not in legal:
                label = f"{field}.{key}" if field else str(key)
                raise self.error(label, f"is not a field{nearest(str(key), legal)}; legal are {', '.join(legal)}")

    def part(self, data: Data, field: str, legal: Sequence[str]) -> Data:
        part = self.mapping(data[field], field, ", ".join(legal))
        self.keys(part, legal, field)
        return part

    def mapping(self, value: object, field: str, of: str = "ops") -> Data:
        if not isinstance(value, Mapping):
            raise self.error(field, f"must be a mapping of {of}, not {value!r}")
        return value

    def flag(self, part: Data, field: str, key: str) -> bool:
        value = part.get(key, True)
        if not isinstance(value, bool):
            raise self.error(f"{field}.{key}", f"is {value!r}; legal are true and false")
        return value

    def number(self, value: object, field: str, least: float = 0.0) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or value < least or value <= 0:
            raise self.error(field, f"is {value!r}; it needs positive numbers{f' from {least:g}' if least else ''}")
        return float(value)

    def rates(self, value: object) -> dict[str, float]:
        """macs_per_cycle: operand width -> rate."""
        field = "cost.macs_per_cycle"
        rates = self.mapping(value, field, "dtypes and rates")
        return {self.choice(DType, k, field).value: self.number(v, f"{field}.{k}") for k, v in rates.items()}

    def integer_type(self, value: object, field: str) -> DType:
        dtype = self.choice(DType, value, field)
        if dtype.is_float:
            raise self.error(field, f"is {dtype.value}; legal are integer types")
        return dtype

    def chains(self, value: object) -> tuple[tuple[str, ...], ...]:
        lists = isinstance(value, list | tuple) and all(isinstance(chain, list | tuple) for chain in value)
        if not isinstance(value, list | tuple) or not lists:
            raise self.error("fuse", f"must be a list of lists of ops, such as [[Conv, Relu]], not {value!r}")
        return tuple(tuple(str(op) for op in chain) for chain in value)

    def choice(self, kind: type[E], value: object, field: str) -> E:
        try:
            return kind(str(value))
        except ValueError:
            legal = [k.value for k in kind]
            raise self.error(field, f"is {value!r}{nearest(str(value), legal)}; legal are {', '.join(legal)}") from None

    def bits(self, part: Data, field: str) -> int:
        value = part.get("bits", 8)
        if isinstance(value, bool) or not isinstance(value, int) or not 2 <= value <= 16:
            raise self.error(f"{field}.bits", f"is {value!r}; legal are 2 to 16")
        return value

    def signatures(self, op: str, rows: object) -> tuple[OpSignature, ...]:
        if op not in OP_RULES:
            raise self.error(f"ops.{op}", f"is no op with a rule{nearest(op, OP_RULES)}")
        if not isinstance(rows, Sequence) or isinstance(rows, str) or not rows:
            raise self.error(f"ops.{op}", "must be a list of {in: [...], out: [...], when: {...}}")
        return tuple(self._signature(op, row) for row in rows)

    def _signature(self, op: str, row: object) -> OpSignature:
        if not isinstance(row, Mapping) or "in" not in row or "out" not in row:
            raise self.error(f"ops.{op}", f"needs `in` and `out`, found {row!r}")
        self.keys(row, SIGNATURE, f"ops.{op}")
        when = self.mapping(row.get("when") or {}, f"ops.{op}.when", ", ".join(CONDITIONS))
        self.keys(when, tuple(CONDITIONS), f"ops.{op}.when")
        self._when_values(op, when)
        inputs = tuple(self.choice(DType, d, f"ops.{op}.in") for d in _listed(row["in"]))
        outputs = tuple(self.choice(DType, d, f"ops.{op}.out") for d in _listed(row["out"]))
        if not inputs or not outputs:
            raise self.error(f"ops.{op}", "needs at least one dtype in `in` and in `out`")
        return OpSignature(inputs, outputs, tuple((str(k), str(v)) for k, v in when.items()))

    def _when_values(self, op: str, when: Data) -> None:
        """Each condition must be able to read what the file says."""
        for key, value in when.items():
            try:
                CONDITIONS[key](1, str(value))
            except ValueError:
                raise self.error(f"ops.{op}.when.{key}", f"is {value!r}, which means nothing to it") from None


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
