"""Which scale groups and weights a search may give another range, and which ones.

It takes the topology, the schema and the estimator, and gives the options by key of the scale group or weight. Where a
user states a range, names an estimator for a tensor, or has its range searched in another way, nothing is offered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quantpipe.annotate.choices import AUTO, bits_key
from quantpipe.annotate.range_choices import offers_ranges, range_options
from quantpipe.calibrate.estimators import Estimator
from quantpipe.calibrate.ruled import place_of
from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.errors import DataError, HardwareError
from quantpipe.intmath import scale_zero_point, scales_zero_points
from quantpipe.types import (
    Choice,
    ChoiceSpace,
    OptionValue,
    ScaleGroup,
    Schema,
    Strategy,
    Symmetry,
    Topology,
    WeightSite,
)
from quantpipe.types.choice_key import ChoiceKind

ESTIMATORS = "estimators"
"""The kind in `annotate.choices` that offers ranges by other estimators."""


@dataclass(frozen=True, eq=False)
class RangeOffer:
    """Hold what decides which ranges are offered: the kinds of choices, the schema, and who else decides on ranges.

    `searched`: keys of scale groups whose range the search clips already; `stepped`: all ranges have steps already.
    """

    kinds: Collection[str]
    schema: Schema
    estimator: Estimator
    searched: Collection[str] = ()
    stepped: bool = False

    def options(self, topology: Topology) -> Mapping[str, Sequence[str]]:
        """Return the options of each range that is free, by key of the scale group or weight; the estimated first."""
        if {AUTO, ChoiceKind.RANGE.value, ESTIMATORS}.isdisjoint(self.kinds):
            return {}
        others = ESTIMATORS in self.kinds
        weights = [w for w in topology.weights if self._free(w, (w.tensor,))]
        found = {w.key: range_options(self.schema.weights, w, estimators=others) for w in weights}
        if not self.stepped:
            groups = [g for g in topology.groups if g.key not in self.searched and self._free(g, g.tensors)]
            found |= {g.key: range_options(self.schema.activations, g, estimators=others) for g in groups}
        return found

    def _free(self, site: ScaleGroup | WeightSite, tensors: Sequence[str]) -> bool:
        return offers_ranges(site) and place_of(self.estimator, tensors) is None


def distinct(space: ChoiceSpace, topology: Topology, table: ThresholdTable, schema: Schema) -> ChoiceSpace:
    """Return the space without options of ranges that give the same scale and zero point as an earlier option.

    Where the bits of the tensor are searched, too, all options stay: ranges that are equal at 8 bits may differ at 4.

    Returns the space; a choice with one option left keeps its place.
    """
    try:
        return space.with_options(_narrowed(space, topology, table, schema))
    except (DataError, HardwareError):  # a start that has no range, or that the device cannot express
        return space


def _narrowed(space: ChoiceSpace, topology: Topology, table: ThresholdTable, schema: Schema) -> list[Choice]:
    """The choices of ranges without options that come to the same scale as an earlier one."""
    every: tuple[ScaleGroup | WeightSite, ...] = (*topology.groups, *topology.weights)
    sites = {site.key: site for site in every}
    searched = {c.key for c in space if c.kind == ChoiceKind.BITS and len(c.options) > 1}
    start, narrowed = space.decode(space.start), []
    for choice in space:
        site = sites.get(choice.subject) if choice.kind == ChoiceKind.RANGE else None
        if site is None or len(choice.options) < 2 or bits_key(site.key) in searched:
            continue
        kept: dict[object, OptionValue] = {}
        for option in choice.options:
            strategy = table.strategy({**start, choice.key: option})
            grid = _grid(site, strategy, schema)
            kept.setdefault(option if grid is None else grid, option)  # None: stored in another topology alone
        narrowed.append(Choice(choice.key, choice.kind, tuple(kept.values()), choice.edges, graded=False))
    return narrowed


def _grid(site: ScaleGroup | WeightSite, strategy: Strategy, schema: Schema) -> object:
    """The scales and zero points that a range comes to, as something that can be compared."""
    bits = strategy.bits.get(site.key, site.max_bits)
    if isinstance(site, ScaleGroup):
        found = strategy.ranges.get(site.key)
        return None if found is None else scale_zero_point(found, bits, site.dtype, schema.activations)
    thresholds = strategy.weights.get(site.tensor)
    if thresholds is None:
        return None
    pairs = thresholds if schema.weights.symmetry is Symmetry.ASYMMETRIC else np.stack([-thresholds, thresholds], -1)
    low, high = np.moveaxis(np.atleast_2d(pairs), -1, 0)
    scale, zero, _, _ = scales_zero_points(low, high, bits, site.dtype, schema=schema.weights)
    return (scale.tobytes(), zero.tobytes())
