"""Derive the statistics of a tensor that a file lacks, from the statistics of the op's inputs.

OP_RULES define the effect of an op on values: a clamp clips them, a move keeps them (all or some), a concatenation
joins them. The results of other ops have no statistics that follow from their inputs'.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from quantpipe.calibrate.histogram import borders, regrid
from quantpipe.graph.view import Graph
from quantpipe.oprules import Family, rule_of
from quantpipe.types import TensorStats


def with_derived(graph: Graph, known: Mapping[str, TensorStats]) -> tuple[dict[str, TensorStats], dict[str, str]]:
    """Return the known statistics by tensor and all that follow from them, and what each of the latter follows from."""
    found, made = dict(known), dict[str, str]()
    for node in graph.nodes:  # in execution order: what a tensor is made of comes before it
        rule = rule_of(node)
        if rule is None or rule.family not in (Family.CLAMP, Family.MOVE) or rule.refuse(node, graph) is not None:
            continue
        parents = dict.fromkeys(node.inputs[p] for p in rule.data_ports(node))
        parts = [found[p] for p in parents if p in found]
        if len(parts) < len(parents) or not parts:
            continue
        for tensor in node.outputs:
            if tensor and tensor not in found:
                low, high = rule.bounds(node, graph)
                found[tensor] = dataclasses.replace(clipped(joined(parts), low, high), name=tensor)
                made[tensor] = ", ".join(parents)
    return found, made


def joined(parts: list[TensorStats]) -> TensorStats:
    """Return the statistics of all values together.

    Statistics of single batches are lost, as is a histogram that one part lacks.
    """
    if len(parts) == 1:
        return parts[0]
    limit = max(p.limit for p in parts)
    whole = all(len(p.histogram) == len(parts[0].histogram) > 0 for p in parts)
    counts = [regrid(p.histogram, p.limit, limit) for p in parts] if whole else []
    weights = np.asarray([p.count for p in parts]) / max(sum(p.count for p in parts), 1)
    means = np.asarray([p.mean for p in parts])
    mean = float(weights @ means) if whole else math.nan
    spread = np.asarray([p.variance for p in parts]) + (means - mean) ** 2
    return TensorStats(
        name=parts[0].name,
        count=sum(p.count for p in parts),
        minimum=min(p.minimum for p in parts),
        maximum=max(p.maximum for p in parts),
        mean=mean,
        variance=float(weights @ spread) if whole else math.nan,
        batch_minimum=min(p.batch_minimum for p in parts),
        batch_maximum=max(p.batch_maximum for p in parts),
        limit=limit,
        histogram=np.asarray(sum(counts), dtype=np.int64) if whole else np.zeros(0, dtype=np.int64),
    )


def clipped(stats: TensorStats, low: float, high: float) -> TensorStats:
    """Return the statistics of clip(x, low, high): the extremes exactly, counts beyond a bound in that bound's bin.

    Mean and variance are computed from the bins' middles, cut to the extremes; NaN without a histogram.
    """
    if low <= stats.minimum and stats.maximum <= high:
        return stats
    bins = len(stats.histogram)
    counts = stats.histogram.copy()
    mean = variance = math.nan
    least, greatest = (min(max(x, low), high) for x in (stats.minimum, stats.maximum))
    if bins:
        width = 2 * stats.limit / bins
        first, last = (int(np.clip(np.floor(b / width) + bins // 2, 0, bins - 1)) for b in (low, high))
        counts[first] += counts[:first].sum()
        counts[:first] = 0
        counts[last] += counts[last + 1 :].sum()
        counts[last + 1 :] = 0
        edges = borders(stats.limit, bins)
        middles = np.clip((edges[1:] + edges[:-1]) / 2, least, greatest)
        mean = float(counts @ middles) / max(int(counts.sum()), 1)
        variance = float(counts @ (middles - mean) ** 2) / max(int(counts.sum()), 1)
    return dataclasses.replace(
        stats,
        minimum=least,
        maximum=greatest,
        mean=mean,
        variance=variance,
        batch_minimum=min(max(stats.batch_minimum, low), high),
        batch_maximum=min(max(stats.batch_maximum, low), high),
        histogram=counts,
        batch_extremes=np.clip(stats.batch_extremes, low, high),
    )


def never_negative(graph: Graph) -> frozenset[str]:
    """Return the tensors that have no value below 0 whatever the data.

    They are known by the clamps, moves and averages that make them.
    """
    known: set[str] = set()
    for node in graph.nodes:
        rule = rule_of(node)
        if rule is None or rule.family not in (Family.CLAMP, Family.MOVE, Family.AVERAGE):
            continue
        if rule.refuse(node, graph) is not None:
            continue
        bounded = rule.family is Family.CLAMP and rule.bounds(node, graph)[0] >= 0.0
        if bounded or known.issuperset(node.inputs[p] for p in rule.data_ports(node)):
            known.update(node.outputs)
    return frozenset(known)
