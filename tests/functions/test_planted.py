"""Faults planted into the tables and steps of functions: each that moves an output is found by the comparison.

One net per op and kind, on rows that reach every code of its input; every constant of the realized model is changed.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from quantpipe.oprules import OP_RULES, Family
from quantpipe.types import FunctionKind, HardwareSpec
from tests.functions.devices import device
from tests.mutation.mutants import mutants, tally
from tests.ops.line import ArraySamples, Line, Net, hardware, hardware_data, line

PAIRS = [
    (op, kind.value)
    for op, rule in OP_RULES.items()
    if rule.family in (Family.LOOKUP, Family.ROWS)
    for kind in rule.kinds
]
OPSETS = {"Mish": 18, "Gelu": 20, "Swish": 24, "RMSNormalization": 23}
POSITIVE = ("Log", "Sqrt", "Reciprocal")


def net_of(op: str) -> Net:
    net = Net(seed=7, opset=OPSETS.get(op, 17))
    x = net.node("Identity", net.input(None, 4, 8), name="first")
    more: tuple[str, ...] = ()
    attributes = {}
    if op == "PRelu":
        more = (net.floats(1, 1, scale=0.3),)
    elif op == "Pow":
        more = (net.constant(np.float32(2.0)),)
    elif op in ("LayerNormalization", "RMSNormalization"):
        more = (net.floats(8),)
    elif op == "InstanceNormalization":
        more = (net.floats(4), net.floats(4))
    elif op == "Div":
        more = (net.node("Clip", x, net.constant(np.float32(-2.5)), net.constant(np.float32(2.0)), name="divisor"),)
    elif op == "ReduceSum":
        more = (net.constant(np.array([-1])),)
    elif op == "ReduceMean":
        attributes = {"axes": [-1]}
    elif OP_RULES[op].family is Family.ROWS and op != "Div":
        attributes = {"axis": -1}
    net.output(net.node(op, x, *more, name="function", **attributes))
    return net


def line_of(op: str, kind: str) -> Line:
    base = "fixed" if kind == FunctionKind.TFLITE else "multiplier"
    spec = _with(op) if kind == FunctionKind.SUM else device(base, {op: kind})
    codes = np.linspace(0.05 if op in POSITIVE else -3.0, 3.0, 12 * 32, dtype=np.float32).reshape(12, 4, 8)
    made = line(net_of(op), spec)
    return line(made.graph, spec, samples=ArraySamples({made.graph.inputs[0].name: codes}))


def _with(op: str) -> HardwareSpec:
    """A shipped device that adds up over axes, which needs no kind."""
    ops = hardware_data("ort_cpu")["ops"]
    stored = ops["Relu"][0]["in"][0]
    return hardware("ort_cpu", ops={**ops, op: [{"in": [stored], "out": [stored]}]}, realize="integer")


@pytest.mark.sliced(24)
@pytest.mark.parametrize(("op", "kind"), PAIRS, ids=[f"{op}-{kind}" for op, kind in PAIRS])
def test_every_fault_that_moves_an_output_is_found(op: str, kind: str) -> None:
    made = line_of(op, kind)
    assert "function" not in made.topology.float_nodes, made.topology.float_nodes
    found = Counter[str]()
    for mutant in mutants(made, made.plan(8), "integer"):
        tally(found, mutant)
        assert not mutant.missed, mutant
    assert found["found"], "some constant of the function moves an output"
