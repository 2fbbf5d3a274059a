"""What each stored tensor, weight and bias costs alone: the float model with nothing but this one quantized.

One session serves all of them (`graph.switches`), over the same few samples: a cause is one float pass over these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.evaluate.layers import Moments
from quantpipe.evaluate.nearness import nearness_of
from quantpipe.graph.execute import Session, joined
from quantpipe.graph.switches import with_switches
from quantpipe.graph.view import Graph
from quantpipe.intmath import round_real
from quantpipe.metrics.reference import Compared, Found, loss_of, reference_of
from quantpipe.types import (
    Accumulate,
    AloneRow,
    Kernel,
    MomentsRow,
    QuantPlan,
    Samples,
    Topology,
    WeightTensor,
)

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Exchanged:
    """A constant of the float model, and what the integers of a plan make of it, both in real units."""

    tensor: str
    kind: str
    node: str
    bits: int
    real: Array = field(repr=False)
    held: Array = field(repr=False)

    def moments(self) -> tuple[MomentsRow | None, MomentsRow | None]:
        """Return the figures of its values before and after."""
        before, after = Moments(), Moments()
        before.add(self.real.astype(np.float64))
        after.add(self.held.astype(np.float64))
        return before.row(), after.row()


@dataclass(frozen=True)
class Alone:
    """What one quantized tensor costs at the outputs."""

    loss: float
    outputs: tuple[AloneRow, ...]


class AloneMeasure:
    """Measure causes one by one. `evaluations` counts float passes over the samples."""

    def __init__(
        self, graph: Graph, topology: Topology, plan: QuantPlan, samples: Samples, *, compared: Compared
    ) -> None:
        real = {"float32", "float64"}
        known = {*graph.producers, *graph.input_names}
        quantizers = {t: q for t, q in plan.quantizers.items() if t in known and graph.dtypes.get(t, "float32") in real}
        self.evaluations = 0
        self.tensors = tuple(quantizers)
        self.constants = {e.tensor: e for e in _exchanged(graph, topology, plan)}
        self._size = graph.batch_size
        self._batches = [batch.inputs for batch in samples.batches(self._size)]
        session = Session(graph.model, where=graph.source)
        self.reference = reference_of(session, samples, self._size, compared)
        switched = with_switches(graph.model, quantizers, self.constants)
        self._switches = switched
        self._session = Session(switched.model, where="float model with switches")
        self._off = dict.fromkeys((*switched.clips.values(), *switched.rounds.values()), np.asarray(False))

    def tensor(self, name: str, *, clip: bool = True, round_: bool = True) -> Alone:
        """Return what a stored tensor costs, or one of the two parts of its error."""
        on = {self._switches.clips[name]: np.asarray(clip), self._switches.rounds[name]: np.asarray(round_)}
        return self._run(on)

    def constant(self, name: str) -> Alone:
        """Return what a weight or a bias costs."""
        return self._run({name: self.constants[name].held})

    def _run(self, feeds: Mapping[str, Array]) -> Alone:
        self.evaluations += 1
        names = self.reference.names
        here = [self._switches.outputs[name] for name in names]
        parts = [self._session.run({**self._off, **feeds, **batch}, here) for batch in self._batches]
        found = {name: joined([part[h] for part in parts]) for name, h in zip(names, here, strict=True)}
        outputs: Found = found if len(found) > 1 else found[names[0]]
        own = self.reference.every(self.reference.found)
        rows = [nearness_of(name, own[name], found[name]) for name in names]
        return Alone(
            loss_of(self.reference, outputs),
            tuple({"output": row["output"], "sqnr_db": row["sqnr_db"]} for row in rows),
        )


def _exchanged(graph: Graph, topology: Topology, plan: QuantPlan) -> list[Exchanged]:
    """Every weight and bias of the kernels, as far as the float model has it as a constant of the same shape."""
    found = []
    for kernel in topology.kernels:
        weight = plan.weights.get(kernel.weight or "")
        if weight is not None and _plain(graph, weight.tensor):
            real = graph.constant(weight.tensor)
            found.append(Exchanged(weight.tensor, "weight", kernel.node, weight.bits, real, _real(weight, real)))
        bias = _bias(graph, kernel, plan)
        if bias is not None:
            found.append(bias)
    for name in plan.constants:
        node = next((n.name for n, _ in graph.consumers.get(name, ())), "")
        quantizer = plan.quantizers.get(name)
        if quantizer is not None and _plain(graph, name):
            real, scale = graph.constant(name), float(quantizer.scale)
            held = np.clip(round_real(real / scale), quantizer.low, quantizer.high) * scale
            found.append(Exchanged(name, "weight", node, quantizer.bits, real, np.asarray(held, real.dtype)))
    return list({e.tensor: e for e in found}.values())


def _plain(graph: Graph, name: str) -> bool:
    return graph.is_constant(name) and name in graph.model.graph.initializers


def _real(weight: WeightTensor, real: Array) -> Array:
    scale = np.asarray(weight.scale, np.float64)
    if scale.ndim:
        shape = [1] * real.ndim
        shape[weight.axis or 0] = -1
        scale = scale.reshape(shape)
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
