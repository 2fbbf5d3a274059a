"""A model as a chain of sections, cut where nothing but stored integers passes.

Integers are the same however the rest of the graph is written and run. So a candidate may start at any cut, from the
integers of an earlier candidate with the same numbers up to that cut. The cuts depend on the topology only: every
candidate of one runs through the same sections, whether it starts from a cut or from the samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from quantpipe.graph.extract import section_of
from quantpipe.graph.structure import nodes_digest
from quantpipe.graph.view import Graph, Node
from quantpipe.hardware.cost import ELEMENT, macs
from quantpipe.types import Form, TensorInfo, Topology

COUNT = 8
"""Sections aimed at. Each costs some calls and copies per batch, and saves the more runs the shorter it is."""

MOST_LIVE = 3
"""Tensors that may pass a cut."""


@dataclass(frozen=True, eq=False)
class Section:
    """Some nodes in a row. `feeds` are the model's own inputs that it reads; `reads` and `makes` are stored tensors.

    `integer`: every node is an integer kernel with a stored result, so that any dialect gives the same integers.
    `live` are the stored tensors that pass the cut after it; `ends` are the model's outputs, which the last section
    gives, real.
    """

    graph: Graph = field(repr=False)
    topology: Topology = field(repr=False)
    feeds: tuple[str, ...]
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    live: tuple[str, ...]
    integer: bool
    ends: tuple[str, ...] = ()

    @property
    def stored(self) -> frozenset[str]:
        """Return the tensors that are stored integers where the section begins or ends."""
        return frozenset((*self.reads, *self.makes))

    @cached_property
    def identity(self) -> str:
        """Return what it computes, but for numbers: sections of two topologies with the same one are the same."""
        nodes = [n.name for n in self.graph.nodes]
        return repr(
            (
                nodes,
                self.topology.kernels,
                self.topology.weighted,
                self.topology.loops,
                self.topology.cells,
                self.feeds,
                self.reads,
                self.makes,
                self.live,
            )
        )

    @cached_property
    def constants(self) -> str:
        """Return a digest of the numbers that are in no plan: attributes of its nodes, and constants but weights."""
        planned = {*self.topology.weight_of, *(site.tensor for site in self.topology.tables)}
        return nodes_digest(self.graph, self.graph.nodes, planned).hex()


@dataclass(frozen=True, eq=False)
class _Unit:
    """A node with the clamps it swallows; `makes` is what others may read of it."""

    nodes: tuple[Node, ...]
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    work: float


def sections(graph: Graph, topology: Topology, *outputs: str, count: int = COUNT) -> tuple[Section, ...]:
    """Return the chain that computes some outputs; nodes they do not need are left out.

    One section where no cut is legal.
    """
    units = _needed(_units(graph, topology), outputs)
    stored = {k.output for k in topology.kernels if k.form is Form.QUANTIZED}
    last_use = {t: i for i, unit in enumerate(units) for t in unit.reads} | dict.fromkeys(outputs, len(units))
    live: list[tuple[str, ...]] = []
    passing: dict[str, None] = {}
    for i, unit in enumerate(units):
        passing |= {t: None for t in unit.makes if t in last_use}
        passing = {t: None for t in passing if last_use[t] > i}
        live.append(tuple(passing))
    legal = [0 < len(t) <= MOST_LIVE and stored.issuperset(t) for t in live[:-1]]
    found, first = [], 0
    for stop in [*_chosen(graph, units, live, legal, count=count), len(units)]:
        before = live[first - 1] if first else ()
        found.append(
            _section(
                graph,
                topology,
                units[first:stop],
                before,
                live=live[stop - 1] if stop < len(units) else (),
                outputs=outputs,
            )
        )
        first = stop
    return tuple(found)


def _units(graph: Graph, topology: Topology) -> list[_Unit]:
    found = []
    for node in graph.nodes:
        if node.name in topology.fused_into:
            continue
        kernel = topology.kernel_of.get(node.name)
        members = (node, *(graph.by_name[f] for f in (kernel.fused if kernel is not None else ())))
        makes = (kernel.output,) if kernel is not None else tuple(t for t in node.outputs if t)
        inputs = [t for n in members for t in (*n.inputs, *n.captured)]
        inner = {t for n in members for t in n.outputs}
        reads = tuple(dict.fromkeys(t for t in inputs if t and t not in inner and not graph.is_constant(t)))
        elements = sum(prod(graph.shapes.get(t, ())) for t in makes)
        found.append(_Unit(members, reads, makes, sum(macs(n, graph) for n in members) + ELEMENT * elements))
    return found


def _needed(units: Sequence[_Unit], outputs: Sequence[str]) -> list[_Unit]:
    wanted, kept = set(outputs), []
    for unit in reversed(units):
        if wanted.intersection(unit.makes):
            wanted.update(unit.reads)
            kept.append(unit)
    return kept[::-1]


def _chosen(
    graph: Graph, units: Sequence[_Unit], live: Sequence[tuple[str, ...]], legal: Sequence[bool], *, count: int
) -> list[int]:
    """Cuts near equal shares of the work; among those near enough, the one that the fewest elements pass."""
    done = np.cumsum([u.work for u in units])
    share = done[-1] / count
    found: list[int] = []
    for number in range(1, count):
        near = [
            i + 1
            for i, allowed in enumerate(legal)
            if allowed and abs(done[i] - number * share) <= share / 2 and (not found or i + 1 > found[-1])
        ]
        if near:
            found.append(min(near, key=lambda i: sum(prod(graph.shapes[t]) for t in live[i - 1])))
    # What is real at the end stands alone, so that all before it can run in integers.
    last = max((i + 1 for i, allowed in enumerate(legal) if allowed), default=0)
    return [*found, last] if last > (found[-1] if found else 0) else found


def _section(
    graph: Graph,
    topology: Topology,
    units: Sequence[_Unit],
    before: Sequence[str],
    *,
    live: tuple[str, ...],
    outputs: Sequence[str],
) -> Section:
    reads = {t for u in units for t in u.reads}
    made = {t for u in units for t in u.makes}
    feeds = [i for i in graph.inputs if i.name in reads]
    entering = tuple(t for t in before if t in reads)
    makes = tuple(t for t in live if t in made)
    # An output may have been made long before: then it comes in with what passes the last cut.
    ports = {o.name: o for o in graph.outputs}
    ends = [] if live else [ports[name] for name in outputs]
    entering += tuple(o.name for o in ends if o.name in before and o.name not in entering)
    names = {n.name for u in units for n in u.nodes}
    kernels = tuple(k for k in topology.kernels if k.node in names)
    return Section(
        section_of(
            graph,
            [n for n in graph.nodes if n.name in names],
            [*feeds, *(_port(graph, topology, t) for t in entering)],
            [*(_port(graph, topology, t) for t in makes), *ends],
        ),
        topology.restricted(kernels, names),
        tuple(i.name for i in feeds),
        entering,
        makes,
        live,
        not ends and len(kernels) == len(units) and all(k.form is Form.QUANTIZED for k in kernels),
        tuple(o.name for o in ends),
    )


def _port(graph: Graph, topology: Topology, tensor: str) -> TensorInfo:
    """Every axis free: which of them grow with the batch is not known."""
    dtype = np.dtype(topology.group_of[tensor].dtype.numpy).name
    return TensorInfo(tensor, (None,) * len(graph.shapes[tensor]), dtype)
