"""The data of a report's figures, in addition to its numbers: evaluate/figures.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.thumbnail import thumbnail
from quantpipe.evaluate.beyond_ranges import stats_of
from quantpipe.graph.view import Graph
from quantpipe.pipeline.stages import Evaluation
from quantpipe.types import Profile, QuantPlan, Samples, TensorStats, Topology, WorstSampleRow
from quantpipe.types.figures import (
    ChangedSample,
    ConfusionFigure,
    Figures,
    GraphFigure,
    HistogramFigure,
    StageErrors,
    TimelineRow,
    WorstFigure,
)


@dataclass(frozen=True, eq=False)
class Way:
    """Hold the history of a run's result.

    `timeline`: the stages so far; `stages`: the errors that earlier stages left; `cycles`: of the device, by node.
    """

    timeline: Sequence[TimelineRow]
    stages: Sequence[StageErrors]
    cycles: Mapping[str, float]


HISTOGRAMS = 6
"""Tensors with the greatest errors of their own whose histograms are shown, one of each scale."""
BINS = 96
CLASSES = 30
"""More classes than these are not shown in one table: those that changed most are."""
CHANGED = 12
"""Samples that got another class are shown."""
READ = 4096
"""Samples that are read at most to show some of them."""


def figures_of(
    graph: Graph,
    topology: Topology,
    plan: QuantPlan,
    evaluation: Evaluation,
    *,
    profile: Profile | None,
    samples: Samples,
    way: Way,
) -> Figures:
    """Return the data of a run's figures.

    `profile` has the statistics of the ranges, if this run has them.
    """
    rows = evaluation.per_sample
    both = {"float_class", "found_class"} <= rows.keys()
    return {
        "graph": _graph(graph, topology, plan, {row["tensor"]: row["sqnr_db"] for row in evaluation.layers}),
        "histograms": _histograms(evaluation, topology, plan, profile),
        "confusion": _confusion(rows["float_class"], rows["found_class"]) if both else None,
        "changed": _changed(rows, samples, graph) if both else [],
        "worst": _worst(evaluation.groups.worst, samples, graph),
        "timeline": list(way.timeline),
        "stages": list(way.stages),
        "shares": shares_of(way.cycles, topology, graph),
    }


def shares_of(cycles: Mapping[str, float], topology: Topology, graph: Graph) -> dict[str, float]:
    """Return each stored tensor's share of all cycles since the stored tensor before it.

    `cycles` is by name of the node. A result that stays an accumulator counts for the stored tensor after it.
    """
    whole = sum(cycles.values())
    found: dict[str, float] = {}
    for name, number in cycles.items() if whole > 0 else ():
        tensor = _made(name, topology, graph)
        while tensor not in topology.group_of and (readers := graph.consumers.get(tensor)):
            tensor = _made(readers[0][0].name, topology, graph)
        found[tensor] = found.get(tensor, 0.0) + number / whole
    return found


def _made(node: str, topology: Topology, graph: Graph) -> str:
    """Return the output of a node, or of the kernel that it is a part of."""
    kernel = topology.kernel_of.get(topology.fused_into.get(node, node))
    return kernel.output if kernel is not None else graph.by_name[node].outputs[0]


def _graph(graph: Graph, topology: Topology, plan: QuantPlan, errors: Mapping[str, float | None]) -> GraphFigure:
    number = {node.name: at for at, node in enumerate(graph.nodes)}
    edges = [
        [number[graph.producers[tensor].name], at]
        for at, node in enumerate(graph.nodes)
        for tensor in dict.fromkeys((*node.inputs, *node.captured))
        if tensor in graph.producers
    ]
    nodes = []
    for node in graph.nodes:
        integer = topology.node_conds.get(node.name, False)
        kernel = graph.by_name.get(topology.fused_into.get(node.name, node.name), node)
        stored = next((t for n in (node, kernel) for t in n.outputs if t in plan.quantizers), None)
        bits = (plan.quantizers[stored].bits if stored is not None else ACCUMULATOR) if integer else None
        error = next((errors[t] for t in node.outputs if t in errors), None)
        nodes.append({"name": node.name, "op": node.op, "bits": bits, "sqnr_db": error})
    return {"nodes": nodes, "edges": edges}  # type: ignore[typeddict-item]


ACCUMULATOR = 32
"""Bits of a result that leaves its kernel as it was summed."""


def _histograms(
    evaluation: Evaluation, topology: Topology, plan: QuantPlan, profile: Profile | None
) -> list[HistogramFigure]:
    worst = sorted(evaluation.layers, key=lambda row: -(row["rounding"] + row["saturation"]))
    found, shown = [], set[str]()
    for row in worst if profile is not None else ():
        tensor, quantizer = row["tensor"], plan.quantizers.get(row["tensor"])
        group = topology.group_of.get(tensor)
        if group is not None and group.key in shown:
            continue  # the same values at the same scale
        stats = stats_of(profile, topology, tensor) if profile is not None else None
        if stats is None or quantizer is None or not stats.full or not stats.maximum > stats.minimum:
            continue
        low, high, counts = _bins(stats)
        scale = float(quantizer.scale)
        found.append(
            HistogramFigure(
                tensor=tensor,
                bits=quantizer.bits,
                low=low,
                high=high,
                counts=counts,
                clip_low=quantizer.low * scale,
                clip_high=quantizer.high * scale,
                scale=scale,
                saturated=row["saturated"],
            )
        )
        shown |= {group.key} if group is not None else set()
        if len(found) == HISTOGRAMS:
            break
    return found


def _bins(stats: TensorStats) -> tuple[float, float, list[int]]:
    """Return the histogram where there are values, in at most `BINS` bins."""
    counts = np.asarray(stats.histogram)
    used = np.flatnonzero(counts)
    first, last = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, len(counts))
    size = -(-(last - first) // BINS)
    last = first + size * -(-(last - first) // size)
    padded = np.pad(counts, (0, max(0, last - len(counts))))[first:last]
    width = 2 * stats.limit / len(counts)
    merged = padded.reshape(-1, size).sum(axis=1)
    return -stats.limit + first * width, -stats.limit + last * width, [int(n) for n in merged]


def _confusion(before: NDArray[np.int64], after: NDArray[np.int64]) -> ConfusionFigure:
    moved = before != after
    classes = sorted({*before.tolist(), *after.tolist()})
    if len(classes) > CLASSES:
        most = Counter([*before[moved].tolist(), *after[moved].tolist()]).most_common(CLASSES // 2)
        classes = sorted(name for name, _ in most)
    at = {name: number for number, name in enumerate(classes)}
    counts = [[0] * len(classes) for _ in classes]
    for a, b in zip(before.tolist(), after.tolist(), strict=True):
        if a in at and b in at:
            counts[at[a]][at[b]] += 1
    return {"classes": classes, "counts": counts, "changed": int(moved.sum()), "samples": len(before)}


def _changed(rows: Mapping[str, NDArray[Any]], samples: Samples, graph: Graph) -> list[ChangedSample]:
    """Return some samples that got another class, beginning with those that became wrong."""
    before, after, labels = rows["float_class"], rows["found_class"], rows.get("label")
    moved = [int(i) for i in np.flatnonzero(before != after) if i < READ]
    if labels is not None:
        moved.sort(key=lambda i: before[i] != labels[i])
    chosen = moved[:CHANGED]
    images = _images(samples, graph, set(chosen))
    return [
        {
            "index": i,
            "label": None if labels is None else int(labels[i]),
            "float_class": int(before[i]),
            "found_class": int(after[i]),
            "image": images.get(i),
        }
        for i in chosen
    ]


def _worst(rows: Sequence[WorstSampleRow], samples: Samples, graph: Graph) -> list[WorstFigure]:
    images = _images(samples, graph, {row["row"] for row in rows if row["row"] < READ})
    return [WorstFigure(**row, image=images.get(row["row"])) for row in rows]


def _images(samples: Samples, graph: Graph, wanted: set[int]) -> dict[int, str]:
    """Return a small picture of each wanted sample, where the first input is one of pictures."""
    found: dict[int, str] = {}
    if not wanted or not graph.inputs:
        return found
    name, at = graph.inputs[0].name, 0
    for batch in samples.batches(graph.batch_size):
        values = batch.inputs[name]
        for row in range(len(values)):
            if at + row in wanted and (image := thumbnail(np.asarray(values[row]))) is not None:
                found[at + row] = image
        at += len(batch)
        if at > max(wanted):
            break
    return found
