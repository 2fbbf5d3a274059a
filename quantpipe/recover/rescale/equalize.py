"""Equalize across layers: give a tensor's channels units in which producer and consumers have the same range.

The ranges belong to the rows of the layer that makes the channels and to the columns of the layers that read them
(Nagel et al. 2019, section 4.1):

    factor = sqrt(range of the producer's row / range of the consumers' column)

This is done pair after pair, until nothing moves. Takes pairs of layers, their channels' extremes and the weights;
gives changes of channels. Pure: no graph is run or written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from quantpipe.arrays import Floats, along
from quantpipe.graph.view import Graph
from quantpipe.oprules import rule_of
from quantpipe.oprules.channels import COLUMNS
from quantpipe.option_checks import integer, number, one_of
from quantpipe.plan import ChannelChange
from quantpipe.recover.parameters import AUTO, KEY
from quantpipe.recover.rescale.channel_regions import LayerPair
from quantpipe.recover.rescale.channel_stats import ChannelExtremes
from quantpipe.recover.rescale.rescale_channels import clamp_limits
from quantpipe.types import Topology

POWER_OF_TWO = "power_of_two"
FACTORS = ("real", POWER_OF_TWO)
APART = 64.0
"""The largest channel over the middle one, from which on channels lie far apart: of 8 bits it leaves half of them four
steps or fewer."""
UNEVEN_DB = 12.0
"""Noise that the one scale of a tensor adds, from which on its channels are equalized: two bits."""
FEW_BITS = 4
"""Bits of weights up to which all pairs are equalized: outliers cost a row most of its few steps."""
STILL = 1e-3
"""Pairs are at rest when no factor differs from 1 by more."""


@dataclass(frozen=True)
class Equalization:
    """State how channels are equalized.

    `iterations`: most rounds over all pairs. `factors`: `real`, or `power_of_two` for factors 2^k only. `margin`: how
    far below a clamp that cannot move the channels that it must not meet stay, as a share of its limit. `per_channel`:
    whether this is done where weights have scales per channel, too, so that the range of one row costs the others
    nothing; `auto`: there for weights of few bits, and for tensors whose channels lose by their common scale.
    """

    iterations: int = 20
    factors: str = "real"
    margin: float = 0.1
    per_channel: bool | str = AUTO

    def __post_init__(self) -> None:
        integer(f"{KEY}.iterations", self.iterations, least=1)
        one_of(f"{KEY}.factors", self.factors, FACTORS)
        number(f"{KEY}.margin", self.margin, least=0, below=1)
        one_of(f"{KEY}.per_channel", self.per_channel, (True, False, AUTO))


def equalized(
    graph: Graph,
    topology: Topology,
    found: Iterable[LayerPair],
    extremes: Mapping[str, ChannelExtremes],
    *,
    channel_bounds: bool,
    options: Equalization,
) -> dict[str, ChannelChange]:
    """Return a change per link whose channels are better off in other units; offsets are 0.

    Returns tensor -> its change.
    """
    made = [link for link in found if not link.affine]
    pairs = [_Pair(graph, link, extremes, channel_bounds, options=options) for link in made]
    weights = {n: _weight(graph, topology, n) for p in pairs for n in (p.link.producer, *p.link.consumers)}
    for _ in range(options.iterations):
        moved = [pair.balance(weights) for pair in pairs]
        if max(moved, default=0.0) <= STILL:
            break
    return {p.link.tensor: p.change() for p in pairs if np.any(p.factor != 1.0)}


def far_apart(found: ChannelExtremes) -> bool:
    """Return whether the channels of a tensor have ranges so different that one scale leaves most of them few steps."""
    sizes = np.maximum(np.abs(found.minimum), np.abs(found.maximum))
    alive = sizes[np.isfinite(sizes) & (sizes > 0)]
    return bool(alive.size and alive.max() >= APART * np.median(alive))


def uneven_db(graph: Graph, topology: Topology, link: LayerPair, extremes: Mapping[str, ChannelExtremes]) -> float:
    """Return how much noise the one scale of a tensor adds after its readers, in dB over a scale for each channel.

    A channel's noise follows the largest peak with one scale, and its own peak without. Readers multiply it by their
    columns: G = max(p)² · Σ c² / Σ p² · c².
    """
    seen = extremes[link.tensor]
    peaks = np.maximum(np.abs(seen.minimum), np.abs(seen.maximum))
    columns = np.zeros(link.channels)
    for name in link.consumers:
        columns = np.maximum(columns, _columns(graph, link, name, _weight(graph, topology, name)))
    own = float(np.sum((peaks * columns) ** 2))
    shared = float(np.max(peaks, initial=0.0) ** 2 * np.sum(columns**2))
    return 10.0 * math.log10(shared / own) if own > 0 and math.isfinite(shared) else 0.0


def _columns(graph: Graph, link: LayerPair, name: str, weight: Floats) -> Floats:
    """Return the largest magnitude in a reader's columns of each channel."""
    node = graph.by_name[name]
    own = COLUMNS[node.op].magnitudes(node, weight, link.channels * link.repeats)
    return np.asarray(own.reshape(link.channels, -1).max(axis=1))


