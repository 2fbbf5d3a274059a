"""Scale groups and weight sites: which tensors share one scale, one bit width, one decision.

Same-scale ops tie their ports together (union-find). Inside a group the statistics of one side count: the
inputs of pools and reshapes (their results are parts of them), the results of concatenations. Max, Min and
Where leave values out: an operand of theirs that something else reads keeps its range, and a scale where that is free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from types import MappingProxyType

from quantpipe.annotate.constraints import WHERE
from quantpipe.annotate.disjoint import DisjointSets
from quantpipe.annotate.edge_copies import is_copy
from quantpipe.annotate.fixed_operands import rescales as can_rescale
from quantpipe.annotate.fixed_range import FixedRange
from quantpipe.errors import ConfigError
from quantpipe.graph.view import Graph
from quantpipe.hardware.legality import integer_signatures
from quantpipe.oprules import OP_RULES, Family, OpRule, Winner, rule_of
from quantpipe.types import DType, Edge, Form, Granularity, HardwareSpec, Kernel, ScaleGroup, Topology, WeightSite


@dataclass(frozen=True)
class SolvedGroups:
    """Hold scale groups in order of their first tensor, and the kernels with rescaled operands marked."""

    groups: tuple[ScaleGroup, ...]
    kernels: tuple[Kernel, ...]


def scale_groups(
    graph: Graph,
    spec: HardwareSpec,
    kernels: Sequence[Kernel],
    dtypes: Mapping[str, DType],
    *,
    edges: Sequence[Edge],
    pins: Mapping[str, FixedRange] = MappingProxyType({}),
    least: Mapping[str, int] = MappingProxyType({}),
) -> SolvedGroups:
    """Solve the same-scale constraints.

    Where an op would tie two tensors of different pins, the pin of the result holds (without one, a pin that covers all
    operands), and the other operands are rescaled on their way in: one rescale per edge, none elsewhere.

    `edges`: the connections, for the edges of each group. `least`: the minimum bits of a tensor, where stated.
    Operands that are marked as rescaled already keep a scale of their own. Raises ConfigError for a pin that the device
    or a statement about bits rules out.
    """
    stored = _in_order(graph, dtypes)
    ties = DisjointSets(stored)
    pinned = {t: pins[t] for t in stored if t in pins}
    derived: set[str] = set()
    solved = []
    rescales = can_rescale(spec)
    for kernel in kernels:
        rule = rule_of(graph.by_name[kernel.node])
        if rule is not None and rule.tied and kernel.form is Form.QUANTIZED:
            _tie(kernel, rule, dtypes, ties=ties, pinned=pinned)
        if rule is None or not _keeps_scale(kernel, graph, spec, rule) or kernel.form is not Form.QUANTIZED:
            solved.append(kernel)
            continue
        held = {o.tensor: pinned.get(ties[o.tensor]) for o in kernel.operands}
        # What a device fixes for one operand would cut the others off: it is brought to the scale of the result.
        loose = rescales and None in held.values() and ties[kernel.output] not in pinned
        ruling = [pin for pin in held.values() if not (loose and pin is not None and pin.is_of_device)]
        common = pinned.get(ties[kernel.output]) or _covering(ruling)
        operands = []
        for operand in kernel.operands:
            own = held[operand.tensor]
            apart = own is not None and common is not None and not own.agrees(common)
            apart = apart or (loose and own is not None and own.is_of_device)
            if apart and not rescales and (met := _met(own, common)) is not None:
                own, common, apart = met, met, False
            # What else reads an operand wants all of its range, also where the result has none of it.
            wanted = rule.selects and _read_elsewhere(graph, operand.tensor, kernel)
            apart = apart or (wanted and rescales) or operand.rescaled
            operands.append(replace(operand, rescaled=apart))
            if apart:
                continue
            ties.merge(operand.tensor, kernel.output)
            if own is not None or common is not None:
                pinned[ties[kernel.output]] = own or common  # type: ignore[assignment]
            if rule.winner is Winner.OUTPUT and not wanted:
                derived.add(operand.tensor)
        if common is not None and ties[kernel.output] not in pinned:
            pinned[ties[kernel.output]] = common
        if rule.winner is Winner.INPUT and not any(o.rescaled for o in operands):
            derived.add(kernel.output)
        solved.append(replace(kernel, operands=tuple(operands)))
    readers = edges_by_tensor(edges)
    groups = []
    for members in ties.in_order():
        sources = tuple(m for m in members if m not in derived) or members
        widest = min(dtypes[m].bits for m in members)
        most = min(widest, spec.activations.bits)
        pin = pinned.get(ties[members[0]])
        fewest = max((least[m] for m in members if m in least), default=2)
        if fewest > most:  # stated: more than the device's default, where it has more
            most = min(widest, spec.activations.widest)
        if pin is not None and pin.bits is not None:
            most, fewest = min(most, pin.bits), max(fewest, min((pin.bits, *(bits for bits, _ in pin.narrower))))
        if fewest > most:
            raise ConfigError(
                f"{members[0]!r} must have at least {fewest} bits, and {spec.name} gives it {most}", where=WHERE
            )
        groups.append(
            ScaleGroup(
                members[0],
                members,
                sources,
                dtypes[members[0]],
                most,
                _reading(members, readers, graph),
                fewest,
                pin.range if pin is not None else None,
                min(widest, spec.activations.raise_to) if pin is None else 0,
                narrower=pin.narrower if pin is not None else (),
            )
        )
    return SolvedGroups(tuple(groups), tuple(solved))


def joins(topology: Topology, spec: HardwareSpec) -> tuple[Kernel, ...]:
    """Return the kernels that join several stored tensors at one scale, on a device that rescales stored integers.

    Copies of a tensor for one reader are among them: they have one operand, and the scale of the tensor. Those that
    join new positions to a cache always have one scale, so they are left out.
    """
    if not can_rescale(spec):
        return ()
    kept = {name for site in topology.caches for name in site.nodes}
    kernels = (k for k in topology.kernels if k.node not in kept)
    found = (k for k in kernels if (len(k.operands) > 1 or is_copy(k.node)) and k.form is Form.QUANTIZED)
    return tuple(k for k in found if OP_RULES[k.op].family is Family.MOVE and not all(o.rescaled for o in k.operands))


def _keeps_scale(kernel: Kernel, graph: Graph, spec: HardwareSpec, rule: OpRule) -> bool:
    """Whether a kernel stores its result at the scale of its operand, by its op or as the device forms it."""
    if rule.keeps_scale(None):
        return True
    taken = integer_signatures(spec, graph.by_name[kernel.node], graph, rule)
    return any(rule.keeps_scale(signature) for signature in taken)


def _tie(
    kernel: Kernel, rule: OpRule, dtypes: Mapping[str, DType], *, ties: DisjointSets, pinned: dict[str, FixedRange]
) -> None:
    """Give the operands that a plug-in op ties the scale of its result.

    Raises ConfigError where the types differ, or where two ranges that do not yield do.
    """
    for tensor in (o.tensor for o in kernel.operands if o.port in rule.tied):
        if dtypes[tensor] is not dtypes[kernel.output]:
            raise ConfigError(
                f"it stores {tensor!r} as it stores its result (same_scale), and the hardware file has "
                f"{dtypes[tensor]} for the one and {dtypes[kernel.output]} for the other; legal is one type for both",
                where=f"ops.{kernel.op}",
            )
        own, common = pinned.get(ties[tensor]), pinned.get(ties[kernel.output])
        if own is not None and common is not None and not own.agrees(common) and _met(own, common) is None:
            raise ConfigError(
                f"it stores {tensor!r} as it stores its result (same_scale), and both have given ranges, which "
                "differ; legal is one range for both",
                where=kernel.node,
            )
        pin = _met(own, common) or own or common
        ties.merge(tensor, kernel.output)
        if pin is not None:
            pinned[ties[kernel.output]] = pin


def _met(own: FixedRange | None, common: FixedRange | None) -> FixedRange | None:
    """The range of two tensors that share a scale where the device brings none to another; None where neither yields.

    One that does not yield is taken, of two that do the hull.
    """
    if own is None or common is None or not (own.yields or common.yields):
        return None
    if own.yields and common.yields:
        return own.joined(common)
    return common if own.yields else own


def _covering(pins: Sequence[FixedRange | None]) -> FixedRange | None:
    """The pin that holds all others, of several the most frequent one and then the first; else their hull.

    So no element of an operand saturates, whose range another operand does not have.
    """
    given = [p for p in pins if p is not None]
    if not given:
        return None
    hull = reduce(FixedRange.joined, given)
    whole = [p for p in given if p.range == hull.range]
    return max(whole, key=lambda p: sum(p.agrees(q) for q in given)) if whole else hull


def weight_sites(
    graph: Graph,
    spec: HardwareSpec,
    dtypes: Mapping[str, DType],
    granularity: Callable[[str], Granularity],
    *,
    kernels: Sequence[Kernel],
    edges: Sequence[Edge],
    least: Mapping[str, int] = MappingProxyType({}),
) -> tuple[WeightSite, ...]:
    """Return one site per constant: a weight with several users stays one tensor.

    `edges`: the connections, for the edges of each weight. `least`: the minimum bits of a weight, where stated.
    """
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
        dtype = dtypes[tensor]
        channel_axis = rule.channel_axis(node, graph) if rule is not None else 0
        axis = channel_axis if granularity(tensor) is Granularity.PER_CHANNEL else None
        keys = tuple(e.key for e in readers.get(tensor, ()) if e.consumer in nodes)
        most, fewest = spec.weights.bits_in(dtype), least.get(tensor, 2)
        if fewest > most:  # stated, as for activations
            most = spec.weights.bits_in(dtype, raised=True)
        if fewest > most:
            raise ConfigError(
                f"{tensor!r} must have at least {fewest} bits, and {spec.name} gives it {most}", where=WHERE
            )
        block = spec.weights.block
        if block is not None and block.are_real != (found[0].form is Form.FLOAT):
            block = None  # kernels in integers take no float scales
        raised = min(dtype.bits, spec.weights.raise_to) if block is None else 0
        site = WeightSite(tensor, nodes, dtype, channel_axis, axis, most, keys, fewest, block=block, raised_bits=raised)
        sites.append(site)
    return tuple(sites)


def _read_elsewhere(graph: Graph, tensor: str, kernel: Kernel) -> bool:
    """Whether a tensor is an output of the model, or read by other nodes than a kernel's."""
    readers = {reader.name for reader, _ in graph.consumers.get(tensor, ())}
    return bool(readers.difference((kernel.node, *kernel.fused))) or tensor in graph.output_names


def _in_order(graph: Graph, stored: Mapping[str, DType]) -> list[str]:
    """Stored tensors in the order in which the graph makes or first reads them."""
    order = [i.name for i in graph.inputs]
    for node in graph.nodes:
        order += [t for t in node.inputs if t] + [t for t in node.outputs if t]
    return [t for t in dict.fromkeys(order) if t in stored]


def edges_by_tensor(edges: Sequence[Edge]) -> dict[str, list[Edge]]:
    """Return a mapping: tensor -> the edges that read it, in order."""
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
