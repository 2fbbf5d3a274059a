"""Whether every kernel reads the types that its signature names.

A tensor is stored in one type. Where a reader takes another one, no device here converts it on the way: the reader must
have a signature for the type, or stays in float, with the edge as its reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quantpipe.annotate.conditions import Conditions
from quantpipe.graph.view import Graph
from quantpipe.oprules import rule_of
from quantpipe.types import DType, Form, HardwareSpec, Kernel, OpSignature

Refused = Mapping[str, Mapping[OpSignature, str]]
"""Node -> the signatures that it cannot have here, each with the reason."""


def misread(
    graph: Graph, spec: HardwareSpec, conditions: Conditions, kernels: Sequence[Kernel], *, dtypes: Mapping[str, DType]
) -> dict[str, dict[OpSignature, str]]:
    """Return the kernels that would read another type than their signature names, in graph order.

    Kernels that read the result of one of these are left for the next look, because their operand changes first.

    `conditions`: which nodes run in integers, with their signatures. Returns node -> its signature and why it does not
    fit.
    """
    held = dict(dtypes)
    found: dict[str, dict[OpSignature, str]] = {}
    changing: set[str] = set()
    for kernel in kernels:
        signature, node = conditions.integer[kernel.node], graph.by_name[kernel.node]
        read = [(o.tensor, signature.input(o.port)) for o in kernel.operands if o.form is Form.QUANTIZED]
        rule = rule_of(node)
        if kernel.weight is not None and rule is not None and rule.weight is not None:
            wanted = signature.input(rule.weight)
            held.setdefault(kernel.weight, wanted)
            read.append((kernel.weight, wanted))
        wrong = [(t, wanted) for t, wanted in read if not spec.is_wide(wanted) and held[t] is not wanted]
        if changing.intersection(t for t, _ in read):
            changing.add(kernel.output)
        elif wrong:
            tensor, wanted = wrong[0]
            found[kernel.node] = {
                signature: f"it reads {wanted}, and {tensor} is stored as {held[tensor]}, which {spec.name} does not "
                "convert"
            }
            changing.add(kernel.output)
    return found


def accepted(
    offered: Sequence[DType], output: str, graph: Graph, spec: HardwareSpec, *, conditions: Conditions
) -> tuple[DType, ...]:
    """Return the stored types that a result may have, those first that all of its integer readers take.

    `conditions`: which nodes run in integers, with their signatures.
    """
    wanted = [
        conditions.integer[reader.name].input(port)
        for reader, port in graph.consumers.get(output, ())
        if reader.name in conditions.integer
    ]
    taken = [w for w in wanted if not spec.is_wide(w)]
    return tuple(sorted(offered, key=lambda d: not all(d is w for w in taken)))
