"""From statistics and choices to a strategy: the range of every scale group and the thresholds of every weight.

A range is a pure function of (statistics, bits, schema), so a changed estimator or choice never runs the model again.
Groups with several sources get the hull of their sources' ranges: that is the rectification that concatenations and
additions with equal scales need, and it is listed. Every (tensor, bits) is computed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantpipe.annotate.choices import bits_of, clips_of, steps_of
from quantpipe.calibrate.collector import StatsCollector
from quantpipe.calibrate.estimators import Estimator
from quantpipe.calibrate.needs import require
from quantpipe.calibrate.weights import channel_stats, estimated_ranges, weight_ranges
from quantpipe.graph.view import Graph
from quantpipe.types import Profile, Range, ScaleGroup, Schema, Strategy, Symmetry, TensorStats, Topology

WeightMethod = Literal["max_range", "mse", "estimator"]


class ThresholdTable:
    """Ranges and thresholds on demand, for one topology, profile and estimator.

    Raises ConfigError when the profile lacks what the estimator reads.
    """

    def __init__(
        self,
        graph: Graph,
        topology: Topology,
        schema: Schema,
        profile: Profile,
        estimator: Estimator,
        weight_method: WeightMethod,
    ) -> None:
        require(estimator, profile)
        self._graph, self._topology, self._schema = graph, topology, schema
        self._estimator, self._weight_method = estimator, weight_method
        constants = {t: _constant_stats(graph, t) for t in topology.constants}
        self._stats: dict[str, TensorStats] = {**profile.tensors, **constants}
        self._ranges: dict[tuple[str, int], Range] = {}
        self._channels: dict[str, list[TensorStats]] = {}
        self._weights: dict[tuple[str, int], NDArray[np.float64]] = {}

    def strategy(self, assignment: Mapping[str, int]) -> Strategy:
        """The strategy of one assignment of the choice space."""
        bits = bits_of(self._topology, assignment)
        steps, clips = steps_of(self._topology, assignment), clips_of(self._topology, assignment)
        ranges = {}
        for group in self._topology.groups:
            found = self.group_range(group, bits[group.key])
            factor = 2.0 ** steps[group.key] * (clips[group.key] / 100)
            ranges[group.key] = Range(found.low * factor, found.high * factor)
        weights = {w.tensor: self.weight_thresholds(w.tensor, bits[w.tensor]) for w in self._topology.weights}
        return Strategy(bits, ranges, weights)

    def group_range(self, group: ScaleGroup, bits: int) -> Range:
        """The hull of the sources' estimated ranges, or the range that is known beforehand."""
        if group.fixed is not None:
            return group.fixed
        parts = [self._range(source, bits) for source in group.sources]
        return Range(min(p.low for p in parts), max(p.high for p in parts))

    def weight_thresholds(self, tensor: str, bits: int) -> NDArray[np.float64]:
        """T of [-T, T] per channel, `[C]` or `()`; under an asymmetric schema (low, high), `[C, 2]` or `[1, 2]`."""
        key = (tensor, bits)
        if key not in self._weights:
            site = self._topology.weight_of[tensor]
            found = self._weight_ranges(tensor, site.axis, bits)
            if self._schema.weights.symmetry is Symmetry.ASYMMETRIC:
                self._weights[key] = np.asarray([(r.low, r.high) for r in found], np.float64)
            else:
                thresholds = np.asarray([r.threshold for r in found], np.float64)
                self._weights[key] = thresholds if site.axis is not None else thresholds[0]
        return self._weights[key]

    def _weight_ranges(self, tensor: str, axis: int | None, bits: int) -> list[Range]:
        weight, schema = self._graph.constant(tensor), self._schema.weights
        if self._weight_method != "estimator":
            return weight_ranges(weight, axis, bits, schema, self._weight_method)
        if tensor not in self._channels:
            self._channels[tensor] = channel_stats(weight, axis)
        return estimated_ranges(self._channels[tensor], bits, schema, self._estimator)

    def rectified(self, strategy: Strategy) -> list[dict[str, Any]]:
        """Groups whose common range is not the one a source would have alone."""
        found = []
        for group in self._topology.groups:
            for source in group.sources if len(group.sources) > 1 and group.fixed is None else ():
                alone = self._range(source, strategy.bits[group.key])
                together = self.group_range(group, strategy.bits[group.key])
                if alone != together:
                    found.append(
                        {
                            "tensor": source,
                            "group": group.key,
                            "from": [alone.low, alone.high],
                            "to": [together.low, together.high],
                            "reason": "shares its scale",
                        }
                    )
        return found

    def _range(self, tensor: str, bits: int) -> Range:
        key = (tensor, bits)
        if key not in self._ranges:
            self._ranges[key] = self._estimator(self._stats[tensor], bits, self._schema.activations)
        return self._ranges[key]


def _constant_stats(graph: Graph, tensor: str) -> TensorStats:
    collector = StatsCollector(tensor)
    collector.update(np.atleast_1d(graph.constant(tensor)), 0)
    return collector.finish()
