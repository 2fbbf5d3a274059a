"""Second moments of every layer's input in the float model: collected once, good for weights of any bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil

import numpy as np

from quantpipe.calibrate.passes import execution_order, fetched_bytes
from quantpipe.graph.execute import Session
from quantpipe.graph.outputs import with_outputs
from quantpipe.graph.view import Graph
from quantpipe.oprules import rule_of
from quantpipe.recover.reconstruct.layerwise import LEAST_ROWS, ROWS_PER_INPUT
from quantpipe.recover.reconstruct.moments import MomentCollector, Moments
from quantpipe.recover.reconstruct.shrinkage import parts_of
from quantpipe.types import Kernel, Samples, Topology


def first_users(topology: Topology, graph: Graph) -> dict[str, Kernel]:
    """Return the first kernel, or node in float, that reads each weight tensor in integers as a matrix.

    Weights of other ops are left out, and those whose integers are given.
    """
    found: dict[str, Kernel] = {}
    for kernel in (*topology.kernels, *topology.weighted):
        rule = rule_of(graph.by_name[kernel.node])
        if kernel.weight is None or topology.weight_of[kernel.weight].frozen:
            continue
        if rule is not None and rule.matrix is not None:
            found.setdefault(kernel.weight, kernel)
    return found


def float_moments(
    graph: Graph,
    topology: Topology,
    samples: Samples,
    rows: int,
    *,
    memory_mb: int,
    seed: int,
    progress: Callable[[int, int, str], None] = lambda done, total, note: None,
) -> dict[str, Moments]:
    """Return moments of the rows that each weight is multiplied by in the float model.

    As many layers are measured in one pass of the float model as fit `memory_mb`; what is sampled does not depend on
    it. The moments stay in memory: G·K² float64, per weight.

    Returns weight tensor -> its moments.
    """
    users = first_users(topology, graph)
    number = {weight: i for i, weight in enumerate(users)}
    collectors = {w: _collector(graph, kernel) for w, kernel in users.items()}
    groups = _groups(graph, users, memory_mb)
    for done, group in enumerate(groups):
        progress(done, len(groups), users[group[0]].node)
        tensors = list(dict.fromkeys(users[w].operands[0].tensor for w in group))
        inputs = {i.name for i in graph.inputs}
        fetched = [t for t in tensors if t not in inputs]
        session = Session(with_outputs(graph.model, fetched), where=graph.source) if fetched else None
        for batch_number, batch in enumerate(samples.batches(graph.batch_size)):
            values = {**batch.inputs, **(session.run(batch.inputs, fetched) if session is not None else {})}
            for weight in group:
                kernel, collector = users[weight], collectors[weight]
                node = graph.by_name[kernel.node]
                rule = rule_of(node)
                assert rule is not None and rule.matrix is not None  # noqa: S101  (chosen so in first_users)
                wanted = min(max(ROWS_PER_INPUT * collector.width, LEAST_ROWS), rows)
                count = ceil(wanted * len(batch) / len(samples))
                rng = np.random.default_rng([seed, number[weight], batch_number])
                data = values[kernel.operands[0].tensor]
                found = rule.matrix.pick(node, graph, data.shape, count, rng=rng).read(data)
                collector.sums.add(found, parts=parts_of(len(batch), len(samples)))
    return {w: c.sums.finish() for w, c in collectors.items()}


class _Collecting:
    """Sums for one weight of `groups` times `width` inputs."""

    def __init__(self, groups: int, width: int) -> None:
        self.sums, self.width = MomentCollector(groups, width), width


def _collector(graph: Graph, kernel: Kernel) -> _Collecting:
    node = graph.by_name[kernel.node]
    rule = rule_of(node)
    assert rule is not None and rule.matrix is not None  # noqa: S101  (chosen so in first_users)
    groups, _, width = rule.matrix.matrix(node, graph.constant(kernel.weight or "")).shape
    return _Collecting(groups, width)


def _groups(graph: Graph, users: Mapping[str, Kernel], memory_mb: int) -> list[Sequence[str]]:
    """Weights in execution order, divided so that the inputs of one part fit; at least one each."""
    place = {t: i for i, t in enumerate(execution_order(graph, [k.operands[0].tensor for k in users.values()]))}
    groups: list[list[str]] = []
    room = 0
    for weight in sorted(users, key=lambda w: place[users[w].operands[0].tensor]):
        factor = 1 if graph.fixed_batch is not None else graph.batch_size
        needed = factor * fetched_bytes(graph, users[weight].operands[0].tensor)
        if not groups or needed > room:
            groups.append([])
            room = memory_mb << 20
        groups[-1].append(weight)
        room -= needed
    return list(groups)
