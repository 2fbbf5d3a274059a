"""Joins of an operand whose scale the device fixes with others, where nothing can be brought to another scale.

A Softmax, a Sigmoid or a Tanh may have one scale on a device, whatever the samples are. In a Concat, Max, Min or Where
it would be the scale of all, and the range of its function would cut the others off. So such an op runs in float where
the device, or the host next to it, runs it so.
"""

from __future__ import annotations

from collections.abc import Sequence

from quantpipe.annotate.conditions import Conditions
from quantpipe.annotate.function_ranges import has_own_range
from quantpipe.graph.view import Graph, Node
from quantpipe.hardware.legality import takes_float
from quantpipe.oprules import Family, OpRule, rule_of
from quantpipe.oprules.rule import Winner
from quantpipe.types import Form, HardwareSpec, Kernel, OpSignature, RequantizeKind, Rounding

CUT = "a scale that the device fixes for one of its operands would cut the others off, and it brings none to another"
"""Also of two operands that have other such scales each."""


def rescales(spec: HardwareSpec) -> bool:
    """Return whether the device brings stored integers to another scale, as Q(DQ(q)) in float32."""
    how = spec.requantize
    return how.kind is RequantizeKind.FLOAT_MULTIPLIER and how.rounding is Rounding.HALF_EVEN


def cut_off(
    graph: Graph, spec: HardwareSpec, conditions: Conditions, kernels: Sequence[Kernel], *, fixed_outputs: bool
) -> dict[str, dict[OpSignature, str]]:
    """Return the joins that would cut some of their operands off, with their signatures and why.

    `conditions`: which nodes run in integers, with their signatures. Returns node -> its signature and why it does not
    fit.
    """
    found: dict[str, dict[OpSignature, str]] = {}
    fixed: dict[str, tuple[float, float] | None] = {}
    for kernel in kernels if not rescales(spec) else ():
        node = graph.by_name[kernel.node]
        rule = rule_of(node)
        if rule is None or kernel.form is not Form.QUANTIZED:
            continue
        if rule.family is not Family.MOVE:
            own = conditions.integer[kernel.node].fixed_scale
            fixed[kernel.output] = own or _range_of(spec, node, rule, fixed_outputs=fixed_outputs)
            continue
        read = {fixed.get(o.tensor) for o in kernel.operands}
        if len(read) == 1:
            fixed[kernel.output] = read.pop()
        elif rule.winner is Winner.OUTPUT and takes_float(spec, node, graph, rule):
            found[kernel.node] = {conditions.integer[kernel.node]: CUT}
    return found


def _range_of(spec: HardwareSpec, node: Node, rule: OpRule, *, fixed_outputs: bool) -> tuple[float, float] | None:
    """The range of a function whose result has one scale, whatever the samples are; None of all others."""
    return rule.fixed if fixed_outputs or has_own_range(spec, node, rule.family) else None
