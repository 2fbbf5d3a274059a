"""The walk of calibrators: kernel by kernel in graph order, with four views of each.

A tensor of the quantized model is kept as the layer gives it, before its result is rounded: it is rounded where it is
read, by the range that holds there. So a decision about an input is seen at once, and all layers behind it see it, too.
Each layer runs once in float and once quantized over all samples, beside what a calibrator tries; tensors are kept in
memory up to a limit and in files beyond it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import ceil
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from quantpipe import extend, intmath
from quantpipe.calibrate.decided import DecidedEstimator
from quantpipe.calibrate.table import ThresholdTable
from quantpipe.errors import ConfigError, brief
from quantpipe.extend import Calibrator, ExactGrid, LayerDecision, Views
from quantpipe.graph.execute import Session
from quantpipe.graph.extract import part_of
from quantpipe.oprules import rule_of
from quantpipe.plan import Problem
from quantpipe.plan.blocks import real_weight
from quantpipe.recover.layer_units import MOST, Calibrated, Choosing, Unit, samples_per_batch, units_of
from quantpipe.recover.reconstruct.activation_store import ActivationStore
from quantpipe.types import Form, Kernel, Range, Samples, ScaleGroup, Strategy, Symmetry, WeightTensor

Array = NDArray[Any]
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

    Args:
        problem: the network with its device and schema.
        table: the ranges that it begins with, of a `DecidedEstimator`, which is filled.
        strategy: the bits that decisions are about.
        samples: the calibration samples.
        choosing: who decides.
        memory_mb: what tensors kept between layers may take.
        progress: is told how far the walk is.

    Returns:
        What was decided.

    Raises:
        ConfigError: naming the package, for a calibrator that raises or decides what is not legal.
    """
    decided = table.estimator
    assert isinstance(decided, DecidedEstimator)  # noqa: S101  (chosen so by the caller; narrows the type)
    walk = _Walk(problem, table, strategy, decided, choosing)
    graph = problem.graph
    units = list(units_of(graph, problem.topology.kernel_of, problem.topology.fused_into))
    last = {t: number for number, unit in enumerate(units) for t in unit.reads}
    stride = ceil(len(samples) / MOST)
    size = samples_per_batch(graph, ceil(len(samples) / stride))
    with ActivationStore(memory_mb << 18) as real, ActivationStore(memory_mb << 18) as reached:
        walk.stores = (real, reached)
        for number, batch in enumerate(islice(samples.batches(size), 0, None, stride)):
            walk.count = number + 1
            for name, array in batch.inputs.items():
                real.put(name, number, array)
                reached.put(name, number, array)
        for number, unit in enumerate(units):
            progress(number, len(units), unit.nodes[-1].name)
            walk.take(unit)
            gone = [t for t in (*unit.reads, *unit.makes) if last.get(t, -1) <= number]
            real.drop(gone)
            reached.drop(gone)
    return Calibrated(walk.by_range, walk.by_weight)


@dataclass(eq=False)
class _Walk:
    problem: Problem
    table: ThresholdTable
    strategy: Strategy
    decided: DecidedEstimator
    choosing: Choosing
    stores: tuple[ActivationStore, ActivationStore] = field(init=False)
    count: int = 0
    by_range: dict[str, str] = field(default_factory=dict)
    by_weight: dict[str, str] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    """Scale groups that some layer has read by now."""

    def take(self, unit: Unit) -> None:
        """Run a unit in float; let the calibrator decide, if there is one; run it quantized."""
        graph, kernel = self.problem.graph, unit.kernel
        wanted = [t for t in unit.makes if t in graph.consumers]
        chooser = self.choosing.of(kernel.op) if kernel is not None else None
        if not wanted and chooser is None:
            return
        view = _View(self, unit, list(unit.makes) if chooser is not None else wanted)
        for number in range(self.count):
            for tensor, array in view.run(number, view.real(number), None).items():
                self.stores[0].put(tensor, number, array)
        if kernel is not None and chooser is not None and (view.open or view.thresholds is not None):
            self._ask(view, kernel, *chooser)
        if kernel is not None:
            self.seen |= {g.key for t in view.inputs if (g := self.group(t)) is not None}
        if not wanted:
            return
        weight = view.weight_of(None)
        for number in range(self.count):
            for tensor, array in view.run(number, view.quantized(number, {}), weight).items():
                self.stores[1].put(tensor, number, array)

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


