"""Cut the float model into stretches: a change after a cut starts from the tensors that are kept there.

A change of one tensor affects nothing before it. So the model is cut in a few places, and the tensors that pass a cut
are computed once over all samples. Each change runs from the last cut before it to the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.graph.execute import Session
from quantpipe.graph.extract import part_of
from quantpipe.graph.view import Graph
from quantpipe.oprules.work import multiply_accumulates

COUNT = 8
"""Stretches aimed at: each costs a session, and saves less the more there are."""

ELEMENT = 24
"""Work of writing one element, in multiply-accumulates."""

State = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Stretch:
    """Some nodes in a row, `first` to `stop`. `reads`: tensors that pass the cut before it, inputs of the model too.

    `rest`: the share of a whole pass that runs from here to the end.
    """

    first: int
    stop: int
    reads: tuple[str, ...]
    rest: float


def stretches(graph: Graph, outputs: Sequence[str], most_bytes: int, count: int = COUNT) -> tuple[Stretch, ...]:
    """Return the stretches of a model on the way to some outputs, in order; one if no cut is light enough.

    `most_bytes` is the maximum of the tensors at a cut, for one sample; `count` is the desired number of stretches.
    """
    work = np.cumsum([_work(graph, number) for number in range(len(graph.nodes))])
    live = _live(graph, outputs)
    total, cuts = float(work[-1]) if len(work) else 0.0, list[int]()
    for part in range(1, count):
        wanted = total * part / count
        near = [i for i in range(len(live)) if abs(work[i] - wanted) <= total / (2 * count) and live[i] is not None]
        light = [i for i in near if _bytes(graph, live[i] or ()) <= most_bytes]
        if light:
            best = min(light, key=lambda i: (_bytes(graph, live[i] or ()), abs(work[i] - wanted)))
            cuts += [best + 1] if best + 1 < len(graph.nodes) and best + 1 not in cuts else []
    inputs = tuple(i.name for i in graph.inputs)
    found, first, reads = [], 0, inputs
    for stop in [*sorted(cuts), len(graph.nodes)]:
        before = float(work[first - 1]) if first else 0.0
        found.append(Stretch(first, stop, reads, 1.0 - before / total if total else 1.0))
        first, reads = stop, (live[stop - 1] or ()) if stop < len(graph.nodes) else ()
    return tuple(found)


class States:
    """Hold the tensors at one cut after the other, of all batches of some samples."""

    def __init__(self, graph: Graph, parts: Sequence[Stretch], batches: Sequence[State]) -> None:
        self._graph, self._parts, self._batches = graph, parts, batches
        self.passes = 0.0
        self._at, self._kept = 0, list(batches)

    def at(self, number: int) -> list[State]:
        """Return the tensors before a stretch, batch by batch."""
        if number < self._at:
            self._at, self._kept = 0, list(self._batches)
        while self._at < number:
            here, there = self._parts[self._at], self._parts[self._at + 1]
            carried = [t for t in there.reads if t in here.reads]
            made = [t for t in there.reads if t not in here.reads]
            model = part_of(self._graph, here.reads, made).model
            session = Session(model, where=self._graph.source)
            wanted = set(session.inputs)
            self._kept = [
                {**{t: state[t] for t in carried}, **session.run({t: a for t, a in state.items() if t in wanted}, made)}
                for state in self._kept
            ]
            self.passes += here.rest - there.rest
            self._at += 1
        return self._kept


def _work(graph: Graph, number: int) -> float:
    node = graph.nodes[number]
    elements = sum(prod(graph.shapes.get(t, ())) for t in node.outputs if t)
    return float(multiply_accumulates(node, graph) + ELEMENT * elements)


def _live(graph: Graph, outputs: Sequence[str]) -> list[tuple[str, ...] | None]:
    """Return per node the tensors that pass a cut after it; None where one of the outputs is made already."""
    last: dict[str, int] = {}
    needed = set(outputs)
    for number in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[number]
        if not needed.intersection(node.outputs):
            continue
        for tensor in (*node.inputs, *node.captured):
            if tensor and not graph.is_constant(tensor):
                needed.add(tensor)
                last.setdefault(tensor, number)
    passing = {i.name: None for i in graph.inputs if i.name in last}
    found: list[tuple[str, ...] | None] = []
    ended = False
    for number, node in enumerate(graph.nodes):
        passing |= {t: None for t in node.outputs if t in last}
        passing = {t: None for t in passing if last[t] > number}
        ended = ended or bool(set(outputs).intersection(node.outputs))
        found.append(None if ended or not passing else tuple(passing))
    return found


def _bytes(graph: Graph, tensors: Sequence[str]) -> int:
    return sum(prod(graph.shapes.get(t, ())) * np.dtype(graph.dtypes.get(t, "float32")).itemsize for t in tensors)
