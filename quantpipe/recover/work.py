"""What the steps of recovery share: the network as it stands, and the two ways to change it.

A state is a graph and a topology that compute what the float model computes, and the overrides that a plan for them
takes. A step is a pure function of (work, state): it returns another state, or the reason why not. Either it walks
through the layers and gives integer weights and biases (`walked`), or it puts channels in other units (`rescaled`) or
mixes them (`rotated`), or it chooses ranges. What an earlier step did stays: a walk works on the changed network and on
the chosen ranges, and a change after a walk repeats the walk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.arrays import along
from quantpipe.artifacts.checkpoint import Kept, NoCheckpoint
from quantpipe.calibrate.estimators import Estimator
from quantpipe.calibrate.measure import Detail, measure
from quantpipe.calibrate.passes import lacking
from quantpipe.calibrate.ruled import WeightMethod
from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.graph.view import Graph
from quantpipe.oprules.channels import COLUMNS
from quantpipe.plan import NO_OVERRIDES, ChannelChange, Overrides, Problem
from quantpipe.recover.reconstruct.layer import LayerOptions
from quantpipe.recover.reconstruct.layerwise import Effort, recover
from quantpipe.recover.rescale.channel_regions import LayerPair, layer_pairs
from quantpipe.recover.rescale.channel_stats import ChannelExtremes, channel_extremes
from quantpipe.recover.rescale.rescale_channels import compose, rescale_channels
from quantpipe.recover.rescale.residual_streams import Stream, streams
from quantpipe.train.training_data import TrainingData
from quantpipe.types import (
    HardwareSpec,
    Profile,
    QuantPlan,
    Range,
    RecoveredLayerRow,
    Samples,
    ScaleGroup,
    Schema,
    Strategy,
    Topology,
)

VALUES = 16384
"""Of a tensor in one sample, at most: histograms of a hundred samples then have more than a million values."""

_NOTHING = Profile("", 0, {})

Progress = Callable[[int, int, str], None]
Measure = Callable[[Graph, Topology, QuantPlan], float]
"""KL of a plan's outputs to the float model's, on some samples; lower is better."""


class NotApplicable(Exception):
    """A step has nothing to do here, for the reason in the message."""


@dataclass(frozen=True, eq=False)
class State:
    """Hold what the kept steps have led to.

    `graph`, `topology` have all channels changed as the overrides say. `walk`: how the integer weights were made, if
    they were; `rows` then are its sampled rows. `note`: what the step that led here did, for the report.
    """

    graph: Graph
    topology: Topology
    overrides: Overrides = NO_OVERRIDES
    walk: tuple[LayerOptions, int] | None = None
    layers: tuple[RecoveredLayerRow, ...] = field(default=(), repr=False)
    note: str = ""
    curve: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Work:
    """Hold what does not change from step to step.

    `samples` are those that steps are fitted to; `fitted` measures on the first few of them (None: on all). `profile`:
    the statistics of the strategy, where known. `training`: what the step `train` learns from.
    """

    graph: Graph
    topology: Topology
    spec: HardwareSpec
    schema: Schema
    strategy: Strategy
    samples: Samples
    estimator: Estimator
    weight_method: WeightMethod
    memory_mb: int
    seed: int
    fitted: Callable[[int | None], Measure]
    progress: Progress = lambda done, total, note: None
    kept: Kept = NoCheckpoint()  # noqa: RUF009  (without state)
    profile: Profile | None = None
    training: TrainingData | None = None

    def start(self, overrides: Overrides = NO_OVERRIDES, walk: tuple[LayerOptions, int] | None = None) -> State:
        """Return the float model, with what the strategy has already.

        `walk` is what makes weights like those that it has.
        """
        return State(self.graph, self.topology, overrides, walk if overrides.weights else None)

    def plan(self, state: State) -> QuantPlan:
        """Return the plan of a state.

        Raises HardwareError when the device cannot express the state.
        """
        return Problem(state.graph, state.topology, self.spec, self.schema).plan(self.strategy, state.overrides)

    def walked(self, state: State, layer: LayerOptions, rows: int) -> State:
        """Return integer weights and biases by a walk that starts from the state's float weights."""
        bare = replace(state.overrides, weights={}, biases={})
        found = recover(
            Problem(state.graph, state.topology, self.spec, self.schema),
            bare.applied(self.strategy),
            self.samples,
            layer,
            effort=Effort(rows, self.memory_mb, self.seed),
            progress=self.progress,
            kept=self.kept,
        )
        overrides = replace(bare, weights=found.overrides.weights, biases=found.overrides.biases)
        return replace(state, overrides=overrides, walk=(layer, rows), layers=found.layers)

    def ranges_for(self, state: State, changes: Mapping[str, ChannelChange]) -> dict[str, Range]:
        """Return ranges of the scale groups that changes of channels touch, estimated from the calibration samples.

        What the search had made of the estimates is made of these, too.
        """
        network = rescale_channels(self.graph, self.topology, _composed(state, changes), state.overrides.rotations)
        return self._ranges(*network, {t for c in changes for t in self.layer_pairs[0][c].tensors})

    def _ranges(self, graph: Graph, topology: Topology, touched: Collection[str]) -> dict[str, Range]:
        groups = [g for g in topology.groups if g.fixed is None and not set(touched).isdisjoint(g.tensors)]
        table = self._table(graph, topology, groups)
        return {g.key: _scaled(table.group_range(g, self.strategy.bits[g.key]), self._moved(g)) for g in groups}

    def step_of(self, tensor: str, ranges: Mapping[str, Range]) -> float:
        """Return the scale that a tensor has with some ranges; 0 for one that is not stored."""
        group = self.topology.group_of.get(tensor)
        if group is None or group.key not in ranges:
            return 0.0
        bits, schema = self.strategy.bits[group.key], self.schema.activations
        return float(intmath.scale_zero_point(ranges[group.key], bits, group.dtype, schema)[0])

    def rescaled(self, state: State, changes: Mapping[str, ChannelChange], ranges: Mapping[str, Range]) -> State:
        """Return the state with channels in other units.

        Ranges and thresholds of the changed weights are new, and the last walk is repeated.
        """
        nodes = {n for c in changes for n in (self.layer_pairs[0][c].producer, *self.layer_pairs[0][c].consumers)}
        overrides = replace(state.overrides, channels=_composed(state, changes))
        graph, topology = rescale_channels(self.graph, self.topology, overrides.channels, overrides.rotations)
        return self._renewed(state, graph, topology, overrides, nodes=nodes, ranges=ranges)

    def rotated(self, state: State, rotations: Mapping[str, NDArray[np.float64]]) -> State:
        """Return the state with streams rotated, after what they were rotated by already.

        Ranges and thresholds are new, and the last walk is repeated.
        """
        before, known = state.overrides.rotations, self.streams[0]
        composed = {**before, **{name: m @ before[name] if name in before else m for name, m in rotations.items()}}
        graph, topology = rescale_channels(self.graph, self.topology, state.overrides.channels, composed)
        nodes = {n for name in rotations for n in (*known[name].producers, *known[name].consumers)}
        touched = {t for name in rotations for t in (*known[name].tensors, *known[name].behind)}
        ranges = self._ranges(graph, topology, touched)
        overrides = replace(state.overrides, rotations=composed)
        return self._renewed(state, graph, topology, overrides, nodes=nodes, ranges=ranges)

    def _renewed(
        self,
        state: State,
        graph: Graph,
        topology: Topology,
        overrides: Overrides,
        *,
        nodes: Collection[str],
        ranges: Mapping[str, Range],
    ) -> State:
        """A state on another network, some `nodes` of which have other weights."""
        table, bits = self._table(graph, topology, ()), self.strategy.bits
        weights = [w.tensor for w in topology.weights if not set(nodes).isdisjoint(w.nodes)]
        thresholds = {t: table.weight_thresholds(t, bits[t]) for t in weights}
        overrides = replace(
            overrides,
            weights={},
            biases={},
            ranges={**state.overrides.ranges, **ranges},
            thresholds={**state.overrides.thresholds, **thresholds},
        )
        found = replace(state, graph=graph, topology=topology, overrides=overrides, layers=())
        if state.walk is not None:
            return self.walked(found, *state.walk)
        return replace(found, overrides=replace(overrides, biases=self._answers(found)))

    def _answers(self, state: State) -> dict[str, NDArray[np.float64]]:
        """Return biases with what the *integer* weights make of the offsets.

        The float weights' answer would leave (Ŵ - W)·offset behind, the same for every sample, which is more than
        absorption gains. A walk corrects biases in any case.
        """
        found: dict[str, NDArray[np.float64]] = {}
        moved = {t: c for t, c in state.overrides.channels.items() if np.any(c.offset)}
        stored = self.plan(state).weights if moved else {}
        for tensor, change in moved.items():
            link = self.layer_pairs[0][tensor]
            offset = np.repeat(change.offset / change.factor, link.repeats)
            for name in link.consumers:
                node, kernel = state.graph.by_name[name], state.topology.kernel_of[name]
                weight, bias = stored[kernel.weight or ""], state.graph.constant(kernel.bias or "")
                axis = state.topology.weight_of[weight.tensor].channel_axis
                scale = weight.scale.astype(np.float64)
                real = weight.centred() * along(scale, axis, weight.values.ndim)
                error = real - state.graph.constant(weight.tensor).astype(np.float64)
                found[name] = bias.astype(np.float64).reshape(-1) + COLUMNS[node.op].response(node, error, offset)
        return found

    @cached_property
    def layer_pairs(self) -> tuple[dict[str, LayerPair], dict[str, str]]:
        """Return the pairs of layers of the float model; changes of channels leave them as they are."""
        return layer_pairs(self.graph, self.topology)

    @cached_property
    def streams(self) -> tuple[dict[str, Stream], dict[str, str]]:
        """Return the streams of the float model; changes of channels leave them as they are."""
        return streams(self.graph, self.topology)

    def extremes(self, state: State, found: Collection[LayerPair], *, moments: bool) -> Mapping[str, ChannelExtremes]:
        """Return statistics per channel of the state's network; with mean and deviation where `moments` are wanted."""
        return channel_extremes(state.graph, list(found), self.samples, moments=moments)

    def _moved(self, group: ScaleGroup) -> float:
        """How the strategy's range differs from the estimated one: a search may have halved it, say."""
        estimated = self._own.group_range(group, self.strategy.bits[group.key]).threshold
        return self.strategy.ranges[group.key].threshold / estimated if estimated > 0 else 1.0

    @cached_property
    def _own(self) -> ThresholdTable:
        tensors = {t for link in self.layer_pairs[0].values() for t in link.tensors}
        tensors |= {t for stream in self.streams[0].values() for t in (*stream.tensors, *stream.behind)}
        groups = [g for g in self.topology.groups if g.fixed is None and tensors.intersection(g.tensors)]
        known = self.profile if self.profile is not None else _NOTHING
        return self._table(self.graph, self.topology, groups, known)

    def measured(self, graph: Graph, tensors: Collection[str]) -> Profile:
        """Return the statistics on the samples; histograms of the VALUES that suffice for a range."""
        if not tensors:
            return _NOTHING
        detail = Detail(most=VALUES, timed=False)
        return measure(graph, list(tensors), self.samples, self.memory_mb, detail=detail)

    def _table(
        self, graph: Graph, topology: Topology, groups: Collection[ScaleGroup], known: Profile = _NOTHING
    ) -> ThresholdTable:
        sources = [s for g in groups for s in g.sources if s not in topology.constants]
        missing = lacking(graph, known.tensors, sources, extremes_only=not self.estimator.needs_histogram)
        if known is _NOTHING or missing:
            known = self.measured(graph, sources)
        return ThresholdTable(
            graph, topology, self.schema, known, estimator=self.estimator, weight_method=self.weight_method
        )


def _composed(state: State, changes: Mapping[str, ChannelChange]) -> dict[str, ChannelChange]:
    """All changes from the float model on."""
    known = state.overrides.channels
    return {**known, **{t: compose(known[t], c) if t in known else c for t, c in changes.items()}}


def _scaled(found: Range, factor: float) -> Range:
    return Range(found.low * factor, found.high * factor)
