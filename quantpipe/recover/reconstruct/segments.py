"""The order of recovery: kernels and float nodes in graph order, cut where tensors are stored.

A segment is what has to run together: a node and those producers that hand it an accumulator. Between segments only
stored tensors and real tensors live, so each segment can run alone on cached inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantpipe.graph.view import Graph
from quantpipe.types import Form, Kernel, Topology


@dataclass(frozen=True)
class Segment:
    """Describe a part of the graph between two cuts.

    `nodes` are in graph order; `inputs`, `outputs` are the tensors at its cuts.
    """

    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kernels: tuple[Kernel, ...]


def segments(graph: Graph, topology: Topology) -> list[Segment]:
    """Return all segments in graph order.

    A node whose accumulator is only read as one belongs to its reader's segment.
    """
    found: list[Segment] = []
    pending: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.name in topology.fused_into:
            continue
        kernel = topology.kernel_of.get(node.name)
        members = [node.name, *(kernel.fused if kernel is not None else ())]
        raw_operands = [o.tensor for o in kernel.operands if o.form is Form.RAW] if kernel is not None else []
        chain = [n for t in raw_operands for n in pending.get(t, [])]
        members = list(dict.fromkeys([*chain, *members]))
        if kernel is not None and kernel.form is Form.RAW:
            pending[kernel.output] = members
            consumers = graph.consumers.get(kernel.output, ())
            if kernel.output not in graph.output_names and all(
                (k := topology.kernel_of.get(r.name)) is not None and _reads_raw(k, kernel.output) for r, _ in consumers
            ):
                continue
        found.append(_segment(graph, topology, members))
    return found


def _reads_raw(kernel: Kernel, tensor: str) -> bool:
    return all(o.form is Form.RAW for o in kernel.operands if o.tensor == tensor)


def _segment(graph: Graph, topology: Topology, members: list[str]) -> Segment:
    order = {n.name: i for i, n in enumerate(graph.nodes)}
    names = sorted(members, key=order.__getitem__)
    nodes = [graph.by_name[n] for n in names]
    made = {t for n in nodes for t in n.outputs if t}
    inputs = dict.fromkeys(
        t for n in nodes for t in (*n.inputs, *n.captured) if t and t not in made and not graph.is_constant(t)
    )
    last = nodes[-1]
    kernels = tuple(topology.kernel_of[n] for n in names if n in topology.kernel_of)
    outputs = tuple(t for t in last.outputs if t)
    return Segment(tuple(names), tuple(inputs), outputs, kernels)
