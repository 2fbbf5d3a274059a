"""Divide a calibration into passes over the samples: the tensors of each, and the samples of a run.

A watched tensor stays alive to the end of a run, and a fetched one is held twice for a moment (the runtime's and ours).
So a run is planned at twice their size. Small runs cost no time (measured on efficientnet_lite0: 2, 4 and 8 images a
run take the same) and far less memory. So a run gets only as many samples as fit `RUN_MB`. When one sample's tensors do
not fit `memory_mb`, the tensors are divided into groups in execution order. Each group gets one pass, over the part of
the graph that leads to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod

import numpy as np

from quantpipe.errors import ConfigError
from quantpipe.graph.view import Graph
from quantpipe.oprules import OP_RULES, Family
from quantpipe.types import TensorStats

RUN_MB = 128
REDUCIBLE = ("float32", "float64")
"""What the runtime can reduce in the graph; tensors of other types are fetched."""
CHANNEL_AXIS = 1
"""Convolutions, pools and normalizations of ONNX have channels behind the batch."""


@dataclass(frozen=True)
class Pass:
    """One pass over all samples, `size` at a time. `reduced`: the graph gives extremes, not tensors."""

    tensors: tuple[str, ...]
    size: int
    reduced: bool


def plan_passes(graph: Graph, tensors: Sequence[str], memory_mb: int, reduced: Sequence[str] = ()) -> tuple[Pass, ...]:
    """Return the passes that measure all `tensors`; the tensors in `reduced` need extremes only.

    `memory_mb` is the memory limit in MiB.
    """
    order = execution_order(graph, tensors)
    inside = [t for t in order if t in set(reduced) and graph.dtypes[t] in REDUCIBLE]
    fetched = [t for t in order if t not in set(inside)]
    return (*_grouped(graph, inside, memory_mb, True), *_grouped(graph, fetched, memory_mb, False))


def execution_order(graph: Graph, tensors: Sequence[str]) -> list[str]:
    """Return the tensors as execution meets them, so that the first one to show a fault is where it began."""
    names = [i.name for i in graph.inputs] + [t for n in graph.nodes for t in n.outputs]
    place = {name: i for i, name in enumerate(names)}
    return sorted(dict.fromkeys(tensors), key=lambda t: place[t])


def per_channel_tensors(tensors: Sequence[str], patterns: Sequence[str]) -> frozenset[str]:
    """Return the tensors that match a glob pattern; ConfigError for a pattern that matches no tensor."""
    found: set[str] = set()
    for pattern in patterns:
        matching = {t for t in tensors if fnmatchcase(t, pattern)}
        if not matching:
            raise ConfigError(
                f"{pattern!r} matches none of the {len(tensors)} measured tensors, such as "
                f"{', '.join(list(tensors)[:3])}",
                where="calibrate.per_channel",
            )
        found |= matching
    return frozenset(found)


def lacking(
    graph: Graph,
    known: Mapping[str, TensorStats],
    tensors: Sequence[str],
    extremes_only: bool = False,
    *,
    by_channel: Collection[str] = (),
) -> list[str]:
    """Return the tensors whose statistics are not known as they are wanted, in the order of `tensors`.

    `extremes_only`: extremes suffice. Tensors in `by_channel` need statistics per channel.
    """
    found = []
    for tensor in tensors:
        stats = known.get(tensor)
        channels = tensor in by_channel and channel_axis(graph, tensor) is not None
        full = not extremes_only or tensor in by_channel
        if stats is None or (full and not stats.full) or (channels and stats.channels is None):
            found.append(tensor)
    return found


def channel_axis(graph: Graph, tensor: str) -> int | None:
    """Return the axis of a tensor on which channels lie; None when it has no axis but the batch's.

    It is the axis of the op that made the channels (the last one for a Gemm or MatMul). It is found by going back over
    nodes that keep the number of axes and move none of them.
    """
    rank = len(graph.shapes[tensor])
    if rank < 2:
        return None
    current = tensor
    while (node := graph.producers.get(current)) is not None:
        rule = OP_RULES.get(node.op)
        if rule is not None and rule.family is Family.ACCUMULATE:
            return rule.output_axis % rank
        known = [t for t in node.inputs if t and not graph.is_constant(t)]
        if not known or graph.shapes.get(known[0], ())[:2] != graph.shapes[current][:2]:
            break
        if len(graph.shapes[known[0]]) != rank or (rule is None and graph.shapes[known[0]] != graph.shapes[current]):
            break
        current = known[0]
    return CHANNEL_AXIS


def fetched_bytes(graph: Graph, tensor: str) -> int:
    """Return the bytes that one fetched sample of a tensor takes, the runtime's copy included.

    Where the model's batch is fixed, it is a whole batch.
    """
    inputs = {i.name for i in graph.inputs}
    return 0 if tensor in inputs else 2 * prod(graph.shapes[tensor]) * np.dtype(graph.dtypes[tensor]).itemsize


def _grouped(graph: Graph, tensors: Sequence[str], memory_mb: int, reduced: bool) -> list[Pass]:
    """Return neighbours together as long as one run of them fits; a tensor that does not fit at all is alone."""
    size = run_size(graph, tensors, memory_mb)
    factor = 1 if graph.fixed_batch is not None else size
    groups: list[list[str]] = []
    room = 0
    for tensor in tensors:
        needed = factor * fetched_bytes(graph, tensor)
        if not groups or needed > room:
            groups.append([])
            room = memory_mb << 20
        groups[-1].append(tensor)
        room -= needed
    return [Pass(tuple(group), size, reduced) for group in groups]


def run_size(graph: Graph, tensors: Sequence[str], memory_mb: int = RUN_MB) -> int:
    """Return samples per run: the graph's batch size, halved until the watched tensors fit (`RUN_MB` at most)."""
    if graph.fixed_batch is not None:
        return graph.fixed_batch
    per_sample = sum(fetched_bytes(graph, t) for t in tensors)
    size = graph.batch_size
    while size > 1 and per_sample * size > min(memory_mb, RUN_MB) << 20:
        size //= 2
    return size
