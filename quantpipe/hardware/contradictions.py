"""Fields of a hardware file that are legal one by one but not together."""

from __future__ import annotations

import math

from quantpipe.hardware.reader import Reader
from quantpipe.oprules import OP_RULES, Family
from quantpipe.types import (
    AddInputs,
    BiasScale,
    DType,
    Granularity,
    HardwareSpec,
    Isa,
    OpSignature,
    PadValue,
    RequantizeKind,
    Scales,
    Unify,
)


def refuse_contradictions(spec: HardwareSpec, reader: Reader) -> None:
    """Raise HardwareError naming one field, and its legal values given the other fields."""
    _requantization(spec, reader)
    _storage(spec, reader)
    _two_bits(spec, reader)
    _blocks(spec, reader)
    if AddInputs.RESIDUAL_ONLY in spec.add_variants and spec.realize != "integer":
        raise reader.error(
            "add_inputs",
            f"lists residual_only with other values, but realize is {spec.realize}, a form without accumulators; "
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


def _requantization(spec: HardwareSpec, reader: Reader) -> None:
    """Check the other fields against narrowing: the device's, then of each kernel that has its own."""
    _narrowing(spec, reader, spec.requantize.kind, "requantize.kind", adds=True)
    for op, signatures in spec.ops.items():
        adds = op in OP_RULES and OP_RULES[op].family is Family.SUM
        for own in (s.requantize for s in signatures if s.requantize is not None):
            _narrowing(spec, reader, own.kind, f"ops.{op}.requantize.kind", adds=adds)
    if spec.bias_scale is BiasScale.OWN and spec.scales is not Scales.POWER_OF_TWO:
        raise reader.error(
            "bias.scale", "must be product where scales is any: only a power of two can be shifted to it"
        )


def _narrowing(spec: HardwareSpec, reader: Reader, kind: RequantizeKind, field: str, *, adds: bool) -> None:
    """`adds`: the narrowing of additions, which `unify` belongs to."""
    shift = kind is RequantizeKind.SHIFT
    if shift and spec.scales is not Scales.POWER_OF_TWO:
        raise reader.error("scales", f"must be power_of_two where {field} is shift: a shift can do nothing else")
    if shift and Granularity.PER_CHANNEL in spec.weights.granularity:
        raise reader.error("weights.granularity", f"must be per_tensor where {field} is shift")
    if adds and shift and spec.unify is Unify.FREE:
        raise reader.error("unify", f"must be max_scale or min_scale where {field} is shift")
    if adds and not shift and spec.unify is not Unify.FREE:
        raise reader.error("unify", f"must be free where {field} is {kind}")
    if shift and not spec.activations.symmetric:
        raise reader.error("activations.symmetric", f"must be true where {field} is shift")
    if spec.channel_bounds and kind is RequantizeKind.FLOAT_MULTIPLIER:
        raise reader.error(
            "channel_bounds",
            f"must be false where {field} is {kind}: the forms of such devices have no bounds per channel",
        )


def _signs(spec: HardwareSpec, reader: Reader) -> None:
    """Check `activations.signed` against the types that the ops store."""
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
    _narrow_sums(spec, reader)
    for op, signatures in spec.ops.items():
        for signature in signatures:
            types = signature.inputs
            if signature.is_weight_only:
                _weight_only(spec, reader, op, signature)
                continue
            if len({d.is_float for d in types}) > 1:
                raise reader.error(f"ops.{op}.in", f"mixes float and integer types: {', '.join(types)}")
            _brain_floats(reader, op, signature)
            if not signature.is_integer and any(d is not DType.FLOAT32 for d in signature.outputs):
                raise reader.error(f"ops.{op}.out", "must be float32 where `in` is float32")
            own = acc if signature.accumulator is None else signature.accumulator.dtype
            wider = [d for d in (*types, *signature.outputs) if not d.is_float and d.bits > own.bits]
            if wider:
                raise reader.error(f"ops.{op}", f"uses {wider[0]}, wider than accumulator.dtype, which is {own}")
            _fixed_scale(spec, reader, op, signature)


def _brain_floats(reader: Reader, op: str, signature: OpSignature) -> None:
    """Check that bfloat16 is only a type of results, of which the kernel stores others in integers."""
    if DType.BFLOAT16 in signature.inputs:
        raise reader.error(f"ops.{op}.in", "is bfloat16, which is a type of results alone; legal is float32")
    stores = any(not d.is_float for d in signature.outputs)
    if DType.BFLOAT16 in signature.outputs and not (signature.is_integer and stores):
        legal = "legal is bfloat16 next to the type that the kernel stores, such as [int8, bfloat16]"
        raise reader.error(f"ops.{op}.out", f"is {', '.join(signature.outputs)}; {legal}")


def _two_bits(spec: HardwareSpec, reader: Reader) -> None:
    """Two bits are a type of integer weights alone: onnxruntime's QuantizeLinear makes other codes of 2 bits."""
    for op, signatures in spec.declared.items():
        weight = OP_RULES[op].weight if op in OP_RULES else None
        for signature in signatures:
            data = [d for port, d in enumerate(signature.inputs) if port != weight or signature.is_weight_only]
            for field, types in (("in", data), ("out", signature.outputs)):
                if any(d in (DType.INT2, DType.UINT2) for d in types):
                    legal = "legal are 4 bits and more, and int2 or uint2 for weights that meet integers"
                    raise reader.error(f"ops.{op}.{field}", f"has activations or float products of 2 bits; {legal}")


def _fixed_scale(spec: HardwareSpec, reader: Reader, op: str, signature: OpSignature) -> None:
    """Check a scale and zero point that the device fixes for a result against its scales and zero points."""
    if signature.fixed_scale is None:
        return
    (scale, zero), field = signature.fixed_scale, f"ops.{op}.fixed_scale"
    if spec.scales is Scales.POWER_OF_TWO and math.frexp(scale)[0] != 0.5:
        raise reader.error(field, f"is {scale:g}, but scales is power_of_two; legal are powers of two")
    if zero and spec.activations.symmetric and signature.outputs[0].signed:
        raise reader.error(field, f"has zero point {zero}, but activations.symmetric is true; legal is 0")
    out = signature.outputs[0]
    if not out.qmin <= zero <= out.qmax:
        raise reader.error(
            field, f"has zero point {zero}, which {out} does not hold; legal are {out.qmin} to {out.qmax}"
        )


def _blocks(spec: HardwareSpec, reader: Reader) -> None:
    """Check that multiplied values of blocks fit the type of the weights."""
    blocks = spec.weights.block
    if blocks is None:
        return
    if blocks.are_real:
        if not any(s.is_weight_only for signatures in spec.ops.values() for s in signatures):
            raise reader.error(
                "weights.block",
                f"is {blocks.size}, a float scale for each block, and no op multiplies float inputs by integer "
                "weights. Legal are {size, multiplier_bits} for integer kernels, or a signature such as "
                "{in: [float32, int4], out: float32}",
            )
        return
    types = {
        s.input(weight)
        for op, signatures in spec.ops.items()
        if op in OP_RULES and (weight := OP_RULES[op].weight) is not None
        for s in signatures
        if s.is_integer and dict(s.when).get("operands") != "activations"
    }
    needed = spec.weights.bits + blocks.multiplier_bits
    for dtype in sorted(types, key=lambda d: d.bits):
        if not dtype.signed or dtype.bits < needed:
            raise reader.error(
                "weights.block.multiplier_bits",
                f"is {blocks.multiplier_bits} with weights.bits={spec.weights.bits}, and ops multiply by {dtype}; "
                f"legal are signed types of at least {needed} bits, or fewer bits",
            )
    if not types:
        raise reader.error("weights.block", "has no effect, since no op multiplies by integer weights; legal is null")


def _narrow_sums(spec: HardwareSpec, reader: Reader) -> None:
    """Check ops that need 32 bits for any samples: fixed-point additions shift their operands left first."""
    for op, signatures in spec.ops.items():
        if op not in OP_RULES or OP_RULES[op].family is not Family.SUM:
            continue
        fixed = [s for s in signatures if s.is_integer and _kind(spec, s) is RequantizeKind.FIXED_POINT]
        width = min(((s.accumulator or spec.accumulator).width for s in fixed), default=32)
        if width < 32 and spec.add_inputs is not AddInputs.NONE:
            raise reader.error(
                f"ops.{op}",
                f"adds in fixed point, which takes sums of 32 bits, but accumulator.bits is {width}; "
                "legal are a wider accumulator, another requantize of this op, or add_inputs: none",
            )


def _kind(spec: HardwareSpec, signature: OpSignature) -> RequantizeKind:
    return (signature.requantize or spec.requantize).kind


def _weight_only(spec: HardwareSpec, reader: Reader, op: str, signature: OpSignature) -> None:
    """Check weight-only ops, floats times integer weights: a float scale for each block, and a float result."""
    weight = OP_RULES[op].weight if op in OP_RULES else None
    if weight != 1 or len(signature.inputs) != 2:
        raise reader.error(f"ops.{op}.in", f"mixes float and integer types: {', '.join(signature.inputs)}")
    if spec.weights.block is None or not spec.weights.block.are_real:
        raise reader.error(
            f"ops.{op}.in",
            f"is {', '.join(signature.inputs)}: float inputs times integer weights, which need a float scale for each "
            "block; legal with weights.block, such as 32",
        )
    dtype = signature.inputs[weight]
    if not dtype.signed or dtype.bits > 8:
        raise reader.error(f"ops.{op}.in", f"has weights of {dtype} for float inputs; legal are int4 and int8")
    if any(d is not DType.FLOAT32 for d in signature.outputs) or signature.requantize is not None:
        raise reader.error(f"ops.{op}.out", "must be float32 if float inputs are multiplied by integer weights")
