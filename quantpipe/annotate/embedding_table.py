"""Tables of which rows are looked up (embeddings): which constants are stored in integers, with a scale for each row.

A node that looks rows up moves no activation, so it is no kernel: it stays in float, and gives floats. Its table
is stored in integers.

Files of this feature, all `embedding_table.py`: `types`, `annotate` (decides), `lowering` (writes); numbers:
`plan/table_numbers.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from quantpipe.annotate.constraints import WHERE, Constraint, ConstraintKind
from quantpipe.errors import ConfigError, ModelError
from quantpipe.graph.external_weights import place_of, row_blocks
from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import rule_of
from quantpipe.plan.table_numbers import given_table
from quantpipe.types import (
    DType,
    Edge,
    HardwareSpec,
    Kernel,
    Reason,
    ReasonKind,
    TableLimits,
    TableNumbers,
    TableSite,
    WeightSite,
)
from quantpipe.types.embedding_table import WIDTHS

LEFT = (ReasonKind.KEPT, ReasonKind.NOT_ASKED, ReasonKind.CHOSEN)
"""Reasons of nodes that someone wants in float, with all that they read."""

STORED = "it looks rows up in a constant table, which is stored in integers, a scale for each row"

LARGEST = {TableNumbers.FLOAT32: float(np.finfo(np.float32).max), TableNumbers.FLOAT16: float(np.finfo(np.float16).max)}


def table_sites(
    graph: Graph,
    spec: HardwareSpec,
    kernels: Sequence[Kernel],
    reasons: Mapping[str, Reason],
    *,
    edges: Sequence[Edge],
    constraints: Mapping[str, Constraint],
) -> tuple[TableSite, ...]:
    """Return the tables that the device stores in integers, in graph order.

    A table is left as it is where something else reads it as floats (the file would hold it twice), where it has
    fewer bytes than `tables.min_bytes`, where a quantized file gives integers of another kind, or where integers with a
    scale for each row would take no fewer.

    `kernels`: the kernels; a table may be the weight of one as well (tied embeddings). `reasons`: float node -> why it
    is in float.
    """
    limits = spec.tables
    if limits is None:
        return ()
    users: dict[str, list[str]] = {}
    for node in graph.nodes:
        table = _table(graph, node, reasons)
        if table is not None:
            users.setdefault(table, []).append(node.name)
    inside = {(k.node, k.weight) for k in kernels}
    found = []
    for tensor, nodes in users.items():
        readers = {n.name for n, _ in graph.consumers[tensor]}
        others = {name for name in readers.difference(nodes) if (name, tensor) not in inside}
        if others or tensor in graph.output_names or not _worth(graph.shapes[tensor], limits):
            continue
        bits = _bits(tensor, limits, constraints.get(tensor), spec)
        given = graph.imported.kept_weights.get(tensor) if graph.imported is not None else None
        if given is not None:  # the integers of a quantized file are these, or none
            bits = (8,) if given_table(given, limits) is not None and 8 in bits else ()
        if bits:
            keys = tuple(e.key for e in edges if e.tensor == tensor and e.consumer in nodes)
            found.append(TableSite(tensor, tuple(nodes), bits, keys))
    return tuple(found)


def tied(
    tables: Sequence[TableSite], weights: Sequence[WeightSite], graph: Graph, spec: HardwareSpec
) -> Iterator[TableSite]:
    """Yield the tables, with the weight whose integers each has: the same numbers, with a scale for each row.

    The device has to store both alike. A table that a quantized file gives keeps its own integers.
    """
    limits = spec.tables
    alike = limits is not None and TableLimits(limits.bits, min_bytes=limits.min_bytes) == limits and 8 in limits.bits
    given = graph.imported.kept_weights if graph.imported is not None else {}
    for table in tables:
        same = (w for w in weights if alike and spec.weights.symmetric and _holds(graph, w, table))
        weight = None if table.tensor in given else next(same, None)
        yield table if weight is None else replace(table, weight=weight.tensor)


def _holds(graph: Graph, weight: WeightSite, table: TableSite) -> bool:
    """Whether a weight has the numbers of a table, and a scale for each of its rows."""
    axis, shape = weight.axis, graph.shapes[table.tensor]
    if weight.block is not None or weight.dtype is not DType.INT8 or axis is None or len(shape) != 2:
        return False
    if weight.tensor == table.tensor:
        return axis == 0
    held = [graph.constant_tensor(tensor) for tensor in (weight.tensor, table.tensor)]
    if axis != 1 or graph.shapes[weight.tensor] != shape[::-1] or any(place_of(t) is not None for t in held):
        return False
    return np.array_equal(graph.constant(weight.tensor).T, graph.constant(table.tensor))


def with_tables(reasons: Mapping[str, Reason], sites: Sequence[TableSite]) -> dict[str, Reason]:
    """Return the reasons of float nodes, where those that look rows up say how their table is stored."""
    told = dict(reasons)
    for site in sites:
        for node in site.nodes:
            told[node] = replace(told[node], text=STORED)
    return told


def refuse_overflowing(graph: Graph, sites: Sequence[TableSite], limits: TableLimits | None) -> None:
    """Reject a table that holds infinities or NaN, or rows whose scale the type of scales does not hold.

    Raises ModelError, naming the table, its first such row, and what would be legal.
    """
    if limits is None:
        return
    for site in sites:
        wrong = list(_overflowing(graph, site.tensor, limits))
        if wrong:
            row, value = wrong[0]
            raise ModelError(
                f"the table {site.tensor!r} has {len(wrong)} of {graph.shapes[site.tensor][0]} rows that no scale of "
                f"type {limits.numbers} represents: row {row} holds {value:g}. Legal are finite numbers of which a row "
                f"spans at most {_most(limits):.3g}; or leave the table in float, with "
                f"annotate.float_nodes=[{site.nodes[0]}] or hardware.tables=null",
                stage="annotate",
                where=graph.source,
            )


def _overflowing(graph: Graph, tensor: str, limits: TableLimits) -> Iterator[tuple[int, float]]:
    """Row and worst value of each row that cannot be stored."""
    table = graph.constant(tensor)
    for block in row_blocks(table):
        rows = table[block].reshape(len(table[block]), -1)
        if not rows.size:
            continue
        low, high = rows.min(axis=1), rows.max(axis=1)  # NaN wins either way
        most = np.maximum(np.abs(low), np.abs(high)).astype(np.float64)
        for row in np.flatnonzero(~(most <= _most(limits) / 2)).tolist():
            worst = low[row] if abs(low[row]) > abs(high[row]) else high[row]
            yield int(block.start) + row, float(worst)


def _most(limits: TableLimits) -> float:
    """How much a row may span: as many steps as the fewest bits have, of the largest scale; within float32 in any case.

    Half of it on either side of zero fits an offset as well.
    """
    steps = (1 << min(limits.bits)) - 1
    scale = LARGEST[limits.numbers]
    most = 2 * scale if limits.offset else steps * scale
    return min(most, LARGEST[TableNumbers.FLOAT32])


def _table(graph: Graph, node: Node, reasons: Mapping[str, Reason]) -> str | None:
    rule, reason = rule_of(node), reasons.get(node.name)
    if rule is None or reason is None or reason.kind in LEFT:
        return None
    return rule.table(node, graph)


def _worth(shape: Sequence[int], limits: TableLimits) -> bool:
    """Whether integers and scales take fewer bytes than float32 does, and it has bytes enough to matter."""
    rows, columns = shape[0], prod(shape[1:])
    held = 4 * rows * columns
    numbers = 2 if limits.offset else 1
    made = rows * (columns * max(limits.bits) // 8 + numbers * WIDTHS[limits.numbers])
    return held >= limits.min_bytes and made < held


def _bits(tensor: str, limits: TableLimits, stated: Constraint | None, spec: HardwareSpec) -> tuple[int, ...]:
    """The widths that a statement leaves; none where the table is to stay real."""
    if stated is None:
        return limits.bits
    if stated.kind is ConstraintKind.NONE:
        return ()
    if stated.kind is not ConstraintKind.ANY:
        raise ConfigError(
            f"{tensor!r} is a table of which rows are looked up, and its scales follow from its rows; legal are "
            "{kind: any, bits: N} and none",
            where=WHERE,
        )
    kept = tuple(b for b in limits.bits if b >= (stated.bits or 0))
    if not kept:
        raise ConfigError(
            f"{tensor!r} must have at least {stated.bits} bits, and {spec.name} gives it {max(limits.bits)}",
            where=WHERE,
        )
    return kept
