"""Read a hardware file (plain data) into a `HardwareSpec`; each mistake names field, value found and legal values."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import cache
from typing import Any

from quantpipe.errors import nearest
from quantpipe.graph.op_tables import DYNAMIC_CELLS
from quantpipe.hardware.contradictions import refuse_contradictions
from quantpipe.hardware.function_forms import read_functions, refuse_unformed
from quantpipe.hardware.idle import refuse_idle, refuse_idle_ops
from quantpipe.hardware.optional_sections import read_cache, read_chip, read_recurrent_limits, read_tables
from quantpipe.hardware.pattern_kernels import KernelReader, read_fuse, read_kernels
from quantpipe.hardware.predictor import AMOUNTS, ANY, QUANTITIES
from quantpipe.hardware.reader import Data, Reader, listed
from quantpipe.hardware.shorthand import spread
from quantpipe.hardware.vectors import VECTOR_STEPS
from quantpipe.oprules import OP_RULES, Family
from quantpipe.oprules.channels import COLUMNS, DenseColumns
from quantpipe.option_checks import is_integer
from quantpipe.types import (
    ActivationLimits,
    AddInputs,
    BiasScale,
    Blocks,
    Cost,
    DType,
    FloatOn,
    FloatType,
    Granularity,
    HardwareSpec,
    Isa,
    Padding,
    PadValue,
    Scales,
    Skip,
    Unify,
    WeightLimits,
)

_log = logging.getLogger(__name__)

FIELDS: Mapping[str, str] = {
    "name": "text",
    "description": "text",
    "source": "text that names the source of the facts",
    "preferred_schema": "the name of a schema, such as symmetric or asymmetric",
    "ops": "{Conv: [{in: [int8, int8], out: [int8]}], …}",
    "weights": "{symmetric, granularity, bits, narrow, reduce_range, block}",
    "activations": "{symmetric, signed, granularity, bits, narrow}",
    "scales": ", ".join(Scales),
    "unify": ", ".join(Unify),
    "bias": "int8, int16, int32, or {dtype, scale}",
    "requantize": "{kind, rounding, max_shift, multiplier_bits}",
    "accumulator": "{dtype, overflow, bits}",
    "fuse": "a list of chains of ops, such as [[Conv, Relu]]; [] for none",
    "cost": "{macs_per_cycle: {int8: 64, float32: 1}, …}",
}
"""Fields that every file has, and what is legal there."""
OPTIONAL = (
    "realize",
    "add_inputs",
    "isa",
    "narrowing",
    "pad",
    "align",
    "skip",
    "float_on",
    "float_types",
    "channel_bounds",
    "runs_here",
    "qdq_bias",
    "functions",
    "loads",
    "kernels",
    "first_last_bits",
    "types",
    "dynamic",
    "tables",
    "recurrent",
    "cache",
    "device",
)
LOADED = ("qdq", "matmul_nbits", "qoperator", "integer", "c", "sidecars", "tflite", "qonnx", "vta")
"""Forms that a tool chain may load, whether they are written yet or not."""
DYNAMIC = (*(op for op, columns in COLUMNS.items() if isinstance(columns, DenseColumns)), *DYNAMIC_CELLS)
"""Ops that may have scales of each run: DynamicQuantizeLinear and MatMulInteger compute them, or a recurrent op."""
BLOCK_SIZES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
BIASES = (DType.INT8, DType.INT16, DType.INT32)


class Narrowing(StrEnum):
    """Return how a device stores a wider integer; no number depends on it, since results are clamped before."""

    SATURATE = "saturate"
    WRAP = "wrap"


def load_hardware(data: Data) -> HardwareSpec:
    """Validate a hardware file. Raises HardwareError naming the field and what would be legal."""
    if not isinstance(data, Mapping):
        raise Reader("?").error("the file", f"must be a mapping of {', '.join(FIELDS)}, not {data!r}")
    name = str(data.get("name", "?"))
    reader = Reader(name)
    if "like" in data:
        raise reader.error("like", "is read from hardware files alone; legal is a file that has it, hardware=NAME")
    reader.keys(data, (*FIELDS, *OPTIONAL), "")
    for key in FIELDS:
        if key not in data:
            raise reader.error(key, f"is missing; legal is {FIELDS[key]}")
    if not str(data["source"]).strip():
        raise reader.error("source", "is empty; name the source of the facts")
    bias, bias_scale = _bias(reader, data["bias"])
    additions = _additions(reader, data.get("add_inputs"))
    _optional(reader, Narrowing, data, "narrowing")  # describes the device; results are clamped before they are stored
    data = spread(data)
    cost = _cost(reader, data)
    spec = HardwareSpec(
        name=name,
        description=str(data["description"]),
        source=str(data["source"]),
        preferred_schema=str(data["preferred_schema"]),
        realize=str(data.get("realize") or ""),
        ops={str(op): reader.signatures(str(op), rows) for op, rows in reader.mapping(data["ops"], "ops").items()},
        weights=_weights(reader, data),
        activations=_activations(reader, data),
        scales=reader.choice(Scales, data["scales"], "scales"),
        unify=reader.choice(Unify, data["unify"], "unify"),
        bias=bias,
        bias_scale=bias_scale,
        requantize=reader.requantize(data, ""),
        accumulator=reader.accumulator(data["accumulator"], "accumulator"),
        cost=cost,
        first_last_bits=_first_last(reader, data),
        kernels=(*read_kernels(reader, data, cost), *read_fuse(reader, data, cost)),
        add_inputs=additions[0] if additions else None,
        add_variants=additions if len(additions) > 1 else (),
        isa=_optional(reader, Isa, data, "isa") or Isa.VNNI,
        pad=_pad(reader, data),
        skip=_skip(reader, data),
        float_on=_optional(reader, FloatOn, data, "float_on") or FloatOn.CPU,
        float_types=_float_types(reader, data),
        channel_bounds=reader.flag(data, "", "channel_bounds", default=False),
        runs_here=reader.flag(data, "", "runs_here", default=False),
        qdq_bias=_qdq_bias(reader, data.get("qdq_bias")),
        functions=read_functions(reader, data.get("functions")),
        loads=_listed_words(reader, data.get("loads", ()), "loads", LOADED),
        dynamic=_listed_words(reader, data.get("dynamic", ()), "dynamic", DYNAMIC),
        tables=read_tables(reader, data),
        recurrent=read_recurrent_limits(reader, data),
        device=read_chip(reader, data),
    )
    refuse_unformed(spec, reader)
    refuse_contradictions(spec, reader)
    spec = replace(spec, cache=read_cache(reader, data, spec))
    refuse_idle(spec, reader)
    for kernel in (k for k in spec.kernels if k.is_typed):
        ops = replace(spec, ops={}, kernels=(kernel,)).declared
        alone, own = replace(spec, ops=ops, kernels=()), KernelReader(name, kernel.name)
        refuse_unformed(replace(alone, functions=spec.functions), own)
        refuse_contradictions(alone, own)
        refuse_idle_ops(alone, own)
    return spec if spec.realize else replace(spec, realize=_form_for(spec))


def _qdq_bias(reader: Reader, value: object) -> DType | None:
    if value not in (None, DType.FLOAT32.value):
        legal = "float32, and null for integers with DequantizeLinear"
        raise reader.error("qdq_bias", f"is {value!r}; legal are {legal}")
    return None if value is None else DType.FLOAT32


def _listed_words(reader: Reader, value: object, key: str, known: Collection[str]) -> tuple[str, ...]:
    """Return a list of words of which each is known."""
    words = tuple(str(word) for word in listed(value))
    for word in words:
        if word not in known:
            raise reader.error(key, f"is {word!r}{nearest(word, known)}; legal are {', '.join(known)}, or []")
    return words


def _float_types(reader: Reader, data: Data) -> tuple[FloatType, ...]:
    """Return the types of nodes in float; float32, in which the model itself is, is always one of them."""
    given = listed(data.get("float_types", [FloatType.FLOAT32.value]))
    types = tuple(dict.fromkeys(reader.one_of(tuple(FloatType), one, "float_types") for one in given))
    if FloatType.FLOAT32 not in types:
        raise reader.error("float_types", f"is {', '.join(types) or 'empty'}; legal is a list with float32 in it")
    return types


def _form_for(spec: HardwareSpec) -> str:
    """Return the form of `realize=auto` without a key in the file: onnxruntime's kernels if they compute the same."""
    kernels = all(how.is_kernel_arithmetic for how in spec.requantizations)
    integer = [s for rows in spec.declared.values() for s in rows if s.is_integer]
    sums = (spec.accumulator, *(s.accumulator for s in integer if s.accumulator is not None))
    exact = all(a.width >= 32 for a in sums) and spec.isa is not Isa.AVX2
    narrow = all(d.bits <= 8 for s in integer for d in s.inputs) and not any(
        all(spec.is_wide(d) for d in s.outputs) for s in integer
    )
    additions = [op for op, rule in OP_RULES.items() if rule.family is Family.SUM]
    treatments = spec.add_variants or (spec.add_inputs,)
    hands_on = any(spec.hands_on(op, s, t) for op in spec.ops for s in additions for t in treatments)
    return "qdq" if kernels and exact and narrow and not hands_on else "integer"


