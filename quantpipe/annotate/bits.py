"""Limit the bits of tensors as a device declares for single kernels, or for the first and the last layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from quantpipe.graph.view import Graph, Node
from quantpipe.hardware.legality import integer_signatures
from quantpipe.oprules import Family, OpRule, rule_of
from quantpipe.types import FloatOn, HardwareSpec, Kernel, ScaleGroup, Topology, WeightSite
from quantpipe.types.kernel import KernelSite

WIDEST = 16


def limited(spec: HardwareSpec, sites: Sequence[KernelSite]) -> dict[str, int]:
    """Tensor -> the most bits that the kernels around it allow."""
    bits = {kernel.name: kernel.bits for kernel in spec.kernels}
    found: dict[str, int] = {}
    for site in sites:
        for value, tensor in site.tensors:
            if value in bits[site.kernel]:
                found[tensor] = min(found.get(tensor, 16), bits[site.kernel][value])
    return found


def held_back(graph: Graph, topology: Topology, spec: HardwareSpec) -> str | None:
    """Return which ops keep all tensors at fewer bits than the device could raise them to; None where some can be.

    A kernel of one width takes its neighbours with it, and these theirs, as no kernel stores another width.
    """
    most, usual = spec.activations.raise_to, spec.activations.bits
    if most <= usual or topology.raisable or spec.float_on is FloatOn.NONE:
        return None
    nodes = [graph.by_name[k.node] for k in topology.kernels if k.weight is None]
    ops = sorted({n.op for n in nodes if (rule := rule_of(n)) and _is_narrow(n, graph, spec, rule)})
    if not ops:
        return None
    return (
        f"no tensor can have more than {usual} bits, since {spec.name} runs {', '.join(ops)} in {usual} bits alone, "
        f"and neighbours have one width. With annotate.float_ops=[{','.join(ops)}], precision=auto may raise tensors "
        f"to {most} bits"
    )


def _is_narrow(node: Node, graph: Graph, spec: HardwareSpec, rule: OpRule) -> bool:
    """Return whether a node runs in integers, and never in more bits than usual."""
    ways = integer_signatures(spec, node, graph, rule)
    return bool(ways) and all(d.bits <= spec.activations.bits for way in ways for d in way.inputs)


def ends_of(graph: Graph, spec: HardwareSpec, kernels: Sequence[Kernel]) -> dict[str, int]:
    """Return the bits of weights and inputs of the first and the last layer, if the device declares them.

    Returns tensor or weight -> its bits.
    """
    bits = spec.first_last_bits
    found: dict[str, int] = {}
    layers = [k for k in kernels if k.weight is not None and _accumulates(graph, k)]
    if bits is not None:
        for kernel in [*layers[:1], *layers[-1:]]:
            found |= dict.fromkeys((str(kernel.weight), kernel.operands[0].tensor), bits)
    return found


def bounded_group(group: ScaleGroup, most: Mapping[str, int], ends: Mapping[str, int]) -> ScaleGroup:
    """Return a scale group with the bits declared for its tensors.

    Returns the group; itself without a declaration.
    """
    said = [ends[t] for t in group.tensors if t in ends]
    if said:
        bits = min(max(said), group.dtype.bits)
        return replace(group, max_bits=bits, min_bits=bits, raised_bits=0)
    top = min((most[t] for t in group.tensors if t in most), default=WIDEST)
    return replace(group, max_bits=min(group.max_bits, top), raised_bits=min(group.raised_bits, top))


def bounded_weight(site: WeightSite, most: Mapping[str, int], ends: Mapping[str, int]) -> WeightSite:
    """Return a weight with the bits declared for it; see `bounded_group`."""
    if site.tensor in ends:
        bits = min(ends[site.tensor], site.dtype.bits)
        return replace(site, max_bits=bits, min_bits=bits, raised_bits=0)
    top = most.get(site.tensor, WIDEST)
    return replace(site, max_bits=min(site.max_bits, top), raised_bits=min(site.raised_bits, top))


def _accumulates(graph: Graph, kernel: Kernel) -> bool:
    rule = rule_of(graph.by_name[kernel.node])
    return rule is not None and rule.family is Family.ACCUMULATE
