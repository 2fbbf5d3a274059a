"""Migration of scales from activations to weights after a normalization (Xiao et al., SmoothQuant, 2023, section 4).

The values of an attention have a producer with a weight, and their channels pass through the heads; what its rows lose
or gain there is little, so the same factor serves them.

    factor_c = max|x_c|^alpha / max|w_c|^(1 - alpha)

scaled so that the geometric mean is 1: a channel of outliers gets smaller, its weights larger. Gain and offset of the
normalization take it up. Pure: takes pairs of layers and their channels' extremes, gives changes of channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quantpipe.errors import ConfigError
from quantpipe.graph.view import Graph
from quantpipe.oprules.channels import COLUMNS
from quantpipe.option_checks import number
from quantpipe.plan import ChannelChange
from quantpipe.recover.parameters import KEY
from quantpipe.recover.rescale.channel_regions import LayerPair
from quantpipe.recover.rescale.channel_stats import ChannelExtremes
from quantpipe.types import Topology


@dataclass(frozen=True)
class Smoothing:
    """State how scales move from activations to weights.

    `alphas`: candidates; the one with the smallest KL on the calibration samples is taken.
    """

    alphas: Sequence[float] = (0.25, 0.5, 0.75)

    def __post_init__(self) -> None:
        if not isinstance(self.alphas, Sequence) or not self.alphas:
            raise ConfigError(f"has alphas={self.alphas!r}; legal is a list of at least one number", where=KEY)
        object.__setattr__(self, "alphas", tuple(self.alphas))
        for alpha in self.alphas:
            number(f"{KEY}.alphas", alpha, least=0, below=1)


def smoothed(
    graph: Graph,
    topology: Topology,
    found: Iterable[LayerPair],
    extremes: Mapping[str, ChannelExtremes],
    *,
    alpha: float,
) -> dict[str, ChannelChange]:
    """Return a change per link after a normalization or an attention; offsets are 0.

    `alpha`: the exponent of the activations' magnitudes in the factor, 0 to 1. Returns tensor -> its change.
    """
    changes = {}
    for link in found:
        if not (link.affine or link.attended):
            continue
        seen = extremes[link.tensor]
        peak = np.maximum(np.abs(seen.minimum), np.abs(seen.maximum))
        weight = np.zeros(link.channels)
        for name in link.consumers:
            node = graph.by_name[name]
            values = graph.constant(topology.kernel_of[name].weight or "").astype(np.float64)
            own = COLUMNS[node.op].magnitudes(node, values, link.channels * link.repeats)
            weight = np.maximum(weight, own.reshape(link.channels, -1).max(axis=1))
        alive = (peak > 0) & (weight > 0)
        logs = np.zeros(link.channels)
        logs[alive] = alpha * np.log(peak[alive]) - (1 - alpha) * np.log(weight[alive])
        logs[alive] -= logs[alive].mean() if np.any(alive) else 0.0
        changes[link.tensor] = ChannelChange(np.exp(logs), np.zeros(link.channels))
    return changes
