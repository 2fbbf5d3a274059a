"""From a hardware file (plain data) to a `HardwareSpec`, with every mistake named: field, value found, legal values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantpipe.hardware.contradictions import refuse_contradictions
from quantpipe.hardware.reader import Data, Reader, listed
from quantpipe.types import (
    Accumulator,
    ActivationLimits,
    AddInputs,
    BiasScale,
    Cost,
    DType,
    FixedRounding,
    Granularity,
    HardwareSpec,
    Isa,
    Narrowing,
    Overflow,
    RequantizeKind,
    RequantizeSpec,
    Rounding,
    Scales,
    Unify,
    WeightLimits,
)

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
OPTIONAL = ("add_inputs", "isa", "narrowing")
ACCUMULATORS = (DType.INT16, DType.INT32, DType.INT64)
BIASES = (DType.INT8, DType.INT16, DType.INT32)
ROUNDINGS: Mapping[RequantizeKind, tuple[Rounding | FixedRounding, ...]] = {
    RequantizeKind.FLOAT_MULTIPLIER: (Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.HALF_AWAY, Rounding.FLOOR),
    RequantizeKind.FIXED_POINT: (FixedRounding.DOUBLE, FixedRounding.SINGLE),
    RequantizeKind.SHIFT: (Rounding.HALF_UP, Rounding.HALF_EVEN, Rounding.HALF_AWAY, Rounding.FLOOR),
}
"""Legal roundings by kind, the default first."""


def load_hardware(data: Data) -> HardwareSpec:
    """Validate a hardware file. Raises HardwareError naming the field and what would be legal."""
    if not isinstance(data, Mapping):
        raise Reader("?").error("the file", f"must be a mapping of {', '.join(FIELDS)}, not {data!r}")
    name = str(data.get("name", "?"))
    reader = Reader(name)
    reader.keys(data, (*FIELDS, *OPTIONAL), "")
    for key in FIELDS:
        if key not in data:
            raise reader.error(key, "is missing")
    if not str(data["source"]).strip():
        raise reader.error("source", "is empty; say where the facts come from")
    cost = reader.part(data, "cost", ("macs_per_cycle", "bytes_per_cycle", "channel_block"))
    bias, bias_scale = _bias(reader, data["bias"])
    spec = HardwareSpec(
        name=name,
        description=str(data["description"]),
        source=str(data["source"]),
        preferred_schema=str(data["preferred_schema"]),
        realize=str(data["realize"]),
        ops={str(op): reader.signatures(str(op), rows) for op, rows in reader.mapping(data["ops"], "ops").items()},
        weights=_weights(reader, data),
        activations=_activations(reader, data),
        scales=reader.choice(Scales, data["scales"], "scales"),
        unify=reader.choice(Unify, data["unify"], "unify"),
        bias=bias,
        bias_scale=bias_scale,
        requantize=_requantize(reader, data),
        accumulator=_accumulator(reader, data),
        fuse=reader.chains(data["fuse"]),
        cost=Cost(
            reader.rates(cost.get("macs_per_cycle", {})),
            reader.number(cost.get("bytes_per_cycle", 1.0), "cost.bytes_per_cycle"),
            int(reader.number(cost.get("channel_block", 1), "cost.channel_block", least=1)),
        ),
        add_inputs=_optional(reader, AddInputs, data, "add_inputs"),
        isa=_optional(reader, Isa, data, "isa") or Isa.VNNI,
        narrowing=_optional(reader, Narrowing, data, "narrowing") or Narrowing.SATURATE,
    )
    refuse_contradictions(spec, reader)
    return spec


def _optional(reader: Reader, kind: Any, data: Data, field: str) -> Any:
    """A field that may be absent or null."""
    return None if data.get(field) is None else reader.choice(kind, data[field], field)


def _weights(reader: Reader, data: Data) -> WeightLimits:
    part = reader.part(data, "weights", ("symmetric", "granularity", "bits", "narrow", "reduce_range"))
    granularity = tuple(
        reader.choice(Granularity, g, "weights.granularity") for g in listed(part.get("granularity") or ())
    )
    if not granularity:
        raise reader.error("weights.granularity", "is empty; list per_channel, per_tensor or both, finest first")
    reduced = reader.flag(part, "weights", "reduce_range", default=False)
    bits = reader.bits(part, "weights")
    if reduced and bits == 2:
        raise reader.error("weights.reduce_range", "leaves one bit of weights.bits=2; legal is false")
    return WeightLimits(
        reader.flag(part, "weights", "symmetric"),
        granularity,
        bits - reduced,
        reader.flag(part, "weights", "narrow"),
        reduced,
    )


def _activations(reader: Reader, data: Data) -> ActivationLimits:
    part = reader.part(data, "activations", ("symmetric", "bits", "narrow"))
    return ActivationLimits(
        reader.flag(part, "activations", "symmetric"),
        reader.bits(part, "activations"),
        reader.flag(part, "activations", "narrow"),
    )


def _requantize(reader: Reader, data: Data) -> RequantizeSpec:
    part = reader.part(data, "requantize", ("kind", "rounding", "max_shift"))
    kind = reader.choice(RequantizeKind, part.get("kind"), "requantize.kind")
    legal = ROUNDINGS[kind]
    rounding = part.get("rounding")
    return RequantizeSpec(
        kind,
        int(reader.number(part.get("max_shift", 31), "requantize.max_shift", least=1)),
        legal[0] if rounding is None else reader.one_of(legal, rounding, "requantize.rounding"),
    )


def _accumulator(reader: Reader, data: Data) -> Accumulator:
    part = reader.part(data, "accumulator", ("dtype", "overflow"))
    return Accumulator(
        reader.one_of(ACCUMULATORS, part.get("dtype"), "accumulator.dtype"),
        reader.choice(Overflow, part.get("overflow"), "accumulator.overflow"),
    )


def _bias(reader: Reader, value: object) -> tuple[DType, BiasScale]:
    """A type, or {dtype, scale}."""
    if not isinstance(value, Mapping):
        return reader.one_of(BIASES, value, "bias"), BiasScale.PRODUCT
    reader.keys(value, ("dtype", "scale"), "bias")
    return (
        reader.one_of(BIASES, value.get("dtype"), "bias.dtype"),
        reader.choice(BiasScale, value.get("scale", BiasScale.PRODUCT), "bias.scale"),
    )
