"""Measure the cost of each stored tensor, weight and bias alone: the float model with only this one quantized.

All are measured over the same few samples. A cause is at most one float pass over these: from the last cut before it
to the outputs (`stretches`), in a session of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from quantpipe.arrays import Array, along
from quantpipe.evaluate.layers import TensorMoments
from quantpipe.evaluate.nearness import nearness_of
from quantpipe.explain.stretches import States, stretches
from quantpipe.graph.execute import Session, joined, lifted
from quantpipe.graph.extract import part_of
from quantpipe.graph.switches import Switched, with_constants, with_switches
from quantpipe.graph.view import Graph
from quantpipe.intmath import round_real
from quantpipe.metrics.reference import Compared, Found, first_samples, loss_of, reference_of
from quantpipe.oprules.work import multiply_accumulates
from quantpipe.types import (
    Accumulate,
    AloneRow,
    Kernel,
    MomentsRow,
    Quantizer,
    QuantPlan,
    Samples,
    Topology,
    WeightTensor,
)

HEAVY = 10**9
"""Multiply-accumulates of a pass over the samples: from here on a session costs less than what it saves."""

SCREENED = 8
"""Of a heavy model everything is measured on this part of the samples first, and what costs most on all of them."""

KEPT_BYTES = 1 << 29
"""Of the tensors that pass a cut, over all samples."""


@dataclass(frozen=True, eq=False)
class Exchanged:
    """Hold a constant of the float model, and the value of its integers in a plan, both in real units."""

    tensor: str
    kind: str
    node: str
    bits: int
    real: Array = field(repr=False)
    held: Array = field(repr=False)

    def moments(self) -> tuple[MomentsRow | None, MomentsRow | None]:
        """Return the figures of its values before and after."""
        before, after = TensorMoments(), TensorMoments()
        before.add(self.real.astype(np.float64))
        after.add(self.held.astype(np.float64))
        return before.row(), after.row()

    def noise(self) -> float:
        """Return the error of its integers as a share of its mean square."""
        real = self.real.astype(np.float64)
        signal = float(np.sum(real**2))
        return float(np.sum((self.held.astype(np.float64) - real) ** 2)) / signal if signal else 0.0


@dataclass(frozen=True)
class Alone:
    """Hold the cost of one quantized tensor at the outputs."""

    loss: float
    samples: int
    outputs: tuple[AloneRow, ...]


@dataclass(frozen=True)
class Wanted:
    """One thing that is to be quantized alone: a tensor, or one of the two parts of its error, or a constant."""

    name: str
    clip: bool = True
    round: bool = True


@dataclass(frozen=True, eq=False)
class QuantizedParts:
    """Hold the quantized parts of a float model: how its tensors are stored, and the new values of its constants."""

    quantizers: Mapping[str, Quantizer]
    constants: Mapping[str, Exchanged]

    @classmethod
    def of(cls, graph: Graph, topology: Topology, plan: QuantPlan) -> QuantizedParts:
        """Return the numbers of a plan, as far as the float model knows their tensors."""
        real = {"float32", "float64"}
        known = {*graph.producers, *graph.input_names}
        quantizers = {t: q for t, q in plan.quantizers.items() if t in known and graph.dtypes.get(t, "float32") in real}
        return cls(quantizers, {e.tensor: e for e in _exchanged(graph, topology, plan)})


class AloneMeasure:
    """Measure causes one by one, each from the last cut before it (`stretches`).

    `evaluations` counts runs over the samples, `passes` what they come to in whole passes of the float model, by its
    multiply-accumulates.
    """

    def __init__(self, graph: Graph, numbers: QuantizedParts, samples: Samples, *, compared: Compared) -> None:
        self.evaluations, self.passes = 0, 0.0
        self._graph, self.constants = graph, dict(numbers.constants)
        self._quantizers = dict(numbers.quantizers)
        self.tensors = tuple(self._quantizers)
        size = graph.batch_size
        session = Session(graph.model, where=graph.source)
        self.reference = reference_of(session, samples, size, compared)
        del session
        self.passes += 1.0
        self._parts = stretches(graph, self.reference.names, KEPT_BYTES // max(len(samples), 1))
        batches = [{i.name: batch.inputs[i.name] for i in graph.inputs} for batch in samples.batches(size)]
        work = sum(multiply_accumulates(node, graph) for node in graph.nodes) * len(samples)
        self._heavy = work > HEAVY
        self._states = States(graph, self._parts, batches)
        self._part: tuple[int, ir.Model] | None = None
        self._open: tuple[str, Switched, Session] | None = None
        self._few(0)
        self._place = self._places()

    def first(self, wanted: Sequence[Wanted], worst: int, show: Callable[[int, int, str], None]) -> dict[str, Alone]:
        """Return the cost of each by name: all in a light model, else the worst on all samples, others on a part.

        `wanted` must be complete tensors or constants; `worst` of them are measured on all samples. `show` is called
        with the progress.
        """
        part = self.screened
        found = {one.name: a for one, a in zip(wanted, self.measure(wanted, show, part), strict=True)}
        if part and part < len(self._states.at(0)):
            order = worst_first({name: one.loss for name, one in found.items()})[:worst]
            again = [Wanted(name) for name in order]
            found |= {one.name: a for one, a in zip(again, self.measure(again, show), strict=True)}
        return found

    @property
    def screened_samples(self) -> int:
        """Return how many samples these batches hold; all of a light model's."""
        sizes = [len(next(iter(state.values()))) for state in self._states.at(0)]
        return sum(sizes[: self.screened or None])

    @property
    def screened(self) -> int:
        """Return how many batches a heavy model is screened on; 0 for a light one, of which everything runs on all."""
        return -(-len(self._states.at(0)) // SCREENED) if self._heavy else 0

    def measure(
        self, wanted: Sequence[Wanted], show: Callable[[int, int, str], None] | None = None, batches: int = 0
    ) -> list[Alone]:
        """Return the cost of each, in the order of `wanted`; they are measured in the order of the model.

        `batches` batches of the samples are used; 0: all. `show` is called with the progress.
        """
        found: dict[int, Alone] = {}
        self._few(batches)
        for number in sorted(range(len(wanted)), key=lambda n: (self._place.get(wanted[n].name, -1), wanted[n].name)):
            found[number] = self._one(wanted[number])
            if show is not None:
                show(len(found), len(wanted), wanted[number].name)
        self._open = self._part = None  # they hold weights
        return [found[number] for number in range(len(wanted))]

    def _few(self, batches: int) -> None:
        """Go on with so many batches; 0: all."""
        sizes = [len(next(iter(state.values()))) for state in self._states.at(0)]
        self._now = first_samples(self.reference, sum(sizes[: batches or None]), sum(sizes))
        self._batches = batches or None
        self._apart = self._heavy and not batches
        self._open = None
        self._own = self._now.every(self._now.found)

    def _one(self, wanted: Wanted) -> Alone:
        part = self._place.get(wanted.name)
        if part is None:  # no output that is compared depends on it
            return Alone(
                0.0, len(self._now.outputs), tuple({"output": name, "sqnr_db": None} for name in self.reference.names)
            )
        switched, session = self._opened(wanted.name, part)
        on = self._switched(wanted, switched)
        names = self._now.names
        here = [switched.outputs[name] for name in names]
        known = set(session.inputs)
        parts = [
            session.run({**{t: a for t, a in state.items() if t in known}, **on}, here)
            for state in self._states.at(part)[: self._batches]
        ]
        self.evaluations += 1
        self.passes += self._parts[part].rest * len(self._now.outputs) / len(self.reference.outputs)
        parts = [lifted(one, [h for n, h in zip(names, here, strict=True) if n in self._now.selected]) for one in parts]
        found = {name: joined([one[h] for one in parts]) for name, h in zip(names, here, strict=True)}
        outputs: Found = found if len(found) > 1 else found[names[0]]
        rows = [nearness_of(name, self._own[name], found[name]) for name in names]
        return Alone(
            loss_of(self._now, outputs),
            len(self._now.outputs),
            tuple({"output": row["output"], "sqnr_db": row["sqnr_db"]} for row in rows),
        )

    def _switched(self, wanted: Wanted, switched: Switched) -> dict[str, Array]:
        """Return the feeds of a run in addition to the tensors at the cut."""
        found = dict.fromkeys((*switched.clips.values(), *switched.rounds.values()), np.asarray(False))
        if wanted.name in self.constants:
            return found if self._apart else {**found, wanted.name: self.constants[wanted.name].held}
        found[switched.clips[wanted.name]] = np.asarray(wanted.clip)
        found[switched.rounds[wanted.name]] = np.asarray(wanted.round)
        return found

    def _opened(self, name: str, part: int) -> tuple[Switched, Session]:
        """Return the model from the beginning of a stretch on, with switches for what is quantized in that stretch.

        In a heavy model it is a session of its own for each. Switches are computed in every run, and weights that may
        be exchanged keep the runtime from laying them out in advance. In a light one, and on the few samples that a
        heavy one is screened on, sessions cost more than that.
        """
        key = name if self._apart else str(part)
        if self._open is None or self._open[0] != key:
            self._open = None
            if self._part is None or self._part[0] != part:
                self._part = part, part_of(self._graph, self._parts[part].reads, self.reference.names).model
            names = [name] if self._apart else [one for one, place in self._place.items() if place == part]
            constants = {one: self.constants[one].held for one in names if one in self.constants}
            quantizers = {one: self._quantizers[one] for one in names if one in self._quantizers}
            model = with_constants(self._part[1], constants) if self._apart and constants else self._part[1]
            switched = with_switches(model, quantizers, () if self._apart else constants)
            self._open = key, switched, Session(switched.model, where="float model with switches")
        return self._open[1], self._open[2]

    def _places(self) -> dict[str, int]:
        """Return the stretch of everything that some compared output depends on."""
        model = part_of(self._graph, [i.name for i in self._graph.inputs], self.reference.names).model
        made = {v.name or "" for node in model.graph for v in node.outputs} | {v.name or "" for v in model.graph.inputs}
        made |= set(model.graph.initializers)
        node_of = {node.name: number for number, node in enumerate(self._graph.nodes)}
        found = {}
        for name in (*self._quantizers, *self.constants):
            maker = self._graph.producers.get(name)
            readers = [node_of[node.name] for node, _ in self._graph.consumers.get(name, ()) if node.outputs[0] in made]
            if name in self.constants:
                number = min(readers, default=-1)
            else:
                number = node_of[maker.name] if maker is not None else 0
            if name in made and number >= 0:
                found[name] = next(n for n, part in enumerate(self._parts) if number < part.stop)
        return found


def _exchanged(graph: Graph, topology: Topology, plan: QuantPlan) -> list[Exchanged]:
    """Return every weight and bias of the kernels, as far as the float model has it as a constant of the same shape."""
    found = []
    for kernel in topology.kernels:
        weight = plan.weights.get(kernel.weight or "")
        if weight is not None and _plain(graph, weight.tensor):
            real = graph.constant(weight.tensor)
            found.append(Exchanged(weight.tensor, "weight", kernel.node, weight.bits, real, _real(weight, real)))
        bias = _bias(graph, kernel, plan)
        if bias is not None:
            found.append(bias)
    pairs = [(site.node, tensor) for site in topology.loops for _, tensor in site.products]
    pairs += [(node, topology.weighted_of[node].weight or "") for node in topology.dynamic]
    pairs += [(cell.node, tensor) for cell in topology.cells for tensor in cell.weights]
    for node, tensor in dict.fromkeys(pairs):
        weight, real = plan.weights[tensor], graph.constant(tensor)
        found.append(Exchanged(tensor, "weight", node, weight.bits, real, _real(weight, real)))
    for name in plan.constants:
        reader = next((n.name for n, _ in graph.consumers.get(name, ())), "")
        quantizer = plan.quantizers.get(name)
        if quantizer is not None and _plain(graph, name):
            real, scale = graph.constant(name), float(quantizer.scale)
            held = np.clip(round_real(real / scale), quantizer.low, quantizer.high) * scale
            found.append(Exchanged(name, "weight", reader, quantizer.bits, real, np.asarray(held, real.dtype)))
    return list({e.tensor: e for e in found}.values())


def _plain(graph: Graph, name: str) -> bool:
    return graph.is_constant(name) and name in graph.model.graph.initializers


def _real(weight: WeightTensor, real: Array) -> Array:
    scale = along(weight.scale.astype(np.float64), weight.axis or 0, real.ndim)
    return np.asarray((weight.centred().astype(np.float64) * scale).reshape(real.shape), real.dtype)


def _bias(graph: Graph, kernel: Kernel, plan: QuantPlan) -> Exchanged | None:
    numbers = plan.kernels.get(kernel.node)
    if not isinstance(numbers, Accumulate) or numbers.bias is None or not kernel.bias or not _plain(graph, kernel.bias):
        return None
    real = graph.constant(kernel.bias)
    held = np.asarray(numbers.bias, np.float64) * np.asarray(numbers.acc_scale, np.float64)
    beta = float(graph.by_name[kernel.node].attr("beta", 1.0))
    if held.size != real.size or beta == 0.0:
        return None
    held = (held / beta).reshape(real.shape).astype(real.dtype)
    return Exchanged(kernel.bias, "bias", kernel.node, 32, real, held)


def worst_first(losses: Mapping[str, float]) -> Sequence[str]:
    """Return the names by falling loss; what is no number comes first."""
    return sorted(losses, key=lambda name: -losses[name] if losses[name] == losses[name] else -np.inf)


def by_cost(found: Mapping[str, Alone]) -> Sequence[str]:
    """Return names by falling loss, those first that were measured on all samples."""
    most = max((one.samples for one in found.values()), default=0)
    whole = worst_first({name: one.loss for name, one in found.items() if one.samples == most})
    return [*whole, *worst_first({name: one.loss for name, one in found.items() if one.samples != most})]
