"""Tensors that are stored in no integers of a scale of their own: raw results of kernels, and what float nodes give.

They cost nothing alone. How far they are from the float model's shows the way of an error between stored tensors.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from quantpipe.arrays import Array
from quantpipe.calibrate.passes import run_size
from quantpipe.conform.network import ACCUMULATOR
from quantpipe.evaluate.compared_models import value_names
from quantpipe.evaluate.layers import TensorMoments
from quantpipe.explain.cause_row import cause_row
from quantpipe.explain.local_split import raw_scale
from quantpipe.explain.sensitivity import Alone
from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import expose
from quantpipe.graph.view import Graph
from quantpipe.simulate.simulator import Simulation, bind
from quantpipe.types import CauseKind, CauseRow, Form, QuantPlan, Samples, Topology

REAL = ("float32", "float64")


@dataclass
class _Sums:
    signal: float = 0.0
    noise: float = 0.0
    real: TensorMoments = field(default_factory=TensorMoments)
    held: TensorMoments = field(default_factory=TensorMoments)


def passing_rows(
    graph: Graph, topology: Topology, plan: QuantPlan, simulation: Simulation, *, samples: Samples
) -> list[CauseRow]:
    """Return a row for each raw result and each real result of a float node, in the order of the model."""
    model = bind(simulation.rendered.model, simulation.weights)
    raw, real = _raw(graph, topology, plan, simulation), _real(graph, topology, plan, value_names(model))
    tensors = [*raw, *real]
    if not tensors:
        return []
    names = [*(name for name, _ in raw.values()), *real]
    simulated = Session(expose(model, names), where="simulated model")
    own = Session(expose(graph.model, tensors), where=graph.source)
    sums = PassingSums(graph, tensors)
    for batch in samples.batches(run_size(graph, tensors)):
        wanted = own.run(batch.inputs, tensors)
        found = simulated.run({**batch.inputs, **simulation.scalars}, names)
        held = {t: found[name].astype(np.float64) * scale for t, (name, scale) in raw.items()}
        sums.add(wanted, {**held, **{t: found[t] for t in real}})
    return sums.rows(raw)


def _raw(graph: Graph, topology: Topology, plan: QuantPlan, simulation: Simulation) -> dict[str, tuple[str, Array]]:
    held, found = simulation.rendered.integers, {}
    for kernel in topology.kernels:
        name, scale = f"{kernel.output}{ACCUMULATOR}", raw_scale(graph, plan, kernel.output)
        if kernel.form is Form.RAW and name in held and scale is not None:
            found[kernel.output] = held[name], scale
    return found


def _real(graph: Graph, topology: Topology, plan: QuantPlan, names: set[str]) -> list[str]:
    """Return results of float nodes, and float results of kernels, with names of their own in the simulated model."""
    return [
        t
        for node in graph.nodes
        for t in node.outputs
        if t in names and t not in plan.quantizers and graph.dtypes.get(t) in REAL
    ]


class PassingSums:
    """Hold the sums of two models' values of some tensors, in real units."""

    def __init__(self, graph: Graph, tensors: Collection[str]) -> None:
        self._graph = graph
        self._sums = {t: _Sums() for t in tensors}

    def add(self, wanted: Mapping[str, Array], found: Mapping[str, Array]) -> None:
        """Include a batch of the float model and of the other one, by tensor."""
        for tensor, sums in self._sums.items():
            if wanted[tensor].shape == found[tensor].shape:
                _add(sums, wanted[tensor].astype(np.float64), found[tensor].astype(np.float64))

    def rows(self, raw: Collection[str] = ()) -> list[CauseRow]:
        """Return a row for each tensor in the order of the model; `raw`: those that are accumulators."""
        place = {t: n for n, node in enumerate(self._graph.nodes) for t in node.outputs}
        order = sorted(self._sums, key=place.__getitem__)
        return [_row(self._graph, t, "raw" if t in raw else "float", self._sums[t]) for t in order]


def _add(sums: _Sums, expected: Array, held: Array) -> None:
    known = np.isfinite(expected) & np.isfinite(held)
    sums.real.add(expected)
    sums.held.add(held)
    sums.signal += float(np.sum(expected[known] ** 2))
    sums.noise += float(np.sum((expected[known] - held[known]) ** 2))


def _row(graph: Graph, tensor: str, kind: CauseKind, sums: _Sums) -> CauseRow:
    node = graph.producers[tensor].name
    row = cause_row(tensor, kind, node, Alone(0.0, 0, ()))
    row["bits"] = 32
    known = sums.noise > 0 and sums.signal > 0
    row["accumulated"] = 10.0 * math.log10(sums.signal / sums.noise) if known else None
    row["before"], row["after"] = sums.real.row(), sums.held.row()
    return row