def _cost(reader: Reader, data: Data) -> Cost:
    """Return the cost of running. `align.channels` is the former name of `cost.channel_block`."""
    known = ("macs_per_cycle", "bytes_per_cycle", "channel_block", "clock_hz", "launch_cycles", "scale_bytes")
    part = reader.part(data, "cost", (*known, "vector_steps", "layers"))
    label, given = "cost.vector_steps", part.get("vector_steps") or {}
    given = reader.mapping(given, label, ", ".join(VECTOR_STEPS))
    reader.keys(given, VECTOR_STEPS, label)
    steps = {name: reader.optional_number(given, label, name, 0.0, default=0.0) or 0.0 for name in given}
    block = part.get("channel_block")
    align = data.get("align")
    if align is not None:
        given = reader.section(data, "align", ("channels",), "channels").get("channels")
        if block is not None and block != given:
            raise reader.error(
                "align.channels", f"is {given!r}, and cost.channel_block is {block!r}; legal is one of them"
            )
        block = given
        _note_align()
    label = "align.channels" if align is not None else "cost.channel_block"
    return Cost(
        reader.rates(part.get("macs_per_cycle", {})),
        reader.number(part.get("bytes_per_cycle", 1.0), "cost.bytes_per_cycle"),
        reader.whole(1 if block is None and align is None else block, label, 1),
        reader.optional_number(part, "cost", "clock_hz", 1.0, default=None),
        reader.optional_number(part, "cost", "launch_cycles", 0.0, default=0.0) or 0.0,
        reader.optional_number(part, "cost", "scale_bytes", 0.0, default=0.0) or 0.0,
        steps,
        _layers(reader, part.get("layers") or {}),
    )


