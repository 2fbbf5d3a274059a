"""Count the work of recovery before it runs, in float passes over the samples that its steps are fitted to.

Counts follow from the graph, the numbers of samples and the options alone. So whether a step fits a limit depends
neither on the machine nor on what else runs there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf, prod

from quantpipe.graph.view import Graph
from quantpipe.hardware.cost import ELEMENT, macs
from quantpipe.oprules import rule_of
from quantpipe.oprules.matrix import matrix_shape
from quantpipe.recover.reconstruct.layerwise import LEAST_ROWS, ROWS_PER_INPUT
from quantpipe.types import Topology

SIMULATED = 2.0
"""Float passes of a simulated pass: 1.9 was measured on efficientnet_lite0."""

DOUBLE = 2.0
"""Multiply-accumulates in float32 that take as long as one in float64."""

ALWAYS = 2e11
"""Multiply-accumulates that recovery may take in any case: some seconds, of which a small model needs less."""


@dataclass(frozen=True)
class PassCounts:
    """Hold what parts of a step take, in float passes over the samples that steps are fitted to.

    `judged`: a float pass over the judging samples. `sample`: the float model on one sample. `algebra` gives what a
    walk's own sums and solutions take, by its limit of rows.
    """

    judged: float
    sample: float
    algebra: Callable[[int], float]

    @property
    def judgement(self) -> float:
        """Return what it takes to judge a state."""
        return SIMULATED * self.judged

    def walk(self, rows: int | None) -> float:
        """Return what a walk takes; nothing for None, where no walk is repeated."""
        return 0.0 if rows is None else 1.0 + SIMULATED + self.algebra(rows)


@dataclass(frozen=True)
class PassLimit:
    """Limit the passes that the steps of recovery may take."""

    counts: PassCounts
    passes: float = inf

    def lacking(self, spent: float, wanted: float) -> str | None:
        """Return why work is left out that comes after other work; None if both are within the limit."""
        if spent + wanted <= self.passes:
            return None
        return (
            f"it takes about {wanted:.3g} float passes over the calibration samples, after {spent:.3g}, and "
            f"effort.recover_passes allows {self.passes:.3g}"
        )


def pass_limit(graph: Graph, topology: Topology, *, fitted: int, judged: int, passes: float = inf) -> PassLimit:
    """Return the limit of a recovery that fits its steps to so many samples and judges them on others."""
    unit = max(float_work(graph) * fitted, 1.0)
    counts = PassCounts(
        judged / max(fitted, 1), 1 / max(fitted, 1), lambda rows: walk_algebra(graph, topology, rows) / unit
    )
    return PassLimit(counts, max(passes, ALWAYS / unit))


def float_work(graph: Graph) -> float:
    """Return the work of the float model on one sample, in multiply-accumulates; writing an element is `ELEMENT`."""
    elements = sum(prod(graph.shapes.get(t, ())) for node in graph.nodes for t in node.outputs if t)
    whole = sum(macs(node, graph) for node in graph.nodes) + ELEMENT * elements
    return whole / (graph.fixed_batch or 1)


def walk_algebra(graph: Graph, topology: Topology, rows: int) -> float:
    """Return the multiply-accumulates of a walk's moments and solutions, those in float64 as several."""
    return sum(_of_layer(shape, rows) for shape in _matrices(graph, topology))


def _of_layer(shape: tuple[int, int, int], most: int) -> float:
    groups, outs, width = shape
    rows = min(max(ROWS_PER_INPUT * width, LEAST_ROWS), most)
    moments = rows * groups * width * (width / 2 + min(2 * outs, width))
    solution = groups * width**2 * (width + 3 * outs)
    return moments + DOUBLE * solution


def _matrices(graph: Graph, topology: Topology) -> Iterable[tuple[int, int, int]]:
    """Yield `[G, O, K]` of each weight that a walk solves."""
    for kernel in (*topology.kernels, *topology.weighted):
        rule, node = rule_of(graph.by_name[kernel.node]), graph.by_name[kernel.node]
        if kernel.weight is None or rule is None or rule.matrix is None or topology.weight_of[kernel.weight].frozen:
            continue
        yield matrix_shape(rule.matrix, node, graph.shapes[kernel.weight])
