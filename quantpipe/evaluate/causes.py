"""What is wrong with a plan: a row per stored tensor, weight and bias, with its error alone and what has built up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from quantpipe.evaluate.alone import Alone, AloneMeasure, worst_first
from quantpipe.evaluate.layers import layer_row, layer_sums
from quantpipe.evaluate.overflow import overflow_report
from quantpipe.graph.view import Graph
from quantpipe.metrics.reference import Compared
from quantpipe.precision import moves_of, named
from quantpipe.simulate.simulator import simulate
from quantpipe.types import CauseRow, QuantPlan, Samples, Topology

INPUT = "input"
"""The role of the model's own inputs."""


class Causes:
    """Measure what each number of a plan costs, on a few samples."""

    def __init__(
        self, graph: Graph, topology: Topology, plan: QuantPlan, samples: Samples, *, compared: Compared
    ) -> None:
        self._graph, self._topology, self._plan = graph, topology, plan
        simulation = simulate(graph, topology, plan)
        self._sums = layer_sums(graph, plan, simulation, samples)
        found = overflow_report(graph, topology, plan, simulation, samples=samples)
        self._overflow = {row["tensor"]: row["share"] for row in found}
        self._measure = AloneMeasure(graph, topology, plan, samples, compared=compared)
        self._roles = roles_of(graph, [kernel.node for kernel in topology.kernels])

    @property
    def passes(self) -> int:
        """Return how many float passes over the samples were made."""
        return self._measure.evaluations

    def rows(self, split: int, show: Callable[[int, int, str], None]) -> list[CauseRow]:
        """Return a row for everything that is quantized, worst first.

        Args:
            split: For so many of the worst tensors, rounding and clipping are measured apart.
            show: Is told how far the work is.
        """
        measure, alone = self._measure, dict[str, Alone]()
        total = len(measure.tensors) + len(measure.constants)
        for name in (*measure.tensors, *measure.constants):
            alone[name] = measure.tensor(name) if name in measure.tensors else measure.constant(name)
            show(len(alone), total, name)
        order = worst_first({name: one.loss for name, one in alone.items()})
        # Few nodes fall into finer roles than all of them do.
        self._roles |= roles_of(self._graph, [node for name in order[:split] if (node := self._node(name))])
        rows = {name: self._row(name, alone[name]) for name in order}
        for name in [n for n in order if n in measure.tensors][:split]:
            rows[name]["rounding"] = measure.tensor(name, clip=False).loss
            rows[name]["clipping"] = measure.tensor(name, round_=False).loss
        return list(rows.values())

    def _row(self, name: str, alone: Alone) -> CauseRow:
        one = self._measure.constants.get(name)
        if one is not None:
            kind: Literal["weight", "bias"] = "bias" if one.kind == "bias" else "weight"
            row = _row(name, kind, one.node, alone)
            row["role"], row["bits"] = self._roles.get(one.node, one.node), one.bits
            row["before"], row["after"] = one.moments()
            return row
        node = self._node(name)
        row = _row(name, "tensor", node, alone)
        row["role"] = self._roles.get(node, node) if node else INPUT
        row["bits"], row["overflow"] = self._plan.quantizers[name].bits, self._overflow.get(name, 0.0)
        if (sums := self._sums.get(name)) is not None:
            local = layer_row(name, sums, self._plan.quantizers[name])
            row["accumulated"], row["saturated"] = local["sqnr_db"], local["saturated"]
            row["local_rounding"], row["local_clipping"] = local["rounding"], local["saturation"]
            row["before"], row["after"] = sums.real.row(), sums.held.row()
        return row

    def _node(self, name: str) -> str:
        """The kernel's node that makes a tensor, or reads a constant; empty for an input of the model."""
        if (one := self._measure.constants.get(name)) is not None:
            return one.node
        maker = self._graph.producers.get(name)
        return "" if maker is None else self._topology.fused_into.get(maker.name, maker.name)


def _row(name: str, kind: Literal["tensor", "weight", "bias"], node: str, alone: Alone) -> CauseRow:
    return {
        "tensor": name,
        "kind": kind,
        "node": node,
        "role": node,
        "bits": 0,
        "alone": alone.loss,
        "outputs": list(alone.outputs),
        "rounding": None,
        "clipping": None,
        "accumulated": None,
        "local_rounding": None,
        "local_clipping": None,
        "saturated": None,
        "overflow": 0.0,
        "before": None,
        "after": None,
    }


def roles_of(graph: Graph, nodes: Sequence[str]) -> dict[str, str]:
    """Return the role of each of some nodes, in words: one for the same place of repeated blocks."""
    return {node: named(move) for move in moves_of(graph, frozenset(nodes)) for node in move.nodes}
