"""Nets of one function each, formed in every way that the tables know: what faults are planted into."""

from __future__ import annotations

import numpy as np

from quantpipe.oprules import OP_RULES, Family
from quantpipe.types import FunctionKind, HardwareSpec
from tests.functions.devices import device
from tests.ops.line import ArraySamples, Line, Net, hardware, hardware_data, line

FUNCTION = "function"
"""The name of the node."""

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
    shape = (4, 2, 4) if op == "LRN" else (4, 8)
    x = net.node("Identity", net.input(None, *shape), name="first")
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
    elif op == "LRN":
        attributes = {"size": 3, "alpha": 0.9, "bias": 0.5}
    elif op == "Div":
        more = (net.node("Identity", net.input(None, 4, 8, name="y"), name="divisor"),)
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
    order = np.random.default_rng(4).permutation(codes.size)
    given = [codes, np.clip(codes.reshape(-1)[order].reshape(codes.shape), -2.5, 2.0)]
    given = [values.reshape(-1, *made.graph.shapes[made.graph.inputs[0].name][1:]) for values in given]
    samples = {port.name: values for port, values in zip(made.graph.inputs, given, strict=False)}
    return line(made.graph, spec, samples=ArraySamples(samples))


def _with(op: str) -> HardwareSpec:
    """A shipped device that adds up over axes, which needs no kind."""
    ops = hardware_data("ort_cpu")["ops"]
    stored = ops["Relu"][0]["in"][0]
    return hardware("ort_cpu", ops={**ops, op: [{"in": [stored], "out": [stored]}]}, realize="integer")
