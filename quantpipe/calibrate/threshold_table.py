"""Make a strategy of statistics and choices: the range of every scale group and the thresholds of every weight.

A range is a pure function of (statistics, bits, schema), so a changed estimator or choice never runs the model again.
Groups with several sources get the hull of their sources' ranges: that is the rectification that concatenations and
additions with equal scales need, and it is listed. Every (tensor, bits) is computed once.
"""

from __future__ import annotations

from collections.abc import Hashable
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe import extend
from quantpipe.annotate.choices import Assignment, bits_of, clips_of, steps_of
from quantpipe.annotate.range_choices import ESTIMATED, FACTORS, ranges_of
from quantpipe.annotate.range_choices import WHOLE as WHOLE_RANGE
from quantpipe.annotate.variants import Topologies
from quantpipe.calibrate.collector import StatsCollector
from quantpipe.calibrate.decided import DecidedEstimator
from quantpipe.calibrate.derived_ranges import derive_ranges
from quantpipe.calibrate.estimators import Estimator, MaxRange
from quantpipe.calibrate.estimators.legal import legal_range
from quantpipe.calibrate.needs import require
from quantpipe.calibrate.nonfinite import NO_RANGE, around
from quantpipe.calibrate.reach import reach_of, within_reach
from quantpipe.calibrate.ruled import WeightMethod, estimator_of, place_of, weight_method_of
from quantpipe.calibrate.weights import channel_stats, estimated_ranges, weight_ranges
from quantpipe.errors import DataError
from quantpipe.graph.view import Graph
from quantpipe.types import (
    Profile,
    Range,
    RectifiedRow,
    ScaleGroup,
    Schema,
    Strategy,
    Symmetry,
    TensorStats,
    Topology,
    WeightSite,
)
from quantpipe.types.structure import DEFAULT

_RANGES: WeakKeyDictionary[ir.TensorProtocol, dict[Hashable, list[Range]]] = WeakKeyDictionary()
"""Ranges of each weight: the tables of several estimators, and of several steps of a run, ask for the same."""

WHOLE = -1
"""In place of the number of a rule: the whole range is asked for, whatever estimates others."""