def _layers(reader: Reader, given: object) -> dict[str, dict[str, dict[str, float]]]:
    """Return the fitted figures of layers: quantity -> kind -> amount of work -> what a unit of it takes."""
    label = "cost.layers"
    quantities = reader.mapping(given, label, ", ".join(QUANTITIES))
    reader.keys(quantities, tuple(QUANTITIES), label)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for quantity, kinds in quantities.items():
        found[quantity] = {}
        for kind, figures in reader.mapping(kinds, f"{label}.{quantity}", "kinds of kernels").items():
            place = f"{label}.{quantity}.{kind}"
            amounts = reader.mapping(figures, place, ", ".join(AMOUNTS))
            reader.keys(amounts, AMOUNTS, place)
            found[quantity][str(kind)] = {
                name: reader.optional_number(amounts, place, name, 0.0, default=0.0) or 0.0 for name in amounts
            }
        if ANY not in found[quantity]:
            raise reader.error(
                f"{label}.{quantity}", f"has no entry {ANY!r}, for layers of whose kind none was measured"
            )
    return found


@cache
def _note_align() -> None:
    """Log the note once for all files of a process."""
    _log.warning("the field 'align.channels' is deprecated: its name is now 'cost.channel_block'")


def _pad(reader: Reader, data: Data) -> Padding:
    part = reader.section(data, "pad", ("value", "max"), "value") if data.get("pad") is not None else {}
    most = part.get("max")
    return Padding(
        reader.choice(PadValue, part.get("value") or PadValue.ZERO_POINT, "pad.value"),
        None if most is None else reader.whole(most, "pad.max", 0),
    )


