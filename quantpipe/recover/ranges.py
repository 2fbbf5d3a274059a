"""Activation ranges chosen again on the recovered, quantized network.

An estimator knows one tensor; the value of a range depends on the layers after it. So ranges next to
the present one are tried, those first whose own error (from the histogram of the float tensor) is smallest against the
present one's, and each is kept if the KL of the whole quantized network falls on some calibration samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from quantpipe import intmath
from quantpipe.errors import HardwareError
from quantpipe.option_checks import integer, number
from quantpipe.recover.parameters import KEY
from quantpipe.recover.work import NotApplicable, State, Work
from quantpipe.types import DType, PowerOfTwo, Range, ScaleGroup, TensorSchema, TensorStats

EXPONENTS = (0.5, 2.0)
SHARES = (0.8, 0.9, 1.1, 1.25)
"""Candidates as multiples of the present range: where scales are powers of two, and where they are not."""


@dataclass(frozen=True)
class Ranges:
    """State how a step searches for better ranges.

    `evaluations`: most candidates that are tried. `samples`: of the calibration split, to measure KL on. `tolerance`:
    how much larger a candidate's own squared error may be than the present one's, as a factor.
    """

    evaluations: int = 24
    samples: int = 32
    tolerance: float = 2.0

    def __post_init__(self) -> None:
        integer(f"{KEY}.evaluations", self.evaluations, least=1)
        integer(f"{KEY}.samples", self.samples, least=1)
        number(f"{KEY}.tolerance", self.tolerance, least=1.0)


@dataclass(frozen=True)
class _Candidate:
    group: ScaleGroup
    factor: float
    ratio: float
    """Its squared error over the squared error of the present range."""


def chosen_ranges(work: Work, state: State, options: Ranges) -> State:
    """Return the state with the ranges that helped.

    NotApplicable when there is nothing to try, or nothing helps.
    """
    candidates = _candidates(work, state, options)[: options.evaluations]
    if not candidates:
        raise NotApplicable("no range has a neighbour whose own error is near the present one's")
    measured = work.fitted(options.samples)
    best = measured(state.graph, state.topology, work.plan(state))
    strategy = state.overrides.applied(work.strategy)
    found: dict[str, Range] = {}
    for candidate in candidates:
        key = candidate.group.key
        if key in found:
            continue
        tried = {**found, key: _times(strategy.ranges[key], candidate.factor)}
        other = _with_ranges(state, tried)
        try:
            value = measured(other.graph, other.topology, work.plan(other))
        except HardwareError:
            continue  # a shift or a bias that the device does not have
        if value < best:
            best, found = value, tried
    if not found:
        raise NotApplicable(f"none of {len(candidates)} neighbouring ranges helps on the calibration samples")
    return replace(_with_ranges(state, found), note=f"{len(found)} of {len(strategy.ranges)} ranges")


def squared_error(stats: TensorStats, found: Range, bits: int, dtype: DType, *, schema: TensorSchema) -> float:
    """Return Σ over the histogram's elements of (Q(x) - x)², each at the middle of its bin."""
    scale, zero, qmin, qmax = intmath.scale_zero_point(found, bits, dtype, schema)
    edges = np.linspace(-stats.limit, stats.limit, len(stats.histogram) + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    steps = intmath.nearest_step(middles / float(scale), qmin - zero, qmax - zero)
    return float(np.sum(stats.histogram * (steps * float(scale) - middles) ** 2))


def _candidates(work: Work, state: State, options: Ranges) -> list[_Candidate]:
    """Neighbours of the present ranges, the most promising first."""
    strategy, schema = state.overrides.applied(work.strategy), work.schema.activations
    groups = [
        g for g in state.topology.groups if g.fixed is None and not set(g.sources) & set(state.topology.constants)
    ]
    profile = work.measured(state.graph, [s for g in groups for s in g.sources])
    factors = SHARES if schema.power_of_two is PowerOfTwo.NONE else EXPONENTS
    found = []
    for group in groups:
        bits, present = strategy.bits[group.key], strategy.ranges[group.key]
        before = _error(profile.tensors, group, present, bits, schema=schema)
        for factor in factors:
            after = _error(profile.tensors, group, _times(present, factor), bits, schema=schema)
            if before > 0 and after <= options.tolerance * before:
                found.append(_Candidate(group, factor, after / before))
    return sorted(found, key=lambda c: c.ratio)


def _error(
    tensors: Mapping[str, TensorStats], group: ScaleGroup, found: Range, bits: int, *, schema: TensorSchema
) -> float:
    return sum(squared_error(tensors[s], found, bits, group.dtype, schema=schema) for s in group.sources)


def _with_ranges(state: State, ranges: Mapping[str, Range]) -> State:
    return replace(state, overrides=replace(state.overrides, ranges={**state.overrides.ranges, **ranges}))


def _times(found: Range, factor: float) -> Range:
    return Range(found.low * factor, found.high * factor)