class ThresholdTable:
    """Ranges and thresholds on demand, for one profile and estimator, and one topology (or all `variants` of it).

    Raises ConfigError when the profile lacks what the estimator reads.
    """

    def __init__(
        self,
        graph: Graph,
        topology: Topology,
        schema: Schema,
        profile: Profile,
        *,
        estimator: Estimator,
        weight_method: WeightMethod,
        variants: Topologies | None = None,
    ) -> None:
        require(estimator, profile)
        self._graph, self._topology, self._schema = graph, topology, schema
        self._estimator, self._weight_method = estimator, weight_method
        self._variants = variants
        self.others: dict[str, ThresholdTable] = {}
        """Option of a range -> the table of the estimator that it names."""
        self._stats: dict[str, TensorStats] = dict(profile.tensors)
        self._reaches: dict[str, float | None] = {}
        self._ranges: dict[tuple[str, int, int | None], Range] = {}
        self._channels: dict[tuple[str, int | None], list[TensorStats]] = {}
        self._weights: dict[tuple[str, int | None, int, bool], NDArray[np.float64]] = {}

    @property
    def estimator(self) -> Estimator:
        """Return the estimator of the ranges."""
        return self._estimator

    def strategy(self, assignment: Assignment) -> Strategy:
        """Return the strategy of one assignment of the choice space.

        Of several topologies, it is for the one that the assignment decides on.
        """
        variants = self._variants
        if variants is None:
            structure, topology = DEFAULT, self._topology
            bits, steps, clips = (of(topology, assignment) for of in (bits_of, steps_of, clips_of))
            chosen = ranges_of(topology, assignment)
        else:
            structure, topology = variants.structure_of(assignment), variants.topology_of(assignment)
            bits, steps, clips = variants.bits(assignment), variants.steps(assignment), variants.clips(assignment)
            chosen = variants.ranges(assignment)
        ranges = {}
        for group in topology.groups:
            option = chosen.get(group.key, ESTIMATED)
            table = self.others.get(option, self)
            found = table.group_range(group, bits[group.key], whole=option == WHOLE_RANGE)
            factor = 2.0 ** steps[group.key] * (clips[group.key] / 100) * FACTORS.get(option, 1.0)
            ranges[group.key] = Range(found.low * factor, found.high * factor)
        ranges |= derive_ranges(self._graph, topology, ranges)
        weights = {
            w.tensor: self._chosen_thresholds(w, bits[w.tensor], chosen.get(w.tensor, ESTIMATED))
            for w in topology.weights
        }
        return Strategy(bits, ranges, weights, structure)

    def group_range(self, group: ScaleGroup, bits: int, *, whole: bool = False) -> Range:
        """Return the hull of the sources' estimated ranges, or the range that is known beforehand.

        With `whole` it is the hull of everything that calibration saw.
        """
        fixed = group.fixed_at(bits)
        if fixed is not None:
            return fixed
        if isinstance(self._estimator, DecidedEstimator) and not whole:
            found = self._estimator.range_of(group.key, bits, lambda b: self._hull(group, b, False))
            if found is not None:
                return found
        return self._hull(group, bits, whole)

    def _hull(self, group: ScaleGroup, bits: int, whole: bool) -> Range:
        parts = [self._range(source, bits, group, whole) for source in group.sources]
        hull = Range(min(p.low for p in parts), max(p.high for p in parts))
        return hull if whole else within_reach(hull, self._reach(group))

    def _reach(self, group: ScaleGroup) -> float | None:
        if group.key not in self._reaches:
            self._reaches[group.key] = reach_of(self._graph, group)
        return self._reaches[group.key]

    def extremes(self, group: ScaleGroup) -> Range:
        """Return the calibrated minimum and maximum of the tensors of a scale group."""
        found = [self._statistics(source) for source in group.sources]
        return Range(min(s.minimum for s in found), max(s.maximum for s in found))

    def weight_thresholds(self, tensor: str, bits: int) -> NDArray[np.float64]:
        """Return T of [-T, T] per channel of a weight, in real units and in the default topology.

        The shape is `[C]` or `()`; under an asymmetric schema the result is (low, high), `[C, 2]` or `[1, 2]`.
        """
        return self._thresholds(self._topology.weight_of[tensor], bits)

    def _chosen_thresholds(self, site: WeightSite, bits: int, option: str) -> NDArray[np.float64]:
        """The thresholds of a weight by the option of its range; what is stated stays."""
        if site.fixed is not None or option == ESTIMATED or option in self.others:
            return self.others.get(option, self)._thresholds(site, bits)
        if option == WHOLE_RANGE:
            return self._estimated(site, bits, whole=True)
        return self._thresholds(site, bits) * FACTORS.get(option, 1.0)  # 1: no decisions of another estimator yet

    def _thresholds(self, site: WeightSite, bits: int) -> NDArray[np.float64]:
        if site.fixed is not None:
            return site.fixed
        if isinstance(self._estimator, DecidedEstimator):
            found = self._estimator.thresholds_of(site.tensor, bits, lambda b: self._estimated(site, b))
            if found is not None:
                return found
        return self._estimated(site, bits)

    def _estimated(self, site: WeightSite, bits: int, *, whole: bool = False) -> NDArray[np.float64]:
        key = (site.tensor, site.axis, bits, whole)
        if key not in self._weights:
            found = self._weight_ranges(site, bits, whole)
            if self._schema.weights.symmetry is Symmetry.ASYMMETRIC:
                self._weights[key] = np.asarray([(r.low, r.high) for r in found], np.float64)
            else:
                thresholds = np.asarray([r.threshold for r in found], np.float64)
                self._weights[key] = thresholds if site.axis is not None else thresholds[0]
        return self._weights[key]

    def _weight_ranges(self, site: WeightSite, bits: int, whole: bool) -> list[Range]:
        tensor, axis = site.tensor, site.axis
        weight, schema = self._graph.constant(tensor), self._schema.weights
        full = whole or site.block is not None  # each block is fitted by itself, within the whole range of its channel
        method = "max_range" if full else weight_method_of(self._estimator, tensor, self._weight_method)
        if method != "estimator":
            known = _RANGES.setdefault(self._graph.constant_tensor(tensor), {})
            key = (axis, bits, schema, method)
            if key not in known:
                known[key] = weight_ranges(weight, axis, bits, schema, method=method)
            return known[key]
        if (tensor, axis) not in self._channels:
            self._channels[tensor, axis] = channel_stats(weight, axis)
        return estimated_ranges(self._channels[tensor, axis], bits, schema, estimator_of(self._estimator, (tensor,)))

    def rectified(self, strategy: Strategy) -> list[RectifiedRow]:
        """Return groups whose common range is not the one a source would have alone."""
        found: list[RectifiedRow] = []
        topology = self._topology if self._variants is None else self._variants.at(strategy.structure)
        for group in topology.groups:
            for source in group.sources if len(group.sources) > 1 and group.fixed is None else ():
                bits = strategy.bits[group.key]
                whole = strategy.ranges[group.key] == self.group_range(group, bits, whole=True)
                alone = self._range(source, bits, group, whole)
                together = self.group_range(group, bits, whole=whole)
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

    def _range(self, tensor: str, bits: int, group: ScaleGroup, whole: bool) -> Range:
        key = (tensor, bits, WHOLE if whole else place_of(self._estimator, group.tensors))
        if key not in self._ranges:
            self._refuse_nonfinite(tensor)
            estimator = MaxRange() if whole else estimator_of(self._estimator, group.tensors)
            found = estimator(self._statistics(tensor), bits, self._schema.activations)
            self._ranges[key] = self._rectified(tensor, found)
        return self._ranges[key]

    def _refuse_nonfinite(self, tensor: str) -> None:
        count = self._statistics(tensor).nonfinite
        if count:
            raise DataError(
                f"{count} of its values were not finite in calibration, {NO_RANGE}. Keep the nodes that make and read "
                f"it in float with {around(self._graph, tensor)}",
                stage="calibrate",
                where=tensor,
            )

    def _statistics(self, tensor: str) -> TensorStats:
        if tensor not in self._stats and self._graph.is_constant(tensor):
            self._stats[tensor] = _constant_stats(self._graph, tensor)
        return self._stats[tensor]

    def _rectified(self, tensor: str, found: Range) -> Range:
        """Return a result's range after the threshold rule of a plug-in op; the form of the schema stays."""
        maker = self._graph.producers.get(tensor)
        op = extend.op_of(maker.op) if maker is not None else None
        if maker is None or op is None or op.rectify is None:
            return found
        made: Range = extend.called(maker.op, "rectify", op.rectify, found)
        if not (isinstance(made, Range) and np.isfinite([made.low, made.high]).all() and made.low <= 0 <= made.high):
            raise extend.refused(
                extend.package_of(maker.op),
                f"rectify of its op {maker.op} gave {made!r}; legal is a Range of finite numbers with 0 within",
            )
        return legal_range(made.low, made.high, self._stats[tensor], self._schema.activations)


def _constant_stats(graph: Graph, tensor: str) -> TensorStats:
    collector = StatsCollector(tensor)
    collector.update(np.atleast_1d(graph.constant(tensor)), 0)
    return collector.finish()
