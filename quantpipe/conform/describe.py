"""A planned network whose hardware file can be changed field by field: scales and weights stay, arithmetic follows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from quantpipe.conform.network import Network
from quantpipe.conform.numpy_kernels import RepeatedKernel
from quantpipe.errors import QuantpipeError
from quantpipe.graph.view import Graph
from quantpipe.hardware.load import load_hardware
from quantpipe.plan import NO_OVERRIDES, Overrides, Problem
from quantpipe.types import Form, HardwareSpec, Kernel, OpSignature, QuantPlan, Schema, Strategy, Topology

Change = Mapping[str, Any]
"""Dotted name of a field of the hardware file -> its value; `ops.OP.requantize` is that of all signatures of an op."""


@dataclass(frozen=True, eq=False)
class Described:
    """Hold a network, the strategy that it runs by, and the content of the hardware file that it is planned for."""

    graph: Graph
    topology: Topology
    schema: Schema
    strategy: Strategy
    hardware: Mapping[str, Any]
    overrides: Overrides = NO_OVERRIDES
    _plans: dict[str, QuantPlan | None] = field(default_factory=dict, repr=False)

    @cached_property
    def network(self) -> Network:
        """Return the network as its own hardware file defines it.

        Raises HardwareError where the device cannot express it.
        """
        spec = load_hardware(self.hardware)
        plan = Problem(self.graph, self.topology, spec, self.schema).plan(self.strategy, self.overrides)
        return Network(self.graph, self.topology, plan)

    def site(self, kernel: Kernel, change: Change, *, narrows: bool = False) -> RepeatedKernel | None:
        """Return one kernel under a changed hardware file; None if no such file is legal, or if it changes nothing.

        Inputs of the kernel stay unchanged: the same scales, zero points and integer weights. `narrows` selects the
        operation that narrows its accumulator.
        """
        own = self._planned({}, self._around(kernel))
        other = own if not change else self._planned(change, self._around(kernel))
        if own is None or other is None or not _same_storage(own, other, kernel):
            return None
        numbers = other.narrowings[kernel.output] if narrows else other.kernels[kernel.node]
        return RepeatedKernel(Network(self.graph, self.topology, other), kernel, numbers)

    def legal(self, change: Change) -> HardwareSpec | None:
        """Return the changed hardware file; None where it would be rejected."""
        return _loaded(json.dumps(changed(self.hardware, change)))

    def _around(self, kernel: Kernel) -> tuple[Kernel, ...]:
        """Return the kernel, after the kernels whose accumulators it reads."""
        wanted, pending = {kernel.node}, [kernel]
        makers = {k.output: k for k in self.topology.kernels if k.form is Form.RAW}
        while pending:
            for operand in pending.pop().operands:
                maker = makers.get(operand.tensor)
                if operand.form is Form.RAW and maker is not None and maker.node not in wanted:
                    wanted.add(maker.node)
                    pending.append(maker)
        return tuple(k for k in self.topology.kernels if k.node in wanted)

    def _planned(self, change: Change, kernels: tuple[Kernel, ...]) -> QuantPlan | None:
        key = repr((sorted(change.items()), [k.node for k in kernels]))
        if key not in self._plans:
            self._plans[key] = self._plan(change, kernels)
        return self._plans[key]

    def _plan(self, change: Change, kernels: tuple[Kernel, ...]) -> QuantPlan | None:
        spec = self.legal(change)
        if spec is None:
            return None
        topology = self.topology if not change else _narrowing_as(self.topology, spec)
        try:
            planner = Problem(self.graph, topology, spec, self.schema).planner
            return planner.plan(self.strategy, self.overrides, kernels=kernels)
        except QuantpipeError:
            return None


@lru_cache(maxsize=1024)
def _loaded(text: str) -> HardwareSpec | None:
    """Return a hardware file from JSON, read once for all probes; None where it would be rejected."""
    try:
        return load_hardware(json.loads(text))
    except QuantpipeError:
        return None


def changed(hardware: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """Return the content of a hardware file with some of its fields changed.

    The file's `requantize` then applies to every op that `change` does not name.
    """
    data: dict[str, Any] = {**hardware, "ops": dict(hardware["ops"])}  # nothing below these is changed in place
    if "requantize" in change:
        _clear(data)
    for name, value in change.items():
        head, _, rest = name.partition(".")
        if head == "ops" and rest.endswith(".requantize"):
            op = rest.removesuffix(".requantize")
            rows = data["ops"][op]
            data["ops"][op] = [_with_own(row, value) for row in (rows if isinstance(rows, list) else [rows])]
        elif not rest:
            data[name] = value
        else:
            part = data.get(head)
            short = {"accumulator": "dtype", "pad": "value", "bias": "dtype", "requantize": "kind"}
            known = part if isinstance(part, Mapping) else {} if part is None else {short.get(head, "value"): part}
            data[head] = {**known, rest: value}
    return data


def _clear(data: dict[str, Any]) -> None:
    for op, rows in data["ops"].items():
        listed = rows if isinstance(rows, list) else [rows]
        data["ops"][op] = [{k: v for k, v in row.items() if k != "requantize"} for row in listed]


def _with_own(row: Mapping[str, Any], value: Any) -> dict[str, Any]:
    types = row["in"] if isinstance(row["in"], list) else [row["in"]]
    return dict(row) if "float32" in types else {**row, "requantize": value}


def _narrowing_as(topology: Topology, spec: HardwareSpec) -> Topology:
    """Return the same topology with signatures that narrow as the file now defines."""
    found: dict[str, tuple[OpSignature, ...]] = {}
    own = any(s.requantize is not None for rows in spec.ops.values() for s in rows)
    for kernel in topology.kernels:
        rows = topology.signatures.get(kernel.node, ())
        if own and not rows:  # a topology names signatures only where they decide something
            rows = tuple(s for s in spec.ops.get(kernel.op, ()) if s.is_integer)
        now = {(s.inputs, s.outputs, s.when): s.requantize for s in spec.ops.get(kernel.op, ())}
        found[kernel.node] = tuple(replace(s, requantize=now.get((s.inputs, s.outputs, s.when))) for s in rows)
    return replace(topology, signatures=found)


def _same_storage(own: QuantPlan, other: QuantPlan, kernel: Kernel) -> bool:
    """Return whether a kernel reads the same weights in both plans: a narrower accumulator may raise their scales."""
    if kernel.weight is None:
        return True
    a, b = own.weights[kernel.weight], other.weights[kernel.weight]
    return a.digest == b.digest