class _View:
    """One layer, as a calibrator sees it (`quantpipe.extend.Layer`)."""

    def __init__(self, walk: _Walk, unit: Unit, wanted: Sequence[str]) -> None:
        graph, kernel, node = walk.problem.graph, unit.kernel, unit.nodes[0]
        self._walk, self._unit = walk, unit
        self.node, self.op = node.name, node.op
        self.attributes: Mapping[str, Any] = {name: node.attr(name) for name in node.attributes}
        operands = kernel.operands if kernel is not None else ()
        self.inputs = tuple(dict.fromkeys(o.tensor for o in operands if not graph.is_constant(o.tensor)))
        self.outputs = tuple(wanted)
        self.weight = kernel.weight if kernel is not None else None
        rule = rule_of(node)
        self.output_axis = rule.output_axis if rule is not None else 1
        self._stored = {o.tensor for o in operands if o.form is Form.QUANTIZED}
        ports = [*unit.reads, *([self.weight] if self.weight is not None else [])]
        self._session = Session(part_of(graph, ports, list(wanted)).model, where=node.name)
        self._shown: Mapping[str, Range] | None = None

    # --- what a calibrator reads ------------------------------------------------------------------------------------

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
        """Return the least and the greatest value of each stored input in the float model."""
        if self._shown is None:
            store, count = self._walk.stores[0], self._walk.count
            ends = {t: [store.get(t, n) for n in range(count)] for t in self.inputs if t in self._stored}
            self._shown = {
                t: Range(min(float(a.min()) for a in arrays), max(float(a.max()) for a in arrays))
                for t, arrays in ends.items()
            }
        return self._shown

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
        given, weight = decision or LayerDecision(), None
        ranges = {t: self.range_from(t, r, "") for t, r in given.ranges.items()}
        weight = self.weight_of(None if given.weight is None else self.thresholds_from(given.weight, ""))
        count = self._walk.count
        for number in np.unique(np.linspace(0, count - 1, max(1, round(share * count))).round().astype(int)).tolist():
            real, quantized = self.real(number), self.quantized(number, ranges)
            outputs = {t: self._walk.stores[0].get(t, number) for t in self.outputs}
            found = self.run(number, quantized, weight)
            yield Views(_some(real, self.inputs), _some(quantized, self.inputs), outputs, found)

    # --- running ----------------------------------------------------------------------------------------------------

    def real(self, number: int) -> dict[str, Array]:
        """Return what the layer reads in the float model."""
        return {t: self._walk.stores[0].get(t, number) for t in self._unit.reads}

    def quantized(self, number: int, ranges: Mapping[str, Range]) -> dict[str, Array]:
        """Return what the layer reads in the quantized model; `ranges` stand in place of its inputs' own."""
        found = {t: self._walk.stores[1].get(t, number) for t in self._unit.reads}
        for tensor in self._stored & set(found):
            found[tensor] = self._rounded(tensor, found[tensor], ranges.get(tensor) or self._walk.range_of(tensor))
        return found

    def run(self, number: int, feeds: Mapping[str, Array], weight: Array | None) -> dict[str, Array]:
        """Return the layer's outputs; the float weight where none is given."""
        given = dict(feeds)
        if self.weight is not None:
            given[self.weight] = self._walk.problem.graph.constant(self.weight) if weight is None else weight
        return dict(self._session.run(given))

    def weight_of(self, thresholds: NDArray[np.float64] | None) -> Array | None:
        """Return the real values of the integer weight, by its own thresholds or other ones."""
        walk, tensor = self._walk, self.weight
        if tensor is None:
            return None
        bits = walk.strategy.bits[tensor]
        own = walk.table.weight_thresholds(tensor, bits) if thresholds is None else thresholds
        made = walk.problem.planner.weight(tensor, bits, own)
        return _real(made, walk.problem.topology.weight_of[tensor].channel_axis)

    def _rounded(self, tensor: str, array: Array, range_: Range) -> Array:
        scale, zero, qmin, qmax = self._numbers(tensor, range_)
        steps = np.divide(array, scale, dtype=np.float32)
        intmath.nearest_step(steps, np.float32(qmin - zero), np.float32(qmax - zero), out=steps)
        return np.multiply(steps, scale, out=steps)

    def _numbers(self, tensor: str, range_: Range) -> tuple[np.float32, int, int, int]:
        walk = self._walk
        group = walk.problem.topology.group_of[tensor]
        return intmath.scale_zero_point(
            range_, walk.strategy.bits[group.key], group.dtype, walk.problem.schema.activations
        )

    # --- what is decided --------------------------------------------------------------------------------------------

    def range_from(self, tensor: str, given: Any, who: str) -> Range:
        """Return a decided range, or that of exact numbers; ConfigError for what is neither or cannot be."""
        schema = self._walk.problem.schema.activations
        if isinstance(given, ExactGrid):
            scale, zero = float(np.asarray(given.scale)), int(np.asarray(given.zero_point))
            _, middle, qmin, qmax = self._numbers(tensor, Range(-1.0, 1.0))
            found = Range((qmin - zero) * scale, (qmax - zero) * scale)
            if schema.symmetry is Symmetry.SYMMETRIC and zero == middle:
                group = self._walk.problem.topology.group_of[tensor]
                bits = self._walk.strategy.bits[group.key]
                top = scale * intmath.symmetric_steps(bits, intmath.signed_storage(bits), schema)
                found = Range(-top, top)
            legal = np.isfinite(scale) and scale > 0 and found.low <= 0 <= found.high
            made = self._numbers(tensor, found) if legal else (np.float32(0), 0)
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
        """Return decided thresholds of the weight, or those of exact numbers, in the form that it has."""
        own, schema = self.thresholds, self._walk.problem.schema.weights
        if own is None:
            self.refuse(who, "decides on a weight, and there is none to decide")
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
    return {name: arrays[name] for name in names if name in arrays}


def _real(weight: WeightTensor, channel_axis: int) -> Array:
    if weight.has_real_blocks:
        return real_weight(weight, channel_axis)
    return intmath.dequantize(weight.values, weight.scale, weight.zero_point, weight.axis)
