"""Decide whether a device takes a node: the `when` conditions of its signatures, evaluated on the node's facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import Family, OpRule
from quantpipe.oprules.facts import product_terms
from quantpipe.oprules.rows import LONGEST_ROWS, NEVER_ZERO, is_open_row, longest_row
from quantpipe.types import AddInputs, FunctionKind, HardwareSpec, OpSignature

Check = Callable[[int | str, str], bool]

CONDITIONS: dict[str, Check] = {
    "group": lambda found, allowed: allowed == "any" or str(found) in allowed.split("|"),
    "pad_max": lambda found, allowed: int(found) <= int(allowed),
    "operands": lambda found, allowed: allowed == "any" or str(found) in allowed.split("|"),
    "pads": lambda found, allowed: allowed == "any" or str(found) in allowed.split("|"),
    "window": lambda found, allowed: allowed != "power_of_two" or (int(found) & (int(found) - 1)) == 0,
}
"""What `when:` in a hardware file may say, each with its test (value found at the node, value written in the file)."""

WORDS: dict[str, tuple[str, ...]] = {
    "group": ("any", "1", "depthwise", "grouped"),
    "operands": ("any", "weight", "activations"),
    "pads": ("any", "none", "same", "counted", "other"),
    "window": ("any", "power_of_two"),
}
"""The words that a condition is made of; several are joined by `|`, but for a window."""


def reachable(spec: HardwareSpec) -> dict[str, tuple[OpSignature, ...]]:
    """Return the signatures of each op, without those of wider types than the highest activation bits need."""
    found = {}
    for op, signatures in spec.declared.items():
        widths = [s.input(0).bits for s in signatures if s.is_integer]
        most = min((bits for bits in widths if bits >= spec.activations.widest), default=max(widths, default=0))
        found[op] = tuple(s for s in signatures if not s.is_integer or s.input(0).bits <= most)
    return found


def refusal(signature: OpSignature, node: Node, graph: Graph, rule: OpRule) -> str | None:
    """Return why a signature does not take a node, as the end of a sentence; None if it takes the node."""
    if (why := (rule.asked if rule.asks(signature) else rule.unasked)(node, graph)) is not None:
        return why
    facts = rule.facts(node, graph)
    for key, allowed in signature.when:
        if key not in facts:
            return f"{key} is not known before the model runs, and the device wants {allowed.replace('_', ' ')}"
        if not CONDITIONS[key](facts[key], allowed):
            return f"{key} is {facts[key]}, the device wants {allowed.replace('_', ' ')}"
    return None


def choose_signature(
    spec: HardwareSpec,
    node: Node,
    graph: Graph,
    rule: OpRule,
    *,
    treatment: AddInputs | None,
    refused: Mapping[OpSignature, str] = MappingProxyType({}),
    given: bool = False,
) -> tuple[OpSignature | None, str]:
    """Return the first integer signature that takes the node, and an empty text; else None and the reason.

    A float signature that takes the node and precedes it in the file means that the device prefers float there.
    `refused` maps signatures that do not fit the node's operands to the reasons. `given`: a quantized file has integers
    around the node, which override the device's preference.
    """
    declared = spec.signatures_of(node.name, node.op)
    if not declared:
        return None, f"{spec.name} does not declare {node.op}"
    if spec.functions.get(node.op) is FunctionKind.FLOAT and all(s.function is None for s in declared):
        return None, f"{spec.name} forms {node.op} in float (functions)"
    if rule.family is Family.SUM and treatment is AddInputs.NONE:
        return None, f"{spec.name} adds in float (add_inputs: none)"
    reason, preferred = f"{spec.name} runs {node.op} in float only", ""
    for signature in declared:
        if not signature.is_integer:
            if not given and refusal(signature, node, graph, rule) is None:
                preferred = f"{spec.name} prefers {node.op} in float (ops)"
            continue
        why = (
            _signs(spec, signature, node, graph, rule=rule)
            or refused.get(signature)
            or refusal(signature, node, graph, rule)
            or _too_wide(spec, node, graph, rule)
            or _too_long(spec, signature, node, graph, rule=rule)
        )
        if why is None:
            return (None, preferred) if preferred else (signature, "")
        reason = why
    return None, reason


def integer_signatures(spec: HardwareSpec, node: Node, graph: Graph, rule: OpRule) -> tuple[OpSignature, ...]:
    """Return every integer signature that takes the node, in the order of the file.

    Types of neighbours are not looked at.
    """
    return tuple(
        s
        for s in spec.signatures_of(node.name, node.op)
        if s.is_integer
        and _signs(spec, s, node, graph, rule=rule) is None
        and refusal(s, node, graph, rule) is None
        and _too_wide(spec, node, graph, rule) is None
        and _too_long(spec, s, node, graph, rule=rule) is None
    )


def _signs(spec: HardwareSpec, signature: OpSignature, node: Node, graph: Graph, *, rule: OpRule) -> str | None:
    """Return why unsigned types cannot hold values for which this device has no zero points, or None."""
    if not signature.input(0).signed and spec.activations.symmetric:
        return f"{spec.name} takes no zero points, and {signature.input(0)} holds negative values only with one"
    if rule.weight is not None and spec.weights.symmetric and rule.weight_of(node, graph) is not None:
        weight = signature.input(rule.weight)
        if not weight.signed:
            return f"{spec.name} takes weights without zero points, and {weight} holds negative ones only with one"
    return None


def _too_wide(spec: HardwareSpec, node: Node, graph: Graph, rule: OpRule) -> str | None:
    """Return why the device cannot pad a node's input, or None."""
    if spec.pad.max is None or "pad_max" not in rule.conditions:
        return None
    pad = rule.facts(node, graph).get("pad_max")
    if pad is None:
        return f"its pads are computed at run time, {spec.name} pads by at most {spec.pad.max} (pad.max)"
    if int(pad) <= spec.pad.max:
        return None
    return f"it pads by {pad}, {spec.name} pads by at most {spec.pad.max} (pad.max)"


