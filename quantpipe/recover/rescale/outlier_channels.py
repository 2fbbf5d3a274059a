"""Which channels of a tensor, or columns of a weight, are worth a copy: those that alone set the step of all others.

As Zhao et al. 2019 choose them: again and again the channel with the largest peak gets one part more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from quantpipe.arrays import Floats
from quantpipe.graph.view import Graph
from quantpipe.oprules.channels import COLUMNS
from quantpipe.recover.rescale.channel_regions import LayerPair
from quantpipe.recover.rescale.channel_stats import channel_extremes
from quantpipe.recover.rescale.splittable import SplitPath, splittable
from quantpipe.types import Samples, Topology

SHARE, FEW = 0.05, 3
"""So many copies, at most: a share of the channels, or a few where that is less."""

WORTH = 0.8
"""Of the largest peak: where copies leave more than this share of it, they are not worth their cost."""


def outlier_channels(
    graph: Graph, topology: Topology, names: Collection[str], samples: Samples
) -> dict[str, tuple[int, ...]]:
    """Return which channels are worth a copy, of tensors and weights where channels can be split.

    `samples`: those on which the peaks of tensors are measured, in one run of the float model. Returns name ->
    channels, each as often as it is copied; without names that no copy would help.
    """
    ways, _ = splittable(graph, topology)
    peaks = {name: _columns(graph, topology, ways[name], name) for name in names if _is_weight(ways, name)}
    links = {name: _link(ways[name], name) for name in names if name in ways and name not in peaks}
    watched = list({link.tensor: link for link in links.values()}.values())
    measured = channel_extremes(graph, watched, samples, moments=False)
    for name, link in links.items():
        seen = measured[link.tensor]
        peaks[name] = np.maximum(np.abs(seen.minimum), np.abs(seen.maximum))
    return {name: chosen for name in names if name in peaks and (chosen := copies(peaks[name]))}


def copies(peaks: Floats) -> tuple[int, ...]:
    """Return the channels to copy, each as often as it is copied, in order; none where that would not help.

    `peaks`: the largest magnitude of each channel, `[C]` float64.
    """
    parts = np.ones(len(peaks))
    best, taken = peaks.max(initial=0.0), parts
    for _ in range(max(FEW, int(SHARE * len(peaks)))):
        parts = parts + (np.arange(len(peaks)) == np.argmax(peaks / parts))
        if (left := (peaks / parts).max(initial=0.0)) < best:
            best, taken = left, parts
    if not best <= WORTH * peaks.max(initial=0.0):
        return ()
    return tuple(int(c) for c in np.repeat(np.arange(len(peaks)), taken.astype(np.int64) - 1))


def _is_weight(ways: Mapping[str, SplitPath], name: str) -> bool:
    return name in ways and name not in ways[name].tensors


def _link(way: SplitPath, tensor: str) -> LayerPair:
    return next(link for link in way.links if tensor in link.tensors)


def _columns(graph: Graph, topology: Topology, way: SplitPath, weight: str) -> Floats:
    """The largest magnitude that each channel of a way is multiplied by, `[C]`."""
    node = next(graph.by_name[name] for name in way.consumers if topology.kernel_of[name].weight == weight)
    features = way.channels * way.repeats
    found = COLUMNS[node.op].magnitudes(node, graph.constant(weight).astype(np.float64), features)
    return np.asarray(found.reshape(way.channels, way.repeats).max(axis=1))
