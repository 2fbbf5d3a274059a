"""The walk of calibrators: kernel by kernel in graph order, with four views of each.

A tensor of the quantized model is kept as the layer gives it, before its result is rounded: it is rounded where it is
read, by the range that holds there. So a decision about an input is seen at once, and all layers after it see it, too.
Layers are run as far as calibrators look (`layer_stream.py`): a batch that none of them asks for costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from quantpipe import extend, intmath
from quantpipe.arrays import Array
from quantpipe.calibrate.decided import DecidedEstimator
from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.errors import ConfigError, brief
from quantpipe.extend import Calibrator, ExactGrid, LayerDecision, Views
from quantpipe.oprules import rule_of
from quantpipe.plan import Problem
from quantpipe.plan.weight_blocks import real_weight
from quantpipe.recover.layer_stream import LayerStream, Numbers, UnitRounding, rounded
from quantpipe.recover.layer_units import Calibrated, Choosing, LayerUnit, units_of, walked
from quantpipe.types import Form, Kernel, Range, Samples, ScaleGroup, Strategy, Symmetry, WeightTensor

T = TypeVar("T")
Progress = Callable[[int, int, str], None]


def calibrate_layers(
    problem: Problem,
    table: ThresholdTable,
    strategy: Strategy,
    samples: Samples,
    *,
    choosing: Choosing,
    memory_mb: int,
    progress: Progress = lambda done, total, note: None,
) -> Calibrated:
    """Ask the calibrators for every kernel, in graph order, and put what they decide into the table's estimator.

    `table`: the ranges that it begins with, of a `DecidedEstimator`, which is filled. `memory_mb`: what the walk may
    take: a quarter for tensors between layers, half for layers that run. Raises ConfigError, naming the package, for a
    calibrator that raises or decides what is not legal.
    """
    decided = table.estimator
    assert isinstance(decided, DecidedEstimator)  # noqa: S101  (chosen so by the caller; narrows the type)
    walk = _Walk(problem, table, strategy, decided, choosing)
    graph = problem.graph
    units = list(units_of(graph, problem.topology.kernel_of, problem.topology.fused_into))
    inputs = (batch.inputs for batch in walked(graph, samples))
    with LayerStream(graph, units, inputs, decisions=walk, memory_mb=memory_mb) as walk.stream:
        for index, unit in enumerate(units):
            progress(index, len(units), unit.nodes[-1].name)
            if unit.kernel is not None:
                walk.take(index, unit, unit.kernel)
    return Calibrated(walk.by_range, walk.by_weight)


@dataclass(eq=False)
class _Walk:
    problem: Problem
    table: ThresholdTable
    strategy: Strategy
    decided: DecidedEstimator
    choosing: Choosing
    stream: LayerStream = field(init=False)
    by_range: dict[str, str] = field(default_factory=dict)
    by_weight: dict[str, str] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    """Scale groups that some layer has read by now."""

    def take(self, index: int, unit: LayerUnit, kernel: Kernel) -> None:
        """Let the calibrator of a kernel decide, if there is one."""
        view, chooser = _View(self, index, unit, kernel), self.choosing.of(kernel.op)
        if chooser is not None and (view.open or view.thresholds is not None):
            self._ask(view, kernel, *chooser)
        self.seen |= {g.key for t in view.inputs if (g := self.group(t)) is not None}

    def _ask(self, view: _View, kernel: Kernel, who: str, calibrator: Calibrator) -> None:
        ours = who == self.choosing.name
        try:
            found = calibrator(view)
        except ConfigError:
            raise
        except Exception as error:  # a package's own code
            why = f"its calibrator raised {type(error).__name__} at {kernel.node}: {brief(error)}"
            raise (ConfigError(why, where=who) if ours else extend.refused(who, why)) from error
        if found is None:
            return
        if not isinstance(found, LayerDecision):
            view.refuse(who, f"gives a {type(found).__name__}; legal are a LayerDecision and None")
        for tensor, given in found.ranges.items():
            group = self.group(tensor)
            if group is None or tensor not in view.open:
                view.refuse(who, f"decides on {tensor!r}; open there are {', '.join(view.open) or 'no inputs'}")
            self.decided.ranges[group.key] = (self.strategy.bits[group.key], view.range_from(tensor, given, who))
            self.by_range[group.key] = who
        if found.weight is not None:
            tensor = kernel.weight or ""
            self.decided.weights[tensor] = (self.strategy.bits[tensor], view.thresholds_from(found.weight, who))
            self.by_weight[tensor] = who

    def group(self, tensor: str) -> ScaleGroup | None:
        """Return the scale group of a stored tensor."""
        return self.problem.topology.group_of.get(tensor)

    def range_of(self, tensor: str) -> Range:
        """Return the range that holds for a stored tensor now."""
        group = self.problem.topology.group_of[tensor]
        return self.table.group_range(group, self.strategy.bits[group.key])

    def numbers(self, tensor: str, range_: Range | None = None) -> Numbers:
        """Return how a stored tensor is rounded, by the range that holds now or another one."""
        group, schema = self.problem.topology.group_of[tensor], self.problem.schema.activations
        return intmath.scale_zero_point(
            range_ or self.range_of(tensor), self.strategy.bits[group.key], group.dtype, schema
        )

    def weight_key(self, tensor: str) -> bytes:
        """Return the thresholds of a weight that hold now, as bytes."""
        return self.table.weight_thresholds(tensor, self.strategy.bits[tensor]).tobytes()

    def weight(self, tensor: str, thresholds: NDArray[np.float64] | None = None) -> Array:
        """Return the real values of the integer weight, by the thresholds that hold now or other ones."""
        bits = self.strategy.bits[tensor]
        own = self.table.weight_thresholds(tensor, bits) if thresholds is None else thresholds
        made = self.problem.planner.weight(tensor, bits, own)
        return _real(made, self.problem.topology.weight_of[tensor].channel_axis)


@dataclass(frozen=True, eq=False)
class _Trial:
    """What a decision makes of a layer: how its inputs are rounded, and its weight, told apart by a key."""

    numbers: Mapping[str, Numbers]
    key: bytes | None = None
    make: Callable[[], Array] | None = None


class _View:
    """One layer, as a calibrator sees it (`quantpipe.extend.Layer`)."""

    def __init__(self, walk: _Walk, index: int, unit: LayerUnit, kernel: Kernel) -> None:
        graph, node = walk.problem.graph, unit.nodes[0]
        self._walk, self._index = walk, index
        self.node, self.op = node.name, node.op
        self.attributes: Mapping[str, Any] = {name: node.attr(name) for name in node.attributes}
        operands = kernel.operands
        self.inputs = tuple(dict.fromkeys(o.tensor for o in operands if not graph.is_constant(o.tensor)))
        self.outputs = tuple(unit.makes)
        self.weight = kernel.weight
        self.weight_shape: tuple[int, ...] | None = None
        if kernel.weight is not None:
            self.weight_shape = graph.constant(kernel.weight).shape
        rule = rule_of(node)
        self.output_axis = rule.output_axis if rule is not None else 1
        self._stored = {o.tensor for o in operands if o.form is Form.QUANTIZED}

    # --- what a calibrator reads ------------------------------------------------------------------------------------

    @property
    def samples(self) -> int:
        """Return how many samples the walk has."""
        return self._walk.stream.samples

    @property
    def open(self) -> tuple[str, ...]:
        """Return the stored inputs whose range nobody has decided yet."""
        walk = self._walk

        def is_open(tensor: str) -> bool:
            group = walk.group(tensor)
            return group is not None and group.fixed is None and group.key not in walk.seen

        found: dict[str, str] = {}
        for tensor in self.inputs:
            if tensor in self._stored and is_open(tensor):
                found.setdefault(walk.problem.topology.group_of[tensor].key, tensor)
        return tuple(found.values())

    @property
    def ranges(self) -> Mapping[str, Range]:
        """Return the range of each stored input, earlier decisions included."""
        return {t: self._walk.range_of(t) for t in self.inputs if t in self._stored}

    @property
    def extremes(self) -> Mapping[str, Range]:
        """Return the minimum and maximum value that calibration saw of each stored input."""
        group_of = self._walk.problem.topology.group_of
        return {t: self._walk.table.extremes(group_of[t]) for t in self.inputs if t in self._stored}

    @property
    def thresholds(self) -> NDArray[np.float64] | None:
        """Return the weight's thresholds; None where there is no weight to decide, or an earlier layer has it, too."""
        walk, tensor = self._walk, self.weight
        if tensor is None:
            return None
        site = walk.problem.topology.weight_of[tensor]
        if site.fixed is not None or site.frozen or site.nodes[0] != self.node:
            return None
        return walk.table.weight_thresholds(tensor, walk.strategy.bits[tensor])

    @property
    def bits(self) -> Mapping[str, int]:
        """Return the bits of the stored inputs and of the weight."""
        bits = self._walk.strategy.bits
        return {t: bits[t] for t in (*self.inputs, self.weight or "") if t in bits}

    def batches(self, decision: LayerDecision | None = None, share: float = 1.0) -> Iterator[Views]:
        """Yield the four views, as they are with a decision, on a share of the batches."""
        return (views for (views,) in self.compare([decision], share))

    def compare(self, decisions: Sequence[LayerDecision | None], share: float = 1.0) -> Iterator[tuple[Views, ...]]:
        """Yield the views of each batch for several decisions, on a share of the batches."""
        return self._each(decisions, share, lambda views: views)

    def measure(
        self, decisions: Sequence[LayerDecision | None], of: Callable[[tuple[Views, ...]], T], share: float = 1.0
    ) -> list[T]:
        """Return what a function makes of the views of each batch, on a share of the batches, side by side."""
        return list(self._each(decisions, share, of))

    def _each(
        self, decisions: Sequence[LayerDecision | None], share: float, of: Callable[[tuple[Views, ...]], T]
    ) -> Iterator[T]:
        stream, index = self._walk.stream, self._index
        numbers = stream.share(share)
        stream.reach(index, numbers)
        trials = [self._trial(d or LayerDecision()) for d in decisions]
        runner = stream.runner(index)
        _, *sessions = stream.sessions(runner, [(None, None), *((t.key, t.make) for t in trials)])

        def run(number: int) -> T:
            real, reached = stream.real(index, number), stream.reached(index, number)
            wanted = stream.wanted(number, runner, real)
            made: dict[tuple[str, Numbers], Array] = {}
            found = []
            for trial, session in zip(trials, sessions, strict=True):
                feeds = dict(reached)
                for tensor, how in trial.numbers.items():
                    if (tensor, how) not in made:
                        made[tensor, how] = rounded(reached[tensor], how)
                    feeds[tensor] = made[tensor, how]
                outputs = session.run(feeds, self.outputs)
                if len(trials) == 1:
                    stream.offer(index, number, UnitRounding(trial.numbers, trial.key), outputs)
                seen = _some(wanted, self.outputs), _some(outputs, self.outputs)
                found.append(Views(_some(real, self.inputs), _some(feeds, self.inputs), *seen))
            return of(tuple(found))

        return stream.side_by_side(run, numbers)

    def _trial(self, decision: LayerDecision) -> _Trial:
        walk = self._walk
        ranges = {t: self.range_from(t, r, "") for t, r in decision.ranges.items()}
        numbers = {t: walk.numbers(t, ranges.get(t)) for t in walk.stream.runner(self._index).stored}
        weight = self.weight
        if weight is None:
            return _Trial(numbers)
        if decision.weight is None:
            return _Trial(numbers, walk.weight_key(weight), lambda: walk.weight(weight))
        thresholds = self.thresholds_from(decision.weight, "")
        return _Trial(numbers, thresholds.tobytes(), lambda: walk.weight(weight, thresholds))

    # --- what is decided --------------------------------------------------------------------------------------------

    def range_from(self, tensor: str, given: Any, who: str) -> Range:
        """Return a decided range, or the range of exact numbers; ConfigError for what is neither or cannot be."""
        schema = self._walk.problem.schema.activations
        if isinstance(given, ExactGrid):
            scale, zero = float(np.asarray(given.scale)), int(np.asarray(given.zero_point))
            _, middle, qmin, qmax = self._walk.numbers(tensor, Range(-1.0, 1.0))
            found = Range((qmin - zero) * scale, (qmax - zero) * scale)
            if schema.symmetry is Symmetry.SYMMETRIC and zero == middle:
                group = self._walk.problem.topology.group_of[tensor]
                bits = self._walk.strategy.bits[group.key]
                top = scale * intmath.symmetric_steps(bits, intmath.signed_storage(bits), schema)
                found = Range(-top, top)
            legal = np.isfinite(scale) and scale > 0 and found.low <= 0 <= found.high
            made = self._walk.numbers(tensor, found) if legal else (np.float32(0), 0)
            if made[0] != np.float32(scale) or made[1] != zero:
                name = self._walk.problem.schema.name
                self.refuse(
                    who,
                    f"gives {tensor} the scale {scale:g} and the zero point {zero}, which its bits and the schema "
                    f"{name} cannot have",
                )
            return found
        if not isinstance(given, Range) or not np.isfinite([given.low, given.high]).all():
            self.refuse(who, f"gives {tensor} {given!r}; legal are a finite Range and an ExactGrid")
        if schema.symmetry is Symmetry.SYMMETRIC:
            top = max(-given.low, given.high)
            return Range(-top, top)
        return given

    def thresholds_from(self, given: Any, who: str) -> NDArray[np.float64]:
        """Return decided thresholds of the weight, or thresholds of exact numbers, in the form that it has."""
        own, schema = self.thresholds, self._walk.problem.schema.weights
        if own is None:
            self.refuse(who, "decides on a weight, and this layer has no open weight")
        if isinstance(given, ExactGrid):
            bits = self._walk.strategy.bits[self.weight or ""]
            scale = np.broadcast_to(np.asarray(given.scale, np.float64), own.shape[: max(own.ndim - 1, 0)] or own.shape)
            if own.ndim < 2:
                scale = np.broadcast_to(np.asarray(given.scale, np.float64), own.shape)
                found = scale * intmath.symmetric_steps(bits, intmath.signed_storage(bits), schema)
            else:
                dtype = self._walk.problem.topology.weight_of[self.weight or ""].dtype
                low, high = intmath.integer_bounds(bits, dtype, schema, positive=False)
                zero = np.broadcast_to(np.asarray(given.zero_point, np.float64), scale.shape)
                found = np.stack([(low - zero) * scale, (high - zero) * scale], axis=1)
        else:
            found = np.asarray(given, np.float64)
        if found.shape != own.shape or not np.isfinite(found).all():
            self.refuse(who, f"gives the weight thresholds of {found.shape}; legal are finite ones of {own.shape}")
        ends = found if found.ndim == 2 else np.stack([-np.atleast_1d(found), np.atleast_1d(found)], axis=1)
        if np.any(ends[:, 0] > 0) or np.any(ends[:, 1] < 0):
            self.refuse(who, "gives the weight a range without 0 in it")
        return np.asarray(found)

    def refuse(self, who: str, why: str) -> NoReturn:
        """Raise ConfigError about a decision, naming the package."""
        text = f"its calibrator of {self.node} {why}"
        if not who or who == self._walk.choosing.name:
            raise ConfigError(text, where=who or "threshold")
        raise extend.refused(who, text)


def _some(arrays: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
    """Some arrays to be looked at: the walk goes on with them, so nobody else may write there."""
    found = {name: arrays[name].view() for name in names if name in arrays}
    for array in found.values():
        array.flags.writeable = False
    return found


def _real(weight: WeightTensor, channel_axis: int) -> Array:
    if weight.has_real_blocks:
        return real_weight(weight, channel_axis)
    return intmath.dequantize(weight.values, weight.scale, weight.zero_point, weight.axis)
