"""Reject entries of a hardware file that have no effect.

Examples are types that no field of bits reaches, chains that no kernel fuses, and conditions that an op does not have.
Each is a mistake of the file and is reported as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from quantpipe.hardware.reader import Reader
from quantpipe.oprules import NARROWED, OP_RULES, Family, OpRule
from quantpipe.oprules.rule import divides
from quantpipe.types import AddInputs, FunctionKind, HardwareSpec, OpSignature
from quantpipe.types.kernel import LogicalKernel


def refuse_idle(spec: HardwareSpec, reader: Reader) -> None:
    """Raise HardwareError for the first field that would have no effect, with what would have one."""
    if not spec.ops and not any(kernel.is_typed for kernel in spec.kernels):
        raise reader.error("ops", "is empty, so the device would run nothing; legal are ops with their signatures")
    _bits(spec, reader)
    for kernel in spec.kernels:
        if not kernel.is_typed:
            _joins(spec, reader, kernel)
    refuse_idle_ops(spec, reader)
    for name in spec.cost.macs_per_cycle:
        if not name.startswith("int") and name not in spec.float_types:
            raise reader.error(
                f"cost.macs_per_cycle.{name}",
                "is read by nothing: rates go by width; legal are int4, int8, int16, int32, float32, and float16 where "
                "float_types has it",
            )


def refuse_idle_ops(spec: HardwareSpec, reader: Reader) -> None:
    """Raise HardwareError for the first field of a signature that would have no effect."""
    for op, signatures in spec.ops.items():
        if any(s.requantize is not None and not s.is_integer for s in signatures):
            raise reader.error(f"ops.{op}.requantize", "has no effect where `in` is float32; legal is to leave it out")
    for op, signature in _integer(spec):
        _narrows(op, signature, reader)
        _keeps_scale(op, signature, reader)
        _conditions(op, signature, reader)
        _moves(spec, op, signature, reader)


def overruled(spec: HardwareSpec) -> Iterator[str]:
    """Yield one sentence for each function and each chain of `fuse` that has no effect although the file is right.

    `add_inputs` decides about additions on any target, and a file may list chains of ops that it does not declare yet.
    """
    declared = {op for op, rows in spec.declared.items() if any(s.is_integer for s in rows)}
    for op, kind in spec.functions.items():
        if kind is not FunctionKind.FLOAT and op not in declared:
            yield f"hardware.functions.{op}={kind} has no effect, since {spec.name} runs no {op} in integers"
    handed_on = AddInputs.RESIDUAL_ONLY in (spec.add_inputs, *spec.add_variants)
    for first, second in (kernel.chain for kernel in spec.kernels if kernel.chain):
        if first not in declared:
            yield f"hardware.fuse: [{first}, {second}] has no effect, since {spec.name} runs no {first} in integers"
        elif OP_RULES[second].family is Family.SUM and spec.add_inputs is not None and not handed_on:
            yield (
                f"hardware.add_inputs={spec.add_inputs} overrules [{first}, {second}] of hardware.fuse: no accumulator "
                "goes into an addition"
            )


def _integer(spec: HardwareSpec) -> Iterator[tuple[str, OpSignature]]:
    return ((op, s) for op, rows in spec.ops.items() for s in rows if s.is_integer)


def _bits(spec: HardwareSpec, reader: Reader) -> None:
    """Reject more bits than any type that the file stores."""
    weights, stored = set(), set()
    for op, signature in _integer(replace(spec, ops=spec.declared)):
        weight = OP_RULES[op].weight
        if weight is not None:
            weights.add(signature.input(weight))
        others = [d for port, d in enumerate(signature.inputs) if port != weight or len(signature.inputs) == 1]
        stored |= {d for d in (*others, *signature.outputs) if not spec.is_wide(d)}
    weights |= {s.inputs[-1] for rows in spec.ops.values() for s in rows if s.is_weight_only}
    given = {
        "activations.bits": (spec.activations.bits, stored, "stores activations"),
        "activations.raise_to": (spec.activations.raise_to, stored, "stores activations"),
        "weights.bits": (spec.weights.bits + spec.weights.reduce_range, weights, "multiplies by weights"),
        "weights.raise_to": (spec.weights.raise_to, weights, "multiplies by weights"),
    }
    for field, (bits, types, does) in given.items():
        widest = max(types, key=lambda d: d.bits, default=None)
        if widest is not None and bits > widest.bits:
            raise reader.error(
                field,
                f"is {bits}, but no op {does} of more than {widest.bits} bits ({widest}); legal are 2 to "
                f"{widest.bits}, or wider types in ops",
            )


def _joins(spec: HardwareSpec, reader: Reader, kernel: LogicalKernel) -> None:
    """Reject ops of a kernel without types that cannot fuse the results they read."""
    field = "fuse" if kernel.chain else f"kernels.{kernel.name}.types"
    untyped = "" if kernel.chain else "is missing, so it only lists fused ops: it "
    if not kernel.joins:
        raise reader.error(field, f"{untyped}has one op; legal are types, or a pattern of two ops and more")
    for first, second in sorted(kernel.joins):
        named = f"{untyped}has [{first}, {second}]"
        rows = [s for op, s in _integer(spec) if op == first]
        clamp = OP_RULES[second].family is Family.CLAMP
        summed = OP_RULES[second].family is Family.SUM and OP_RULES[first].family is Family.ACCUMULATE
        if not clamp and not summed:
            raise reader.error(
                field,
                f"{named}, but {second} cannot be fused into {first}. Legal are Relu and Clip after an op that stores "
                "its result, Add or Sub after Conv, ConvTranspose, Gemm or MatMul, or a kernel with types",
            )
        if clamp and rows and all(spec.is_wide(d) for s in rows for d in s.outputs):
            raise reader.error(
                field,
                f"{named}, but {first} passes its accumulator, and a clamp needs stored integers; legal are a "
                f"stored type in ops.{first}.out, or {'fuse' if kernel.chain else 'kernels'} without it",
            )


def _is_narrowed(rule: OpRule) -> bool:
    """Return whether the result comes from an accumulator; sums over axes have one, as programs of one step."""
    return rule.family in NARROWED or FunctionKind.SUM in rule.kinds


def _narrows(op: str, signature: OpSignature, reader: Reader) -> None:
    """Reject a way of narrowing of an op that has no accumulator."""
    if signature.requantize is not None and divides(signature) and OP_RULES[op].keeps_scale(signature):
        raise reader.error(
            f"ops.{op}.requantize", "has no effect with function: division, whose quotient is stored as it is"
        )
    if signature.requantize is not None and not _is_narrowed(OP_RULES[op]):
        ops = ", ".join(name for name, rule in OP_RULES.items() if _is_narrowed(rule))
        raise reader.error(
            f"ops.{op}.requantize", f"has no effect, since {op} has no accumulator to narrow; legal of {ops}"
        )


def _keeps_scale(op: str, signature: OpSignature, reader: Reader) -> None:
    """Reject sums of an op without sums, and a scale of an op that keeps its input scale."""
    if signature.accumulator is not None and OP_RULES[op].family not in NARROWED:
        ops = ", ".join(name for name, rule in OP_RULES.items() if rule.family in NARROWED)
        raise reader.error(f"ops.{op}.accumulator", f"has no effect, since {op} adds nothing up; legal of {ops}")
    if signature.fixed_scale is not None and OP_RULES[op].keeps_scale(signature):
        raise reader.error(
            f"ops.{op}.fixed_scale", f"has no effect, since {op} keeps the scale of what it reads; legal of other ops"
        )


def _conditions(op: str, signature: OpSignature, reader: Reader) -> None:
    """Reject conditions without a meaning for the op."""
    legal = OP_RULES[op].conditions
    for key, _ in signature.when:
        if key not in legal:
            said = f"legal are {', '.join(legal)}" if legal else f"{op} has no conditions"
            raise reader.error(f"ops.{op}.when.{key}", f"does not apply to {op}; {said}")


def _moves(spec: HardwareSpec, op: str, signature: OpSignature, reader: Reader) -> None:
    """Reject type changes of an op that moves values."""
    if not OP_RULES[op].keeps_scale(signature):
        return
    kinds = {d for d in (*signature.inputs, *signature.outputs) if not spec.is_wide(d)}
    wide = {spec.is_wide(d) for d in (*signature.inputs, *signature.outputs)}
    if len(kinds) > 1 or (len(wide) > 1 and not spec.is_wide(signature.outputs[-1])):
        raise reader.error(
            f"ops.{op}",
            f"takes {', '.join(signature.inputs)} and gives {', '.join(signature.outputs)}, but {op} moves values, "
            "which keep their type; legal is the same type in `in` and in `out`",
        )
