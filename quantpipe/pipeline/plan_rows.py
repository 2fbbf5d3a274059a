"""Rows of the report on choices, on look-up tables with the errors of their numbers, and on caches of decoders."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quantpipe.graph.external_weights import row_blocks
from quantpipe.graph.view import Graph
from quantpipe.plan.table_numbers import real_rows
from quantpipe.types import CacheRow, ChoiceRow, ChoiceSpace, QuantPlan, RowTable, Strategy, TableRow, Topology
from quantpipe.types.choice_key import STRUCTURAL, ChoiceKind


def choice_rows(space: ChoiceSpace, topology: Topology, strategy: Strategy) -> list[ChoiceRow]:
    """Return the chosen option per choice: bits of stored tensors and weights, and structural options."""
    found: list[ChoiceRow] = []
    for choice in space:
        name, edges = choice.subject, list(choice.edges)
        if choice.kind in STRUCTURAL:
            option = strategy.structure.by_key.get(choice.key, choice.options[0])
            found.append({"key": name, "kind": choice.kind, "value": option, "threshold": None, "edges": edges})
        if choice.kind != ChoiceKind.BITS or name not in strategy.bits:
            continue
        threshold: Any = None
        if name in strategy.ranges:
            threshold = strategy.ranges[name].threshold
        elif name in topology.weight_of and topology.weight_of[name].axis is None:
            threshold = float(np.abs(strategy.weights[name]).max())
        kind = _kind(topology, name)
        value = strategy.bits[name]
        found.append({"key": name, "kind": kind, "value": value, "threshold": threshold, "edges": edges})
    return found


def _kind(topology: Topology, name: str) -> str:
    if name in topology.weight_of:
        return "weight"
    return "table" if any(name == t.tensor for t in topology.tables) else "activation"


def cache_rows(topology: Topology, plan: QuantPlan) -> list[CacheRow]:
    """Return the caches of a decoder: those in integers, then the others with the reasons."""
    held: list[CacheRow] = [
        {
            "input": site.past,
            "output": site.present,
            "holds": "keys" if site.keys else "values",
            "stored": site.dtype.value,
            "scale": float(plan.quantizers[site.past].scale),
            "zero_point": plan.quantizers[site.past].zero_point,
        }
        for site in topology.caches
    ]
    real: list[CacheRow] = [{"input": name, "reason": why} for name, why in topology.real_caches.items()]
    return held + real


def table_rows(graph: Graph, plan: QuantPlan) -> list[TableRow]:
    """Return a row for each table of a plan, in its order."""
    return [_row(graph, table) for table in plan.tables.values()]


def _row(graph: Graph, table: RowTable) -> TableRow:
    signal = noise = 0.0
    real = graph.constant(table.tensor).reshape(table.values.shape)
    for block in row_blocks(real):
        part = np.asarray(real[block], np.float64)
        signal += float(np.square(part).sum())
        noise += float(np.square(part - real_rows(table, block)).sum())
    return {
        "tensor": table.tensor,
        "rows": table.values.shape[0],
        "columns": table.values.shape[1],
        "bits": table.bits,
        "offset": table.offset is not None,
        "numbers": str(table.numbers),
        "layout": str(table.layout),
        "float_bytes": 4 * table.values.size,
        "bytes": table.nbytes,
        "sqnr_db": 10 * math.log10(signal / noise) if signal > 0 and noise > 0 else None,
    }
