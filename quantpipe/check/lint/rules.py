"""The rules: each checks one op on stored tensors and names what the device would reject.

A rule is a generator of (rule name, tensor, message). Messages say what was found and what would be legal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantpipe.check.lint.reading import QuantizedOp, StoredTensor
from quantpipe.graph.view import Graph
from quantpipe.hardware.legality import refusal
from quantpipe.oprules import Family, rule_of
from quantpipe.plan import channels_of_file
from quantpipe.types import DType, Granularity, HardwareSpec, Isa, OpSignature, Scales

Objection = tuple[str, str, str]
PAIRS = "pairs"
"""The rule that is a note: the model runs, with other integers on some processors."""
KNOWN = frozenset(d.value for d in DType)
BIAS_TOLERANCE = 1e-6
"""Relative: s_x·s_w formed in float32 differs from the exact product by less than 2^-23."""
LEAST_STEP = 2.0**-149
"""Absolute: below float32's normal numbers, which the products of dead channels reach."""


@dataclass(frozen=True, eq=False)
class LintPlace:
    """Hold the input of a rule."""

    op: QuantizedOp
    graph: Graph
    spec: HardwareSpec
    at_end: bool = False
    """Whether it is the first or the last op with weights."""

    @property
    def weight_bits(self) -> int:
        """Return the most bits of its weights."""
        more = self.spec.first_last_bits if self.at_end else None
        return max(self.spec.weights.bits, more or 0)

    @property
    def stored(self) -> tuple[StoredTensor, ...]:
        """Return the stored activations of the op: operands and result."""
        return (*self.op.operands, *([self.op.output] if self.op.output is not None else []))

    @property
    def behind_reals(self) -> bool:
        """Return whether the op computes with what DequantizeLinear gives, and is not one on integers."""
        return self.graph.by_name[self.op.node.name].op == self.op.node.op

    @property
    def clamps_only(self) -> bool:
        """Return whether the op is a clip on stored integers, which is part of storing them."""
        rule = rule_of(self.op.node)
        return rule is not None and rule.family is Family.CLAMP


def declared(place: LintPlace) -> Iterator[Objection]:
    """Yield an objection where the device does not run the op, on these types and with these attributes."""
    node, spec = place.op.node, place.spec
    rule = rule_of(node)
    if place.clamps_only or rule is None:
        return
    signatures = [s for s in spec.declared.get(node.op, ()) if s.is_integer]
    if not signatures:
        known = "in float only" if node.op in spec.declared else "not at all"
        yield "op", node.name, f"{spec.name} runs {node.op} {known}, here it is in integers"
        return
    reasons = {n: refusal(s, node, place.graph, rule) for n, s in enumerate(signatures)}
    fitting = [n for n, s in enumerate(signatures) if _takes(s, place)]
    if any(reasons[n] is None for n in fitting):
        return
    meant = [s for n, s in enumerate(signatures) if reasons[n] is None]
    if meant or not fitting:
        found = ", ".join(str(t.dtype) for t in (*place.op.operands, *_weight(place)))
        legal = " or ".join(" x ".join(s.inputs) + " -> " + "|".join(s.outputs) for s in meant or signatures)
        stored = f" -> {place.op.output.dtype}" if place.op.output is not None else ""
        yield "dtype", node.name, f"{node.op} on {found}{stored}; legal is {legal}"
        return
    yield "attribute", node.name, f"{node.op}: {reasons[fitting[-1]]}"


def zero_points(place: LintPlace) -> Iterator[Objection]:
    """Yield an objection to each zero point other than 0 where the device is symmetric."""
    if place.spec.activations.symmetric:
        for tensor in place.stored:
            if tensor.zero is not None and np.any(tensor.zero != 0):
                yield "zero_point", tensor.tensor, f"activation zero point {tensor.zero[0]}; legal is 0"
    for weight in _weight(place) if place.spec.weights.symmetric else ():
        if _is_exact_everywhere(weight, place.spec):
            continue
        if weight.zero is not None and np.any(weight.zero != 0):
            worst = weight.zero[np.argmax(np.abs(weight.zero))]
            yield "zero_point", weight.tensor, f"weight zero point {worst}; legal is 0"


def powers_of_two(place: LintPlace) -> Iterator[Objection]:
    """Yield an objection to each scale that is no power of two, where the device only shifts."""
    if place.spec.scales is not Scales.POWER_OF_TWO:
        return
    for tensor in (*place.stored, *_weight(place)):
        if tensor.scale is not None and len(wrong := tensor.scale[~_is_power(tensor.scale)]):
            yield "power_of_two", tensor.tensor, f"scale {wrong[0]:.9g} is no power of two ({len(wrong)} such)"


def granularity(place: LintPlace) -> Iterator[Objection]:
    """Yield an objection to scales per channel, where the device has one per tensor."""
    for tensor in place.stored:
        if tensor.scale is not None and tensor.scale.size > 1:
            yield "granularity", tensor.tensor, f"{tensor.scale.size} scales for an activation; legal is one"
    for weight in _weight(place):
        legal = place.spec.weights.granularity
        if weight.scale is not None and weight.scale.size > 1 and Granularity.PER_CHANNEL not in legal:
            yield "granularity", weight.tensor, f"{weight.scale.size} scales, one per channel; legal is per_tensor"


