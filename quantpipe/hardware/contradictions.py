"""Fields of a hardware file that are legal one by one but not together."""

from __future__ import annotations

from quantpipe.errors import nearest
from quantpipe.hardware.reader import Reader
from quantpipe.oprules import OP_RULES
from quantpipe.types import (
    AddInputs,
    BiasScale,
    Granularity,
    HardwareSpec,
    Isa,
    PadValue,
    RequantizeKind,
    Scales,
    Unify,
)


def refuse_contradictions(spec: HardwareSpec, reader: Reader) -> None:
    """Raise HardwareError naming one field, and what it must be beside the others."""
    _requantization(spec, reader)
    _storage(spec, reader)
    if AddInputs.RESIDUAL_ONLY in spec.add_variants and spec.realize != "integer":
        raise reader.error(
            "add_inputs",
            f"lists residual_only beside others, but realize is {spec.realize}, a form that hands on no accumulators; "
            "legal is realize: integer, or a list without it",
        )
    _signs(spec, reader)
    if spec.pad.value is PadValue.ZERO and spec.pad.max != 0 and not spec.activations.symmetric:
        raise reader.error(
            "pad.value",
            "is zero, which is not the real zero where activations.symmetric is false; legal are zero_point, or zero "
            "with pad.max: 0 for a device that does not pad",
        )
    if "float32" not in spec.cost.macs_per_cycle:
        raise reader.error("cost.macs_per_cycle", "needs a float32 entry for what stays in float")
    for chain in spec.fuse:
        for op in chain:
            if op not in OP_RULES:
                raise reader.error("fuse", f"names the unknown op {op!r}{nearest(op, OP_RULES)}")


def _requantization(spec: HardwareSpec, reader: Reader) -> None:
    kind = spec.requantize.kind
    shift = kind is RequantizeKind.SHIFT
    if shift and spec.scales is not Scales.POWER_OF_TWO:
        raise reader.error("scales", "must be power_of_two where requantize.kind is shift: a shift can do nothing else")
    if shift and Granularity.PER_CHANNEL in spec.weights.granularity:
        raise reader.error("weights.granularity", "must be per_tensor where requantize.kind is shift")
    if shift and spec.unify is Unify.FREE:
        raise reader.error("unify", "must be max_scale or min_scale where requantize.kind is shift")
    if not shift and spec.unify is not Unify.FREE:
        raise reader.error("unify", f"must be free where requantize.kind is {kind}")
    if shift and not spec.activations.symmetric:
        raise reader.error("activations.symmetric", "must be true where requantize.kind is shift")
    if spec.channel_bounds and kind is RequantizeKind.FLOAT_MULTIPLIER:
        raise reader.error(
            "channel_bounds",
            f"must be false where requantize.kind is {kind}: the forms of such devices have no bounds per channel",
        )
    if spec.bias_scale is BiasScale.OWN and spec.scales is not Scales.POWER_OF_TWO:
        raise reader.error(
            "bias.scale", "must be product where scales is any: only a power of two can be shifted to it"
        )


def _signs(spec: HardwareSpec, reader: Reader) -> None:
    """`activations.signed` beside the types that the ops store."""
    signed = spec.activations.signed
    if signed is None:
        return
    if not signed and spec.activations.symmetric:
        raise reader.error("activations.signed", "must be true where activations.symmetric is true: z is 0")
    for op, signatures in spec.ops.items():
        weight = OP_RULES[op].weight if op in OP_RULES else None
        for signature in signatures:
            types = [d for port, d in enumerate(signature.inputs) if port != weight] + list(signature.outputs)
            other = [d for d in types if not spec.is_wide(d) and d.signed is not signed]
            if other:
                legal = "signed" if signed else "unsigned"
                raise reader.error(
                    f"ops.{op}",
                    f"stores {other[0]}, but activations.signed is {str(signed).lower()}; legal are {legal} types",
                )


def _storage(spec: HardwareSpec, reader: Reader) -> None:
    acc = spec.accumulator.dtype
    if spec.bias.bits > acc.bits:
        raise reader.error("bias", f"is {spec.bias}, wider than accumulator.dtype, which is {acc}")
    if spec.isa is Isa.AVX2 and acc.bits < 32:
        raise reader.error("isa", f"is avx2, whose sums go on in int32, but accumulator.dtype is {acc}")
    for op, signatures in spec.ops.items():
        for signature in signatures:
            types = signature.inputs
            if len({d.is_float for d in types}) > 1:
                raise reader.error(f"ops.{op}.in", f"mixes float and integer types: {', '.join(types)}")
            if not signature.is_integer and any(not d.is_float for d in signature.outputs):
                raise reader.error(f"ops.{op}.out", "must be float32 where `in` is float32")
            wider = [d for d in (*types, *signature.outputs) if not d.is_float and d.bits > acc.bits]
            if wider:
                raise reader.error(f"ops.{op}", f"uses {wider[0]}, wider than accumulator.dtype, which is {acc}")