class _Pair:
    """One link and its factors so far."""

    def __init__(
        self,
        graph: Graph,
        link: LayerPair,
        extremes: Mapping[str, ChannelExtremes],
        channel_bounds: bool,
        *,
        options: Equalization,
    ) -> None:
        self._graph, self.link, self._options = graph, link, options
        self.factor = np.ones(link.channels)
        self._least, self._most, self._limits = self._room(extremes, channel_bounds)

    def balance(self, weights: dict[str, Floats]) -> float:
        """Give both sides the same ranges, in place; how far the factors moved (of 1)."""
        graph, link = self._graph, self.link
        producer, rule = graph.by_name[link.producer], rule_of(graph.by_name[link.producer])
        axis = rule.channel_axis(producer, graph) if rule is not None else 0
        others = tuple(a for a in range(weights[link.producer].ndim) if a != axis)
        rows = np.abs(weights[link.producer]).max(axis=others)
        columns = np.zeros(link.channels)
        for name in link.consumers:
            columns = np.maximum(columns, _columns(graph, link, name, weights[name]))
        alive = (rows > 0) & (columns > 0)
        step = np.sqrt(np.where(alive, rows, 1.0) / np.where(alive, columns, 1.0))
        factor = np.clip(self.factor * step, self._least, self._most)
        factor = np.where(alive, factor, self.factor)
        if self._options.factors == POWER_OF_TWO:
            factor = 2.0 ** np.floor(np.log2(factor) + 0.5)
            factor = np.where(factor < self._least, 2 * factor, np.where(factor > self._most, factor / 2, factor))
        step = factor / self.factor
        self.factor = factor
        weights[link.producer] = weights[link.producer] / along(step, axis, weights[link.producer].ndim)
        for name in link.consumers:
            node = graph.by_name[name]
            weights[name] = COLUMNS[node.op].scaled(node, weights[name], np.repeat(step, link.repeats))
        return float(np.abs(step - 1.0).max())

    def change(self) -> ChannelChange:
        return ChannelChange(self.factor, np.zeros(self.link.channels), self._limits)

    def _room(
        self, extremes: Mapping[str, ChannelExtremes], channel_bounds: bool
    ) -> tuple[Floats, Floats, tuple[float, float] | None]:
        """Minimum and maximum factors, and the limits that the clamp keeps where it cannot have others."""
        link = self.link
        # No channel grows beyond its tensor's own range, which would cost all the others resolution.
        least = np.maximum(_share(extremes[link.tensor]), _share(extremes[link.clamp_output]))
        most = np.full(link.channels, np.inf)
        limits = None if link.clamp is None else clamp_limits(self._graph, self._graph.by_name[link.clamp])
        if limits is None or (channel_bounds and link.clamp_fused):
            return least, most, None
        if all(not np.isfinite(b) or b == 0.0 for b in limits):
            return least, most, limits
        # The clamp stays: a channel that meets it stays, too, and no other one may come to meet it.
        (low, high), there = limits, extremes[link.clamp_output]
        keep = 1.0 - self._options.margin
        met = np.zeros(link.channels, bool)
        for bound, seen in ((low, there.minimum), (high, there.maximum)):
            if np.isfinite(bound) and bound != 0.0:
                met |= np.abs(seen) >= keep * abs(bound)
                least = np.maximum(least, np.abs(seen) / (keep * abs(bound)))
        return np.where(met, 1.0, least), np.where(met, 1.0, most), (low, high)


def _share(seen: ChannelExtremes) -> Floats:
    """The peak of each channel as a share of the largest; 1 where all are 0."""
    peak = np.maximum(np.abs(seen.minimum), np.abs(seen.maximum))
    return np.asarray(peak / peak.max() if peak.max() > 0 else np.ones_like(peak))


def _weight(graph: Graph, topology: Topology, name: str) -> Floats:
    return graph.constant(topology.kernel_of[name].weight or "").astype(np.float64)
