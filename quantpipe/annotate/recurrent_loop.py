"""Loops whose body multiplies a state by constants: recurrent layers of any length, with their products in integers.

A loop stays in float. In its body, the device takes the state in stored integers and multiplies it by an integer
weight; what a step passes on are floats, or stored integers if the device declares them.

Files of this feature, all `recurrent_loop.py`: `oprules` (finds them), `types`, `annotate` (decides), `lowering`
(writes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from quantpipe.annotate.weighted import LEFT
from quantpipe.graph.view import Graph
from quantpipe.oprules.recurrent_loop import products_of
from quantpipe.types import DType, Edge, Granularity, HardwareSpec, LoopSite, Reason, ReasonKind, ScaleGroup, WeightSite


@dataclass(frozen=True)
class Loops:
    """Hold the loops with integer products, the types of their states, and why others have no such products."""

    sites: tuple[LoopSite, ...]
    dtypes: Mapping[str, DType]
    reasons: Mapping[str, Reason]


def loop_sites(
    graph: Graph, spec: HardwareSpec, reasons: Mapping[str, Reason], stored: Mapping[str, DType]
) -> Loops:  # fmt: skip
    """Return the loops whose products the device takes in integers.

    `reasons`: float node -> why it is in float.
    """
    sites: list[LoopSite] = []
    dtypes: dict[str, DType] = {}
    told: dict[str, Reason] = {}
    for node in graph.nodes:
        reason = reasons.get(node.name)
        if reason is None or not (reason.kind in LEFT or reason.kind is ReasonKind.OP) or not node.has_body:
            continue
        found = products_of(node, graph)
        if found is None or any(_read_elsewhere(graph, weight, node.name) for _, weight in found.products):
            continue
        limits = spec.recurrent
        if limits is None:
            told[node.name] = replace(reason, text="its device does not declare recurrent layers in a loop (recurrent)")
            continue
        dtype = stored.get(found.state, limits.inputs)
        if dtype is not limits.inputs:
            said = f"its state is stored as {dtype} for others, and its products take {limits.inputs}"
            told[node.name] = replace(reason, text=said)
            continue
        if limits.cell_state is not None and found.unseen:
            said = f"no output shows what else its body carries, which its device stores as {limits.cell_state}"
            told[node.name] = replace(reason, text=said)
            continue
        other = next((t for t in found.others if stored.get(t, limits.cell_state) is not limits.cell_state), None)
        if limits.cell_state is not None and other is not None:
            said = f"{other} is stored as {stored[other]} for others, and its body carries {limits.cell_state}"
            told[node.name] = replace(reason, text=said)
            continue
        dtypes[found.state] = dtype
        carried = () if limits.cell_state is None else (found.state, *found.others)
        dtypes |= {} if limits.cell_state is None else dict.fromkeys(found.others, limits.cell_state)
        sites.append(LoopSite(node.name, found.state, found.products, carried=carried))
        many = f"its {len(found.products)} products take" if len(found.products) > 1 else "its product takes"
        said = f"it computes in float; {many} a state of {dtype} and integer weights"
        said += f", and steps pass {limits.cell_state if found.others else dtype}" if carried else ""
        told[node.name] = Reason(ReasonKind.WEIGHT_ONLY, said)
    return Loops(tuple(sites), dtypes, told)


def edges_of(graph: Graph, sites: Sequence[LoopSite]) -> Iterator[Edge]:
    """Yield the connections inside of loops that integers travel: states and each weight, to the loop itself."""
    for site in sites:
        first = len(graph.by_name[site.node].inputs)
        yield Edge(site.node, site.state, site.node, first)
        for port, weight in enumerate(dict.fromkeys(w for _, w in site.products), first + 1):
            yield Edge(weight, weight, site.node, port)
            first = port
        for port, tensor in enumerate(site.stored[1:], first + 1):
            yield Edge(site.node, tensor, site.node, port)


def loop_weights(
    spec: HardwareSpec, sites: Sequence[LoopSite], granularity: Callable[[str], Granularity], *, edges: Sequence[Edge]
) -> tuple[WeightSite, ...]:
    """Return the weights of the loops' products, `[H, C]`, with a scale for each column where they have several."""
    found: dict[str, WeightSite] = {}
    for site in sites:
        for _, weight in site.products:
            axis = 1 if granularity(weight) is Granularity.PER_CHANNEL else None
            keys = tuple(e.key for e in edges if e.tensor == weight)
            most = spec.weights.bits_in(DType.INT8)
            found[weight] = WeightSite(weight, (site.node,), DType.INT8, 1, axis, most, keys)
    return tuple(found.values())


def with_state_bits(groups: Iterable[ScaleGroup], sites: Sequence[LoopSite]) -> Iterator[ScaleGroup]:
    """Yield scale groups, cell states with all bits of their type: `activations.bits` is for others."""
    cells = {tensor for site in sites for tensor in site.stored if tensor != site.state}
    for group in groups:
        yield replace(group, max_bits=group.dtype.bits) if cells.issuperset(group.tensors) else group


def _read_elsewhere(graph: Graph, weight: str, loop: str) -> bool:
    readers = {reader.name for reader, _ in graph.consumers.get(weight, ())}
    return readers != {loop} or weight in graph.output_names
