"""The caches of a decoder that enter and leave the integer model as integers, and why others do not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from quantpipe.errors import HardwareError
from quantpipe.graph.view import Graph
from quantpipe.oprules.cache_paths import FoundCache, caches_of, is_static, other_readers
from quantpipe.types import CacheSite, Form, HardwareSpec, Kernel, Reason, ScaleGroup

NO_PATHS: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CacheSites:
    """Hold the caches in integers, and for each other one (by its input) why its ports stay in float."""

    sites: tuple[CacheSite, ...]
    real: Mapping[str, str]


def on_paths(graph: Graph, spec: HardwareSpec) -> Collection[str]:
    """Return the nodes that lead from a cache's input to its output, on a device that holds caches in integers."""
    if spec.cache is None:
        return NO_PATHS
    return frozenset(name for cache in caches_of(graph) for name in cache.nodes)


def cache_bits(graph: Graph, spec: HardwareSpec) -> dict[str, int]:
    """Return a mapping: tensor of a cache's path -> the bits that the device holds it in, at most."""
    if spec.cache is None:
        return {}
    found: dict[str, int] = {}
    for cache in caches_of(graph):
        tensors = (cache.past, *(graph.by_name[name].outputs[0] for name in cache.nodes))
        found |= dict.fromkeys(tensors, (spec.cache.keys if cache.keys else spec.cache.values).bits)
    return found


def cache_sites(
    graph: Graph,
    spec: HardwareSpec,
    kernels: Sequence[Kernel],
    groups: Sequence[ScaleGroup],
    *,
    reasons: Mapping[str, Reason],
) -> CacheSites:
    """Return the caches whose input and output share a scale, so that a present is the next past as it is.

    `reasons`: why nodes stay in float. Raises HardwareError for a cache that does not have the device's length.
    """
    if spec.cache is None:
        return CacheSites((), {})
    sites, real = [], {}
    group_of = {tensor: group.key for group in groups for tensor in group.tensors}
    stored = {kernel.node for kernel in kernels if kernel.form is Form.QUANTIZED}
    for cache in caches_of(graph):
        _refuse_length(graph, spec, cache)
        why = _why_real(graph, cache, stored, group_of, reasons=reasons)
        if why is None:
            dtype = spec.cache.keys if cache.keys else spec.cache.values
            sites.append(CacheSite(cache.past, cache.present, cache.nodes, dtype, cache.keys))
        else:
            real[cache.past] = why
    return CacheSites(tuple(sites), real)


def _why_real(
    graph: Graph,
    cache: FoundCache,
    stored: Collection[str],
    group_of: Mapping[str, str],
    *,
    reasons: Mapping[str, Reason],
) -> str | None:
    """Return why the ports of a cache stay in float, or None."""
    for name in cache.nodes:
        if name not in stored:
            why = f": {reasons[name]}" if name in reasons else ""
            return f"{name} ({graph.by_name[name].op}) runs in float{why}"
    if others := other_readers(graph, cache):
        return f"{others[0]} reads the input, too"
    if cache.past not in group_of or group_of[cache.past] != group_of.get(cache.present):
        return "its input and its output have scales of their own"
    return None


def _refuse_length(graph: Graph, spec: HardwareSpec, cache: FoundCache) -> None:
    length = spec.cache.length if spec.cache is not None else None
    if length is None:
        return
    static, sizes = is_static(graph, cache), graph.shapes[cache.past]
    if static and length in sizes[1:-1]:
        return
    found = f"has the shape {list(sizes)}" if static else "grows with each step"
    raise HardwareError(
        f"the cache {cache.past!r} {found}, and {spec.name} holds rings of {length} positions (cache.length); legal "
        f"are a model with static caches of {length} positions, and hardware.cache.length=null",
        stage="annotate",
        where=cache.past,
    )
