"""Scale groups and weight sites: which tensors share one scale, one bit width, one decision.

Same-scale ops tie their ports together (union-find). Inside a group the statistics that count are those of the winning
side: the inputs of pools and reshapes (their results are parts of them), the results of concatenations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quantpipe.annotate.unionfind import UnionFind
from quantpipe.graph.view import Graph
from quantpipe.oprules import Family, Winner, rule_of
from quantpipe.types import (
    DType,
    Edge,
    Form,
    Granularity,
    HardwareSpec,
    Kernel,
    OpSignature,
    ScaleGroup,
    Schema,
    WeightSite,
)


def scale_groups(
    graph: Graph, spec: HardwareSpec, kernels: Sequence[Kernel], dtypes: Mapping[str, DType], edges: Sequence[Edge]
) -> tuple[ScaleGroup, ...]:
    """All groups, in order of their first tensor. `dtypes` are the stored tensors with their types."""
    stored = _in_order(graph, dtypes)
    ties = UnionFind(stored)
    derived: set[str] = set()
    for kernel in kernels:
        rule = rule_of(graph.by_name[kernel.node])
        if rule is None or rule.family not in (Family.MOVE, Family.CLAMP) or kernel.form is not Form.QUANTIZED:
            continue
        for operand in kernel.operands:
            ties.union(operand.tensor, kernel.output)
        if rule.winner is Winner.INPUT:
            derived.add(kernel.output)
        else:
            derived.update(o.tensor for o in kernel.operands)
    readers = edges_by_tensor(edges)
    groups = []
    for members in ties.sets():
        sources = tuple(m for m in members if m not in derived) or members
        bits = min(min(dtypes[m].bits for m in members), spec.activations.bits)
        groups.append(
            ScaleGroup(members[0], members, sources, dtypes[members[0]], bits, _reading(members, readers, graph))
        )
    return tuple(groups)


def weight_sites(
    graph: Graph,
    spec: HardwareSpec,
    schema: Schema,
    signatures: Mapping[str, OpSignature],
    kernels: Sequence[Kernel],
    edges: Sequence[Edge],
) -> tuple[WeightSite, ...]:
    """One site per constant: a weight with several users stays one tensor."""
    users: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        if kernel.weight is not None:
            users.setdefault(kernel.weight, []).append(kernel)
    readers = edges_by_tensor(edges)
    sites = []
    for tensor, found in users.items():
        nodes = tuple(k.node for k in found)
        node = graph.by_name[nodes[0]]
        rule = rule_of(node)
        port = rule.weight if rule is not None and rule.weight is not None else 1
        dtype = signatures[nodes[0]].input(port)
        channel_axis = rule.channel_axis(node, graph) if rule is not None else 0
        axis = channel_axis if schema.weights.granularity is Granularity.PER_CHANNEL else None
        keys = tuple(e.key for e in readers.get(tensor, ()) if e.consumer in nodes)
        sites.append(WeightSite(tensor, nodes, dtype, channel_axis, axis, min(dtype.bits, spec.weights.bits), keys))
    return tuple(sites)


def _in_order(graph: Graph, stored: Mapping[str, DType]) -> list[str]:
    """Stored tensors in the order in which the graph makes or first reads them."""
    order = [i.name for i in graph.inputs]
    for node in graph.nodes:
        order += [t for t in node.inputs if t] + [t for t in node.outputs if t]
    return [t for t in dict.fromkeys(order) if t in stored]


def edges_by_tensor(edges: Sequence[Edge]) -> dict[str, list[Edge]]:
    """Tensor -> the edges that read it, in order."""
    found: dict[str, list[Edge]] = {}
    for edge in edges:
        found.setdefault(edge.tensor, []).append(edge)
    return found


def _reading(members: Sequence[str], readers: Mapping[str, Sequence[Edge]], graph: Graph) -> tuple[str, ...]:
    """The edges that read a group's tensors; a tensor that leaves the graph is read by its output."""
    keys = [e.key for member in members for e in readers.get(member, ())]
    for member in members:
        producer = graph.producers.get(member)
        if member in graph.output_names and producer is not None:
            keys.append(Edge(producer.name, member, member, 0).key)
    return tuple(keys)
