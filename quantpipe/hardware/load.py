"""From a hardware file (plain data) to a `HardwareSpec`, with every mistake named: field, value found, legal values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from quantpipe.errors import HardwareError, nearest
from quantpipe.hardware.legality import CONDITIONS
from quantpipe.oprules import OP_RULES
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
    granularity = tuple(reader.choice(Granularity, g, "weights.granularity") for g in weights.get("granularity", ()))
    if not granularity:
        raise reader.error("weights.granularity", "is empty; list per_channel, per_tensor or both, finest first")
    spec = HardwareSpec(
        name=name,
        description=str(data["description"]),
        source=str(data["source"]),
        preferred_schema=str(data["preferred_schema"]),
        realize=str(data["realize"]),
        ops={str(op): reader.signatures(str(op), rows) for op, rows in data["ops"].items()},
        weights=WeightLimits(
            bool(weights.get("symmetric", True)),
            granularity,
            reader.bits(weights, "weights"),
            bool(weights.get("narrow", True)),
        ),
        activations=ActivationLimits(
            bool(activations.get("symmetric", True)),
            reader.bits(activations, "activations"),
            bool(activations.get("narrow", True)),
        ),
        scales=reader.choice(Scales, data["scales"], "scales"),
        unify=reader.choice(Unify, data["unify"], "unify"),
        bias=reader.choice(DType, data["bias"], "bias"),
        requantize=RequantizeSpec(
            reader.choice(RequantizeKind, requantize.get("kind"), "requantize.kind"),
            int(requantize.get("max_shift", 31)),
        ),
        accumulator=Accumulator(
            reader.choice(DType, accumulator.get("dtype"), "accumulator.dtype"),
            reader.choice(Overflow, accumulator.get("overflow"), "accumulator.overflow"),
        ),
        fuse=tuple(tuple(str(op) for op in chain) for chain in data["fuse"]),
        cost=Cost(
            {str(k): float(v) for k, v in cost.get("macs_per_cycle", {}).items()},
            float(cost.get("bytes_per_cycle", 1.0)),
            int(cost.get("channel_block", 1)),
        ),
    )
    _contradictions(spec, reader)
    return spec


def _contradictions(spec: HardwareSpec, reader: _Reader) -> None:
    shift = spec.requantize.kind is RequantizeKind.SHIFT
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
    for chain in spec.fuse:
        if not shift and "Add" in chain[1:]:
            raise reader.error("fuse", f"{list(chain)} hands an accumulator to Add, which needs requantize.kind shift")
    for field, values in (("macs_per_cycle", spec.cost.macs_per_cycle.values()),):
        if not values or any(v <= 0 for v in values):
            raise reader.error(f"cost.{field}", "needs positive numbers")
    if "float32" not in spec.cost.macs_per_cycle:
        raise reader.error("cost.macs_per_cycle", "needs a float32 entry for what stays in float")
    for chain in spec.fuse:
        for op in chain:
            if op not in OP_RULES:
                raise reader.error("fuse", f"names the unknown op {op!r}{nearest(op, OP_RULES)}")


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
        part = data[field]
        if not isinstance(part, Mapping):
            raise self.error(field, f"must be a mapping of {', '.join(legal)}, not {part!r}")
        self.keys(part, legal, field)
        return part

    def choice(self, kind: type[E], value: object, field: str) -> E:
        try:
            return kind(str(value))
        except ValueError:
            legal = [k.value for k in kind]
            raise self.error(field, f"is {value!r}{nearest(str(value), legal)}; legal are {', '.join(legal)}") from None

    def bits(self, part: Data, field: str) -> int:
        value = part.get("bits", 8)
        if not isinstance(value, int) or not 2 <= value <= 16:
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
        when = row.get("when") or {}
        self.keys(when, tuple(CONDITIONS), f"ops.{op}.when")
        inputs = tuple(self.choice(DType, d, f"ops.{op}.in") for d in _listed(row["in"]))
        outputs = tuple(self.choice(DType, d, f"ops.{op}.out") for d in _listed(row["out"]))
        if not inputs or not outputs:
            raise self.error(f"ops.{op}", "needs at least one dtype in `in` and in `out`")
        return OpSignature(inputs, outputs, tuple((str(k), str(v)) for k, v in when.items()))


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
