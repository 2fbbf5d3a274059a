"""Limit the bits of tensors as a device declares for single kernels, or for the first and the last layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from quantpipe.graph.view import Graph
from quantpipe.oprules import Family, rule_of
from quantpipe.types import HardwareSpec, Kernel, ScaleGroup, WeightSite
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
