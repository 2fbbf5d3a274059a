"""Find reasons against integers in calibrated ranges: masks, outliers, tensors that never varied, parts far apart.

One scale serves all values of a tensor. A mask of -3.4e38 may be added to attention scores, or a Concat may join boxes
of several hundred with probabilities. Then the step of the common scale is larger than every value that matters. A
tensor that depends on an input may be constant in all calibration samples, as the mask of samples without padding. Its
range is not valid for other samples.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from quantpipe.annotate.tail import computes
from quantpipe.graph.view import Graph, Node
from quantpipe.oprules.masks import ADDING, JOINING, OF_SHAPES, SELECTING
from quantpipe.types import Kernel, Profile, TensorStats, Topology

MASK_RATIO = 1e4
"""A sentinel is so many times as large as the values it is added to: eight bits keep none of these next to it."""
TWO_VALUED_RATIO = 64.0
"""The same of a mask that is 0 or one other value, such as -10000: eight bits keep two steps of the rest a side."""

APART_RATIO = 100.0
"""Parts of a Concat whose ranges differ by more leave the smaller one two levels of 255, or fewer."""


OUTLIER_RATIO = 64.0
"""The largest value over what nine in ten do not reach: of 8 bits it leaves these two steps to each side."""
MOST = 0.9
"""The share of values that lie below outliers, at least."""


class FindingKind(StrEnum):
    """Name a reason."""

    MASK = "mask"
    CONSTANT = "constant in calibration"
    APART = "ranges far apart"
    OUTLIERS = "outliers"


@dataclass(frozen=True)
class RangeFinding:
    """State one thing about `tensor`, at `node`, in words."""

    kind: FindingKind
    node: str
    tensor: str
    note: str

    @property
    def said_of_node(self) -> bool:
        """Return whether what the node gives suffers, and not the tensor alone: operands that do not go together."""
        return self.kind in (FindingKind.MASK, FindingKind.APART)


def findings_of(graph: Graph, topology: Topology, profile: Profile, nodes: Collection[str]) -> tuple[RangeFinding, ...]:
    """Return the findings about ranges of operands, in execution order, outliers after the rest.

    `profile`: Statistics of activations; tensors without any are passed over. `nodes`: The kernels of the topology that
    could run in float; outliers are looked for in the operands of all weights.
    """
    found: list[RangeFinding] = []
    for kernel in topology.kernels:
        if kernel.node not in nodes:
            continue
        node = graph.by_name[kernel.node]
        found += _constant(graph, node, kernel, profile.tensors)
        if node.op in (*ADDING, *SELECTING):
            found += _mask(graph, node, kernel, profile.tensors)
        if node.op in JOINING:
            found += _apart(node, kernel, profile.tensors)
    found += _makers(graph, topology, nodes, [f for f in found if f.kind is FindingKind.MASK])
    named = {finding.tensor for finding in found}
    readers = {k.operands[0].tensor: k.node for k in reversed(topology.kernels) if k.weight is not None}
    for tensor, node_name in reversed(readers.items()):
        if tensor in profile.tensors and tensor not in named and (note := outliers_of(profile.tensors[tensor])):
            found.append(RangeFinding(FindingKind.OUTLIERS, node_name, tensor, note))
    return tuple(found)


def _constant(graph: Graph, node: Node, kernel: Kernel, stats: Mapping[str, TensorStats]) -> list[RangeFinding]:
    return [
        RangeFinding(
            FindingKind.CONSTANT,
            node.name,
            tensor,
            f"{tensor} depends on an input and was {stats[tensor].minimum:.4g} in all calibration samples; its range "
            "is not valid for other samples",
        )
        for tensor in dict.fromkeys(o.tensor for o in kernel.operands)
        if tensor in stats and _never_varied(stats[tensor]) and depends_on_values(graph, tensor)
    ]


def outliers_of(stats: TensorStats) -> str | None:
    """Return, in words, that few values of a tensor are so large that one scale leaves the others next to nothing."""
    if not stats.full or stats.nonfinite or not stats.limit > 0:
        return None
    half = len(stats.histogram) // 2
    sizes = np.cumsum(stats.histogram[half:] + stats.histogram[half - 1 :: -1])
    below = (int(np.searchsorted(sizes, MOST * sizes[-1])) + 1) * stats.limit / half
    if not sizes[-1] or stats.absolute_maximum < OUTLIER_RATIO * below:
        return None
    return f"{stats.name} reaches {stats.absolute_maximum:.3g}, and nine in ten of its values are below {below:.3g}"


def _never_varied(stats: TensorStats) -> bool:
    return stats.count > 1 and stats.minimum == stats.maximum and not stats.nonfinite


def depends_on_values(graph: Graph, tensor: str) -> bool:
    """Return whether a tensor depends on the values of an input of the model, and not on shapes alone."""
    read = (t for node in upstream_of(graph, tensor) for t in (*node.inputs, *node.captured))
    return any(name in graph.input_names for name in (tensor, *read))


def upstream_of(graph: Graph, tensor: str) -> Iterator[Node]:
    """Yield the nodes on whose values a tensor depends, the nearest first; shapes alone are no values."""
    waiting, seen = [tensor], {tensor}
    while waiting:
        producer = graph.producers.get(waiting.pop(0))
        if producer is None or producer.op in OF_SHAPES:
            continue
        yield producer
        new = dict.fromkeys(t for t in (*producer.inputs, *producer.captured) if t and t not in seen)
        seen.update(new)
        waiting += new


def readers_of(graph: Graph, nodes: Collection[str]) -> frozenset[str]:
    """Return the nodes that read results of `nodes`, also after ops that only move values and so keep the range."""
    found: set[str] = set()
    waiting = [graph.by_name[name] for name in nodes]
    while waiting:
        readers = [r for t in waiting.pop().outputs for r, _ in graph.consumers.get(t, ()) if r.name not in found]
        found.update(reader.name for reader in readers)
        waiting += [reader for reader in readers if not computes(reader)]
    return frozenset(found)


def _mask(graph: Graph, node: Node, kernel: Kernel, stats: Mapping[str, TensorStats]) -> list[RangeFinding]:
    """Find a sentinel among the operands: so large that nothing is left of the others where they share its scale."""
    sizes = {o.tensor: _size(graph, o.tensor, stats) for o in kernel.operands}
    sizes |= {t: _size(graph, t, stats) for t in node.inputs if graph.is_constant(t) and t not in sizes}
    known = {tensor: size for tensor, size in sizes.items() if size is not None}
    if len(known) < 2:
        return []
    mask = max(known, key=lambda tensor: known[tensor])
    values = {t: s for t, s in known.items() if t != mask and not graph.is_constant(t) and s > 0}
    if not values or not _is_sentinel(graph, node, mask, stats):
        return []
    least = min(values, key=lambda tensor: values[tensor])
    ratio = TWO_VALUED_RATIO if _is_two_valued(graph, mask, stats) else MASK_RATIO
    if known[mask] < ratio * values[least]:
        return []
    note = f"{mask} masks with values up to {known[mask]:.3g}; {least} (up to {values[least]:.3g}) is lost next to them"
    return [RangeFinding(FindingKind.MASK, node.name, mask, note)]


def _makers(
    graph: Graph, topology: Topology, nodes: Collection[str], masks: Sequence[RangeFinding]
) -> list[RangeFinding]:
    """Find the nodes that compute a mask from inputs, without weights.

    A mask is often (1 - x) · -3.4e38. Where x = 1 is stored as 0.992, it hides everything.
    """
    found: dict[str, RangeFinding] = {}
    for mask in masks:
        names = [node.name for node in upstream_of(graph, mask.tensor)]
        kernels = [topology.kernel_of[name] for name in names if name in topology.kernel_of]
        if any(kernel.weight is not None for kernel in kernels):
            continue
        note = f"it computes {mask.tensor}, a mask whose zeros must be exact"
        made = (k.node for k in kernels if k.node in nodes)
        found |= {name: RangeFinding(FindingKind.MASK, name, mask.tensor, note) for name in made if name not in found}
    return [finding for name, finding in found.items() if name not in {mask.node for mask in masks}]


def _is_sentinel(graph: Graph, node: Node, mask: str, stats: Mapping[str, TensorStats]) -> bool:
    """Return whether the large operand leaves the others as they are at some elements.

    It does where the op chooses (Where, Max, Min), or where it is near zero there.
    """
    if node.op in SELECTING:
        return True
    if graph.is_constant(mask):
        values = np.abs(graph.constant(mask)).ravel()
        return bool(values.size and values.min() <= values.max() / MASK_RATIO)
    found = stats[mask]
    if not found.full:
        return True
    middle = len(found.histogram) // 2
    return bool(found.histogram[middle - 1 : middle + 1].sum() > 0)


def _is_two_valued(graph: Graph, mask: str, stats: Mapping[str, TensorStats]) -> bool:
    """Return whether a tensor is 0 or one other value, as far as is known."""
    if graph.is_constant(mask):
        values = graph.constant(mask)
        return bool(values.size and np.all((values == 0) | (values == values.flat[np.argmax(np.abs(values))])))
    found = stats[mask]
    if not found.full or found.nonfinite:
        return False
    middle, held = len(found.histogram) // 2, np.flatnonzero(found.histogram)
    other = held[(held < middle - 1) | (held > middle)]
    return len(other) == 1 and len(held) > 1


def _apart(node: Node, kernel: Kernel, stats: Mapping[str, TensorStats]) -> list[RangeFinding]:
    sizes = {o.tensor: stats[o.tensor].absolute_maximum for o in kernel.operands if o.tensor in stats}
    sizes = {tensor: size for tensor, size in sizes.items() if size > 0}
    if len(sizes) < 2:
        return []
    least, most = min(sizes, key=lambda t: sizes[t]), max(sizes, key=lambda t: sizes[t])
    if sizes[most] < APART_RATIO * sizes[least]:
        return []
    note = f"{node.name} joins {least} (up to {sizes[least]:.3g}) and {most} (up to {sizes[most]:.3g}) under one scale"
    return [RangeFinding(FindingKind.APART, node.name, least, note)]


def _size(graph: Graph, tensor: str, stats: Mapping[str, TensorStats]) -> float | None:
    """The largest magnitude of a tensor, infinite where it holds an infinity; None where nothing is known of it."""
    if graph.is_constant(tensor):
        values = graph.constant(tensor)
        real = values.size and np.issubdtype(values.dtype, np.floating)
        return float(np.max(np.abs(values))) if real else None
    if tensor not in stats:
        return None
    return math.inf if stats[tensor].nonfinite else stats[tensor].absolute_maximum