def weight_values(place: LintPlace) -> Iterator[Objection]:
    """Yield an objection to weights beyond the device's bits, or at the most negative integer where that is illegal."""
    for weight in _weight(place):
        if weight.values is None or weight.zero is None or weight.dtype not in KNOWN:
            continue
        limits, dtype = place.spec.weights, DType(weight.dtype)
        low = -(1 << (place.weight_bits - 1)) if dtype.signed else 0
        high = (1 << (place.weight_bits - 1)) - 1 if dtype.signed else (1 << place.weight_bits) - 1
        low += bool(limits.narrow and limits.symmetric and dtype.signed)
        values = np.asarray(weight.values).astype(np.int64)
        if values.size and (values.min() < low or values.max() > high):
            what = f"integers from {values.min()} to {values.max()}"
            yield "weight_range", weight.tensor, f"{what}; legal is {low} to {high} ({place.weight_bits} bits)"


def bias(place: LintPlace) -> Iterator[Objection]:
    """Yield an objection to a bias without the device's type, zero point 0, or the accumulator's scale s_x·s_w.

    In a Q/DQ file it has the type that the tool chain loads there.
    """
    found, spec = place.op.bias, place.spec
    if found is None:
        return
    if spec.qdq_bias is not None and place.behind_reals:
        if found.dtype != spec.qdq_bias:
            text = f"bias in {found.dtype} with DequantizeLinear; the tool chain of {spec.name} loads {spec.qdq_bias}"
            yield "bias_dtype", found.tensor, text
        return
    if found.dtype != spec.bias:
        yield "bias_dtype", found.tensor, f"bias in {found.dtype}; legal is {spec.bias}"
        return
    if found.zero is not None and np.any(found.zero != 0):
        yield "bias_scale", found.tensor, f"bias zero point {found.zero[0]}; legal is 0"
    data, weight = place.op.operands[0], place.op.weight
    if found.scale is None or data.scale is None or weight is None or weight.scale is None:
        return
    wanted = data.scale[0] * weight.scale
    excess = np.abs(found.scale - wanted) - (BIAS_TOLERANCE * wanted + LEAST_STEP)
    if np.any(excess > 0):
        worst = int(np.argmax(excess / wanted))
        is_, legal = np.broadcast_to(found.scale, wanted.shape)[worst], wanted[worst]
        yield "bias_scale", found.tensor, f"bias scale {is_:.9g} of channel {worst}; legal is s_x·s_w = {legal:.9g}"


def pairs(place: LintPlace) -> Iterator[Objection]:
    """Yield an objection to int8 weights whose products saturate in int16 on x86 without VNNI, where `isa` is any."""
    weight, operands = place.op.weight, place.op.operands
    rule = rule_of(place.op.node)
    if place.spec.isa is not Isa.ANY or rule is None or weight is None or weight.values is None or not operands:
        return
    if operands[0].dtype != DType.UINT8 or weight.dtype != DType.INT8 or rule.family is not Family.ACCUMULATE:
        return
    values = np.asarray(weight.values)
    axis = rule.channel_axis(place.op.node, place.graph)
    count = channels_of_file(place.op.node, values, axis)
    if count:
        text = f"pairs of products of {count} of {values.shape[axis]} channels saturate in int16 on x86 without VNNI"
        yield PAIRS, weight.tensor, f"{text}; legal are two neighbours of equal sign up to 128 together"


RULES: tuple[Callable[[LintPlace], Iterator[Objection]], ...] = (
    declared,
    zero_points,
    powers_of_two,
    granularity,
    weight_values,
    bias,
    pairs,
)


def _weight(place: LintPlace) -> tuple[StoredTensor, ...]:
    return (place.op.weight,) if place.op.weight is not None else ()


def _takes(signature: OpSignature, place: LintPlace) -> bool:
    """Return whether the types of operands, weight and result are the signature's."""
    wanted = [signature.input(number) for number in range(len(place.op.operands))]
    operands = all(_holds(w, t) for w, t in zip(wanted, place.op.operands, strict=True))
    wide = _is_exact_everywhere
    weights = all(_holds(signature.input(1), w) or wide(w, place.spec) for w in _weight(place))
    result = place.op.output is None or any(_holds(d, place.op.output) for d in signature.outputs)
    return operands and weights and result


def _is_exact_everywhere(weight: StoredTensor, spec: HardwareSpec) -> bool:
    """Return whether these are int8 weights as uint8 about 128, which `isa: any` admits for given integers."""
    unsigned = spec.isa is Isa.ANY and weight.dtype == DType.UINT8
    return unsigned and weight.zero is not None and bool(np.all(weight.zero == 1 << 7))


def _holds(wanted: DType, tensor: StoredTensor) -> bool:
    """Return whether a stored type is the wanted one, or a wider one that holds its values (4 bits in bytes)."""
    if tensor.dtype not in KNOWN:
        return False
    found = DType(tensor.dtype)
    narrower = wanted.bits < 8 and found.bits == 8 and wanted.signed == found.signed
    return found is wanted or narrower or (found.bits < wanted.bits and found.signed == wanted.signed)


def _is_power(scale: NDArray[np.float64]) -> NDArray[np.bool_]:
    mantissa, _ = np.frexp(scale)
    return np.asarray(mantissa == 0.5)
