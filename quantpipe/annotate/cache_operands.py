"""New keys and values that come to the bits of a cache where they join it.

A tensor has one type, and ops that move values keep it. So the few bits of a cache would reach back to the rotation of
new keys, from there to the queries, which share its sines, and to the scores. Where the device brings stored integers
to another scale, new values keep the device's bits up to the cache instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from quantpipe.annotate.fixed_operands import rescales
from quantpipe.graph.view import Graph
from quantpipe.hardware.storage import Signatures, StorageTypes
from quantpipe.oprules import Family, rule_of
from quantpipe.oprules.cache_paths import caches_of
from quantpipe.types import DType, Form, HardwareSpec, Kernel


def with_new_values_apart(
    graph: Graph, spec: HardwareSpec, kernels: Sequence[Kernel], ways: Signatures, *, stored: Mapping[str, DType]
) -> list[Kernel]:
    """Return the kernels; those that join new values to a cache of fewer bits read them at a scale of their own.

    Values that one kernel makes for the cache alone, and can store as the cache, are left: it rounds once.
    `ways`: kernel node -> its signatures. `stored`: tensor -> its type.
    """
    joins = _joins(graph, spec)
    apart = [_apart(k, [o.tensor for o in k.operands if o.tensor != joins.get(k.node, o.tensor)]) for k in kernels]
    if apart == list(kernels):
        return apart
    types = StorageTypes(apart, ways, stored)
    made = {k.output: k for k in kernels}
    found = []
    for kernel in kernels:
        held, past = types.options(kernel.output), joins.get(kernel.node)
        others = [o.tensor for o in kernel.operands if past not in (None, o.tensor)]
        found.append(_apart(kernel, [t for t in others if not _is_direct(graph, spec, t, held, made=made, ways=ways)]))
    return found


def _joins(graph: Graph, spec: HardwareSpec) -> dict[str, str]:
    """Return a mapping: node on the path of a cache, of fewer bits than the device's -> what it reads of the path."""
    found: dict[str, str] = {}
    if spec.cache is None or not rescales(spec):
        return found
    for cache in caches_of(graph):
        tensor = cache.past
        for name in cache.nodes:
            if (spec.cache.keys if cache.keys else spec.cache.values).bits < spec.activations.bits:
                found[name] = tensor
            tensor = graph.by_name[name].outputs[0]
    return found


def _apart(kernel: Kernel, tensors: Sequence[str]) -> Kernel:
    """Return a kernel by which these operands, as far as they are stored, are rescaled."""
    marked = [
        replace(o, rescaled=True) if o.tensor in tensors and o.form is Form.QUANTIZED else o for o in kernel.operands
    ]
    return replace(kernel, operands=tuple(marked))


def _is_direct(
    graph: Graph,
    spec: HardwareSpec,
    tensor: str,
    held: Sequence[DType],
    *,
    made: Mapping[str, Kernel],
    ways: Signatures,
) -> bool:
    """Return whether what makes a tensor for one reader, moves aside, reads the device's bits and can write `held`."""
    while len(graph.consumers.get(tensor, ())) == 1 and tensor not in graph.output_names:
        kernel = made.get(tensor)
        if kernel is None:
            return True  # a float, which is quantized to any bits
        rule = rule_of(graph.by_name[kernel.node])
        if rule is None or rule.family is not Family.MOVE:
            ports = [o.port for o in kernel.operands]
            wide = [s for s in ways[kernel.node] if all(s.input(p).bits >= spec.activations.bits for p in ports)]
            return any(d in held for s in wide for d in s.outputs)
        if len(kernel.operands) > 1:
            return False
        tensor = kernel.operands[0].tensor
    return False
