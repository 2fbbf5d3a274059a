"""Attribute the error of a plan: a row per stored tensor, weight and bias, with its own and the accumulated error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from quantpipe.data.subset import First
from quantpipe.evaluate.channels import constant_rows
from quantpipe.evaluate.layers import layer_row, layer_sums
from quantpipe.evaluate.overflow import overflow_report
from quantpipe.evaluate.spending import UNLIMITED, Spending
from quantpipe.explain.cause_row import cause_row
from quantpipe.explain.local_split import local_splits
from quantpipe.explain.passing import passing_rows
from quantpipe.explain.sensitivity import Alone, AloneMeasure, Exchanged, QuantizedParts, Wanted, by_cost
from quantpipe.graph.view import Graph
from quantpipe.metrics.reference import Compared
from quantpipe.option_checks import matching
from quantpipe.scoring.precision import moves_of, named
from quantpipe.simulate.simulator import simulate
from quantpipe.types import Accumulate, AccumulatorRow, CauseKind, CauseRow, DType, QuantPlan, Samples, Sum, Topology

FEWEST = 4
"""Tensors, weights and biases that are measured alone, however little time there is."""

INPUT = "input"
"""The role of the model's own inputs."""


class Causes:
    """Measure what each number of a plan costs, on a few samples."""

    def __init__(
        self, graph: Graph, topology: Topology, plan: QuantPlan, samples: Samples, *, compared: Compared,
        per_channel: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._graph, self._topology, self._plan = graph, topology, plan
        numbers = QuantizedParts.of(graph, topology, plan)
        self.left_out: list[str] = []
        self._by_channel = per_channel_names((*numbers.quantizers, *numbers.constants), per_channel)
        simulation = self._simulation = simulate(graph, topology, plan)
        self._measure = AloneMeasure(graph, numbers, samples, compared=compared)
        # Of a heavy model, the part that it is screened on: its tensors have elements enough.
        self._few = First(samples, self._measure.screened_samples)
        self._sums = layer_sums(graph, plan, simulation, self._few, by_channel=self._by_channel)
        found = overflow_report(graph, topology, plan, simulation, samples=samples)
        self._overflow = {row["tensor"]: row["share"] for row in found}
        self.accumulators = accumulator_rows(topology, plan, self._overflow)
        self._roles = roles_of(graph, [kernel.node for kernel in topology.kernels])

    @property
    def evaluations(self) -> int:
        """Return how many times the float model was run, in whole or in part, over the samples."""
        return self._measure.evaluations

    @property
    def passes(self) -> float:
        """Return these runs as a number of whole passes over the samples."""
        return self._measure.passes

    def rows(
        self,
        split: int,
        show: Callable[[int, int, str], None],
        *,
        most: int | None = None,
        spending: Spending = UNLIMITED,
    ) -> list[CauseRow]:
        """Return a row for everything that is quantized, worst first.

        Rounding and clipping are measured apart for `split` of the worst tensors. `show` is called with the progress.
        `most` tensors, weights and biases, those with the most noise of their own, are measured; None: all. Once
        `spending` is over, those with less noise are not.
        """
        measure = self._measure
        every = [
            Wanted(name) for name in (*self._noisiest(measure.tensors, most), *self._noisiest(measure.constants, most))
        ]
        if spending.limit < math.inf:
            every = self._within(every, spending)
        alone = measure.first(every, split, show)
        order = by_cost(alone)
        # Few nodes fall into finer roles than all of them do.
        self._roles |= roles_of(self._graph, [node for name in order[:split] if (node := self._node(name))])
        rows = {name: self._row(name, alone[name]) for name in order}
        worst = [n for n in order if n in measure.tensors][:split]
        split_halves(rows, worst, measure)
        graph, topology, plan, simulation = self._graph, self._topology, self._plan, self._simulation
        passing = passing_rows(graph, topology, plan, simulation, samples=self._few)
        for row in passing:
            row["overflow"], row["role"] = (
                self._overflow.get(row["tensor"], 0.0),
                self._roles.get(row["node"], row["role"]),
            )
        rows |= {row["tensor"]: row for row in passing}
        wrapped = [row["tensor"] for row in passing if row["overflow"]][:split]
        parts = local_splits(
            graph, topology, plan, simulation, samples=self._few, tensors=[*worst, *wrapped],
            constants=measure.constants,
        )  # fmt: skip
        for name, part in parts.items():
            rows[name]["split"] = part
        return list(rows.values())

    def _within(self, every: list[Wanted], spending: Spending) -> list[Wanted]:
        """Return as many as the time left is enough for, by the time of the first one; at least `FEWEST`."""
        begin = spending.spent
        self._measure.measure(every[:1], batches=self._measure.screened)
        took = spending.spent - begin
        count = max(FEWEST, int((spending.limit - spending.spent) / took)) if took > 0 else len(every)
        noise = sorted(every, key=lambda one: -self._noise(one.name))
        self.left_out = [one.name for one in noise[count:]]
        return [one for one in every if one.name not in {*self.left_out}]

    def _noisiest(self, names: Iterable[str], most: int | None) -> Sequence[str]:
        """Return the names with the largest loss of their own signal (no limit: all); unknown ones come first."""
        every = list(names)
        return every if most is None else sorted(every, key=lambda name: -self._noise(name))[:most]

    def _noise(self, name: str) -> float:
        """Return the error of quantizing this alone, at its own place, as a share of its mean square."""
        if (one := self._measure.constants.get(name)) is not None:
            return one.noise()
        if (sums := self._sums.get(name)) is None:
            return np.inf
        row = layer_row(name, sums, self._plan.quantizers[name])
        return np.inf if self._overflow.get(name) else float(row["rounding"]) + float(row["saturation"])

    def _row(self, name: str, alone: Alone) -> CauseRow:
        one = self._measure.constants.get(name)
        if one is not None:
            kind: CauseKind = "bias" if one.kind == "bias" else "weight"
            row = cause_row(name, kind, one.node, alone)
            row["role"], row["bits"] = self._roles.get(one.node, one.node), one.bits
            row["before"], row["after"] = one.moments()
            if name in self._by_channel:
                site = self._topology.weight_of.get(name)
                row["channels"] = constant_rows(one.real, one.held, site.channel_axis if site is not None else 0)
            return row
        node = self._node(name)
        row = cause_row(name, "tensor", node, alone)
        row["role"] = self._roles.get(node, node) if node else INPUT
        row["bits"], row["overflow"] = self._plan.quantizers[name].bits, self._overflow.get(name, 0.0)
        if (sums := self._sums.get(name)) is not None:
            local = layer_row(name, sums, self._plan.quantizers[name])
            row["accumulated"], row["saturated"] = local["sqnr_db"], local["saturated"]
            row["local_rounding"], row["local_clipping"] = local["rounding"], local["saturation"]
            row["before"], row["after"] = sums.real.row(), sums.held.row()
            row["channels"] = sums.channels.rows() if sums.channels is not None else None
        return row

    def _node(self, name: str) -> str:
        """Return the kernel's node that makes a tensor, or reads a constant; empty for an input of the model."""
        node = node_of(self._graph, name, self._measure.constants)
        return self._topology.fused_into.get(node, node)


def per_channel_names(names: Sequence[str], patterns: Sequence[str]) -> frozenset[str]:
    """Return the names that match a glob pattern of `explain.per_channel`.

    Raises ConfigError for a pattern that matches no name.
    """
    found = (matching("explain.per_channel", pattern, names, "tensor, weight or bias") for pattern in patterns)
    return frozenset(name for some in found for name in some)


def accumulator_rows(topology: Topology, plan: QuantPlan, overflowed: Mapping[str, float]) -> list[AccumulatorRow]:
    """Return how close each sum of products, or of two tensors, may come to its accumulator's limit.

    `overflowed` is the share of sums that overflowed on samples, by result, where some input can cause that.
    """
    rows: list[AccumulatorRow] = []
    for kernel in topology.kernels:
        numbers = plan.kernels.get(kernel.node)
        if not isinstance(numbers, Accumulate | Sum):
            continue
        dtype = numbers.limit.dtype if numbers.limit is not None else DType.INT32
        bias = numbers.bias if isinstance(numbers, Accumulate) else None
        top = float(2 ** (dtype.bits - 1) - 1)
        rows.append(
            {
                "node": kernel.node,
                "tensor": kernel.output,
                "accumulator": dtype.value,
                "bound": float(numbers.bound),
                "used": float(numbers.bound) / top,
                "bias": None if bias is None else float(np.abs(np.asarray(bias, np.float64)).max(initial=0.0)) / top,
                "overflowed": overflowed.get(kernel.output),
            }
        )
    return rows


def node_of(graph: Graph, name: str, constants: Mapping[str, Exchanged]) -> str:
    """Return the node that makes a tensor, or reads a constant; empty for an input of the model."""
    if (one := constants.get(name)) is not None:
        return one.node
    maker = graph.producers.get(name)
    return "" if maker is None else maker.name


def split_halves(rows: Mapping[str, CauseRow], tensors: Sequence[str], measure: AloneMeasure) -> None:
    """Measure rounding and clipping of some tensors apart, and enter them into their rows.

    The part of the samples that a heavy model is screened on decides which of the two is more.
    """
    halves = [Wanted(name, clip=not half, round=half) for name in tensors for half in (True, False)]
    for one, found in zip(halves, measure.measure(halves, batches=measure.screened), strict=True):
        rows[one.name]["rounding" if one.round else "clipping"] = found.loss


def roles_of(graph: Graph, nodes: Sequence[str]) -> dict[str, str]:
    """Return the role of each of some nodes, in words: one for the same place of repeated blocks."""
    return {node: named(move) for move in moves_of(graph, frozenset(nodes)) for node in move.nodes}