def _too_long(spec: HardwareSpec, signature: OpSignature, node: Node, graph: Graph, *, rule: OpRule) -> str | None:
    """Return why a row has more elements than the sums of the function's form hold for any values, or None."""
    if rule.family is Family.ACCUMULATE and rule.weight_of(node, graph) is None:
        return _beyond_sums(spec, signature, node, graph)
    kind, bits = spec.function_of(signature, node.op), signature.input(0).bits
    if (kind, node.op, bits) in NEVER_ZERO and is_open_row(node, graph):
        return f"its rows may have another length, and the {kind} form of {bits} bits counts elements that a mask hides"
    most = LONGEST_ROWS.get((kind, node.op, bits)) if kind is not None else None
    if most is None or (count := longest_row(node, graph, kind, bits)) <= most:
        return None
    return f"a row has {count} elements, and the sums of its exponentials in int32 hold {most} (functions: {kind})"


def _beyond_sums(spec: HardwareSpec, signature: OpSignature, node: Node, graph: Graph) -> str | None:
    """Return why accumulators may not hold sums of a length that the model leaves open, or None."""
    terms, accumulator = product_terms(node, graph), signature.accumulator or spec.accumulator
    most = terms << (signature.input(0).bits + signature.input(1).bits)
    if terms == graph.shapes[node.inputs[0]][-1] or most <= accumulator.qmax + 1:
        return None
    return f"its sums have another length for another sample, and {accumulator.width} bits do not hold {terms:,} terms"


def has_float(spec: HardwareSpec, op: str) -> bool:
    """Return whether the device, or its host, runs the op in float."""
    return any(not s.is_integer for s in spec.ops.get(op, ()))


def takes_float(spec: HardwareSpec, node: Node, graph: Graph, rule: OpRule) -> bool:
    """Return whether some float signature of the device, or of its host, takes this node."""
    declared = spec.signatures_of(node.name, node.op)
    return any(not s.is_integer and refusal(s, node, graph, rule) is None for s in declared)