def _first_last(reader: Reader, data: Data) -> int | None:
    """Return the bits of the first and the last layer, which must differ from the bits of all layers."""
    bits = data.get("first_last_bits")
    if bits is None:
        return None
    if not is_integer(bits, 2, 16):
        raise reader.error("first_last_bits", f"is {bits!r}; legal are 2 to 16, or null")
    return bits


def _skip(reader: Reader, data: Data) -> Skip:
    part = reader.section(data, "skip", ("first", "last", "ops")) if data.get("skip") is not None else {}
    return Skip(
        reader.flag(part, "skip", "first", default=False),
        reader.flag(part, "skip", "last", default=False),
        reader.op_names(part.get("ops"), "skip.ops"),
    )


def _optional(reader: Reader, kind: Any, data: Data, field: str) -> Any:
    """Return a field that may be absent or null."""
    return None if data.get(field) is None else reader.choice(kind, data[field], field)


def _additions(reader: Reader, value: object) -> tuple[AddInputs, ...]:
    """Return no treatment, one, or a list of several, the default first."""
    if value is None:
        return ()
    found = [reader.choice(AddInputs, v, "add_inputs") for v in (value if isinstance(value, list | tuple) else [value])]
    if not found:
        raise reader.error("add_inputs", f"is an empty list; legal are null, or one or more of {', '.join(AddInputs)}")
    if len(set(found)) < len(found):
        raise reader.error("add_inputs", f"lists {', '.join(found)}; name each treatment once")
    return tuple(found)


def _weights(reader: Reader, data: Data) -> WeightLimits:
    part = reader.part(
        data, "weights", ("symmetric", "granularity", "bits", "raise_to", "narrow", "reduce_range", "block")
    )
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
        _blocks(reader, part),
        reader.raised(part, "weights"),
    )


def _blocks(reader: Reader, part: Data) -> Blocks | None:
    if part.get("block") is None:
        return None
    given = part["block"] if isinstance(part["block"], Mapping) else {"size": part["block"]}
    reader.keys(given, ("size", "multiplier_bits", "given_sizes"), "weights.block")
    size, bits = given.get("size"), given.get("multiplier_bits")
    if size not in BLOCK_SIZES or isinstance(size, bool):
        raise reader.error(
            "weights.block.size",
            f"is {size!r}; legal are {', '.join(map(str, BLOCK_SIZES))} (a last block may be shorter: the size need "
            "not divide the input channels)",
        )
    others: tuple[Any, ...] = tuple(listed(given.get("given_sizes") or ()))
    if others and bits is not None:
        raise reader.error("weights.block.given_sizes", "is given with multiplier_bits; legal with float scales alone")
    if wrong := [other for other in others if other not in BLOCK_SIZES or isinstance(other, bool)]:
        raise reader.error(
            "weights.block.given_sizes", f"has {wrong[0]!r}; legal are {', '.join(map(str, BLOCK_SIZES))}"
        )
    return Blocks(size, 0 if bits is None else reader.whole(bits, "weights.block.multiplier_bits", 2), others)


def _activations(reader: Reader, data: Data) -> ActivationLimits:
    part = reader.part(data, "activations", ("symmetric", "signed", "granularity", "bits", "raise_to", "narrow"))
    for granularity in listed(part.get("granularity") or Granularity.PER_TENSOR):
        if reader.choice(Granularity, granularity, "activations.granularity") is not Granularity.PER_TENSOR:
            raise reader.error(
                "activations.granularity", f"is {granularity!r}; activations are per tensor: legal is per_tensor"
            )
    return ActivationLimits(
        reader.flag(part, "activations", "symmetric"),
        reader.bits(part, "activations"),
        reader.flag(part, "activations", "narrow"),
        None if part.get("signed") is None else reader.flag(part, "activations", "signed"),
        reader.raised(part, "activations"),
    )


def _bias(reader: Reader, value: object) -> tuple[DType, BiasScale]:
    """Return a type, or {dtype, scale}."""
    if not isinstance(value, Mapping):
        return reader.one_of(BIASES, value, "bias"), BiasScale.PRODUCT
    reader.keys(value, ("dtype", "scale"), "bias")
    return (
        reader.one_of(BIASES, value.get("dtype"), "bias.dtype"),
        reader.choice(BiasScale, value.get("scale", BiasScale.PRODUCT), "bias.scale"),
    )
