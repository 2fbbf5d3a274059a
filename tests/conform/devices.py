"""Devices of other arithmetic, made in the tests: the interpreter of plans runs what another hardware file plans."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from quantpipe.conform.describe import Described, changed
from quantpipe.conform.vectors import VectorSet
from quantpipe.hardware.load import load_hardware
from quantpipe.plan import Problem
from quantpipe.types import QuantPlan
from tests.ops.line import Line, Net, hardware_data, line, load
from tests.simulate.interpreter import Interpreter

Array = np.ndarray[Any, Any]


def net(pads: tuple[int, ...] = (1, 1, 1, 1)) -> Net:
    """Two convolutions with pads, of which the first is added to the second."""
    made = Net(seed=3)
    x = made.input(None, 4, 8, 8)
    first = made.node("Relu", made.conv(x, 4, 8, 3, 3, pads=list(pads), name="first"))
    second = made.conv(first, 8, 8, 3, 3, pads=[1, 1, 1, 1], name="second")
    total = made.node("Relu", made.node("Add", first, second, name="sum"))
    made.output(made.conv(total, 8, 5, 1, 1, name="last"))
    return made


@cache
def line_on(spec: str, pads: tuple[int, ...] = (1, 1, 1, 1)) -> Line:
    return line(load(net(pads)), spec)


@cache
def described_on(spec: str) -> tuple[Described, VectorSet]:
    made = line_on(spec)
    one = Described(made.graph, made.topology, made.schema, made.strategy(), hardware_data(spec))
    inputs = dict(next(iter(made.samples.batches(4))).inputs)
    return one, VectorSet.of("net", "", one.network, inputs)


def replanned(one: Described, change: Mapping[str, Any]) -> QuantPlan:
    """The plan of the same strategy on a hardware file that says something else."""
    spec = load_hardware(changed(one.hardware, change))
    return Problem(one.graph, one.topology, spec, one.schema).plan(one.strategy)


def run(one: Described, plan: QuantPlan, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """All stored integers of a plan, by the interpreter."""
    made = Interpreter(one.graph, one.topology, plan).run(dict(inputs))
    for tensor in plan.quantizers:
        made.q(tensor)
    return {t: v.astype(plan.quantizers[t].dtype.numpy) for t, v in made.stored.items()}
