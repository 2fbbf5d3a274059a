"""Remedies for a quantized file: changes of its scales and integers, measured in the float model.

The float model with all of the file's scales and integers represents the file; each change is run in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from quantpipe.arrays import Array
from quantpipe.calibrate.estimators import Estimator
from quantpipe.explain.advice_row import MeasuredLoss, advice_row
from quantpipe.explain.foreign import Foreign
from quantpipe.explain.override_text import override, patterns
from quantpipe.explain.paired import is_clamp
from quantpipe.explain.proposals import ALIKE, OTHER_RANGES, WIDE, Culprit
from quantpipe.explain.sensitivity import Exchanged, QuantizedParts
from quantpipe.graph.execute import Session
from quantpipe.graph.switches import with_switches
from quantpipe.graph.view import Graph
from quantpipe.intmath import round_real
from quantpipe.metrics.outputs import top1
from quantpipe.metrics.reference import Compared, Found, Reference, loss_of, outputs_of, reference_of
from quantpipe.types import AdviceRow, Quantizer, Samples, Symmetry, TensorSchema, TensorStats

FLOAT_NODES, CONSTRAINTS = "annotate.float_nodes", "annotate.constraints"


@dataclass(frozen=True, eq=False)
class ForeignChange:
    """Hold other scales or integers than the file's, in words and as switches of the float model."""

    role: str
    members: tuple[str, ...]
    words: str
    overrides: tuple[str, ...]
    numbers: QuantizedParts = field(repr=False)


class FakeQuantized:
    """The float model with scales and integers, on some samples. `evaluations` counts its runs over them."""

    def __init__(self, graph: Graph, samples: Samples, compared: Compared) -> None:
        self._graph, self._samples, self.evaluations = graph, samples, 0
        self.reference: Reference = reference_of(
            Session(graph.model, where=graph.source), samples, graph.batch_size, compared
        )

    def measured(self, numbers: QuantizedParts) -> MeasuredLoss:
        """Return the loss of the model with all of these scales and integers."""
        self.evaluations += 1
        made = with_switches(self._graph.model, numbers.quantizers, numbers.constants)
        session = Session(made.model, where="float model with scales")
        on = dict.fromkeys((*made.clips.values(), *made.rounds.values()), np.asarray(True))
        feeds = {**on, **{name: one.held for name, one in numbers.constants.items()}}
        names = [made.outputs[name] for name in self.reference.names]
        found = outputs_of(
            session, self._samples, self._graph.batch_size, feeds, names=names, selected=self.reference.selected
        )
        if isinstance(found, Mapping):
            found = dict(zip(self.reference.names, found.values(), strict=True))
        return self.of(found)

    def of(self, found: Found) -> MeasuredLoss:
        """Return the loss of any model's outputs over the samples."""
        accuracy = top1(self.reference.main(found), self.reference.labels)
        return MeasuredLoss(loss_of(self.reference, found), accuracy)

    def row(self, change: ForeignChange, before: MeasuredLoss) -> AdviceRow:
        """Return the row of a change."""
        after = self.measured(change.numbers)
        return advice_row(change, before, after)


@dataclass(frozen=True, eq=False)
class ForeignProposals:
    """The changes of a file that are worth measuring."""

    graph: Graph
    found: Foreign
    statistics: Mapping[str, TensorStats]
    schema: TensorSchema

    def of(self, culprit: Culprit) -> Iterator[ForeignChange]:
        """Return possible remedies for a culprit."""
        yield from self._in_float(culprit)
        if culprit.is_weight:
            yield from self._weights(culprit)
            return
        for name, estimator in OTHER_RANGES.items():
            yield from self._range(culprit, name, estimator)
        yield from self._wider(culprit)

    def _in_float(self, culprit: Culprit) -> Iterator[ForeignChange]:
        """Return nodes that are not quantized: a tensor stays in float as long as one of its nodes does."""
        graph, numbers = self.graph, self.found.numbers
        nodes = {n.name: None for t in culprit.members for n, _ in graph.consumers.get(t, ())}
        for tensor in () if culprit.is_weight else culprit.members:
            nodes |= dict.fromkeys(_makers(graph, tensor))

        def beside(tensor: str) -> set[str]:
            maker = graph.producers.get(tensor)
            return {n.name for n, _ in graph.consumers.get(tensor, ())} | ({maker.name} if maker is not None else set())

        tensors = {t: q for t, q in numbers.quantizers.items() if not beside(t) <= nodes.keys()}
        constants = {t: c for t, c in numbers.constants.items() if not beside(t) <= nodes.keys()}
        if len(tensors) + len(constants) == len(numbers.quantizers) + len(numbers.constants):
            return
        text = override(FLOAT_NODES, patterns(list(nodes), [n.name for n in graph.nodes]))
        words = f"{len(nodes)} node{'' if len(nodes) == 1 else 's'} in float: {', '.join(list(nodes)[:4])}"
        yield ForeignChange(culprit.role, culprit.members, words, (text,), QuantizedParts(tensors, constants))

    def _range(self, culprit: Culprit, name: str, estimator: Estimator) -> Iterator[ForeignChange]:
        changed: dict[str, Quantizer] = {}
        stated: dict[str, Any] = {}
        for tensor in culprit.members:
            own, stats = self.found.numbers.quantizers.get(tensor), self.statistics.get(tensor)
            if own is None or stats is None or np.ndim(own.scale):
                continue  # scales of single channels have no one range to state
            symmetry = Symmetry.SYMMETRIC if _is_symmetric(own) else Symmetry.ASYMMETRIC
            found = estimator(stats, own.bits, replace(self.schema, symmetry=symmetry))
            low, high = float(f"{found.low:.6g}"), float(f"{found.high:.6g}")
            ends = own.low * float(own.scale), own.high * float(own.scale)
            if high > low and max(abs(low - ends[0]), abs(high - ends[1])) > ALIKE * max(high, -low):
                changed[tensor] = ranged(own, low, high)
                stated[tensor] = {"kind": "calibrated", "min": low, "max": high}
        if changed:
            (low, high) = next((one["min"], one["max"]) for one in stated.values())
            words = f"range by {name}" + (f": {low:g} to {high:g}" if len(stated) == 1 else "")
            yield self._quantized(culprit, words, changed, stated)

    def _wider(self, culprit: Culprit) -> Iterator[ForeignChange]:
        known = self.found.numbers.quantizers
        members = [t for t in culprit.members if t in known and known[t].bits < WIDE]
        wide = {t: _wide(known[t]) for t in members}
        if wide:
            yield self._quantized(culprit, f"{WIDE} bits", wide, {t: {"kind": "any", "bits": WIDE} for t in wide})

    def _quantized(
        self, culprit: Culprit, words: str, changed: Mapping[str, Quantizer], stated: Mapping[str, Any]
    ) -> ForeignChange:
        numbers = self.found.numbers
        others = QuantizedParts({**numbers.quantizers, **changed}, numbers.constants)
        return ForeignChange(culprit.role, tuple(changed), words, (override(CONSTRAINTS, stated),), others)

    def _weights(self, culprit: Culprit) -> Iterator[ForeignChange]:
        numbers, weights = self.found.numbers, self.found.weights
        coarse = [t for t in culprit.members if t in weights and weights[t].grid.single and weights[t].values.ndim > 1]
        finer = {t: replace(numbers.constants[t], held=per_channel(numbers.constants[t])) for t in coarse}
        if finer:
            yield self._exchanged(culprit, "a scale per channel", finer)
        biases = [t for t in culprit.members if numbers.constants[t].kind == "bias"]
        true = {t: replace(numbers.constants[t], held=numbers.constants[t].real) for t in biases}
        if true:
            yield self._exchanged(culprit, "its bias as it is, by coarser scales of the weight or more bits", true)

    def _exchanged(self, culprit: Culprit, words: str, changed: Mapping[str, Exchanged]) -> ForeignChange:
        numbers = self.found.numbers
        others = QuantizedParts(numbers.quantizers, {**numbers.constants, **changed})
        return ForeignChange(culprit.role, tuple(changed), words, (), others)


def _makers(graph: Graph, tensor: str) -> Iterator[str]:
    """Yield the node that makes a tensor, and the node it clamps: a fused clamp stores nothing between."""
    maker = graph.producers.get(tensor)
    while maker is not None:
        yield maker.name
        maker = graph.producers.get(maker.inputs[0]) if is_clamp(maker) else None


def ranged(own: Quantizer, low: float, high: float) -> Quantizer:
    """Return a quantizer with the same integers for another range."""
    if _is_symmetric(own):
        scale = max(high / own.high if own.high > 0 else 0.0, low / own.low if own.low < 0 else 0.0)
        return replace(own, scale=np.asarray(scale, np.float32))
    scale = (high - low) / (own.qmax - own.qmin)
    zero = int(np.clip(round_real(np.asarray(own.qmin - low / scale)), own.qmin, own.qmax))
    return replace(own, scale=np.asarray(scale, np.float32), zero_point=zero)


def per_channel(one: Exchanged) -> Array:
    """Return a weight rounded with a symmetric scale for each output channel, in its own bits."""
    real = one.real.astype(np.float64)
    axis = 0 if real.ndim > 2 else int(np.argmin([np.abs(real).max(axis=1 - a).mean() for a in (0, 1)]))
    others = tuple(a for a in range(real.ndim) if a != axis)
    top = 2 ** (one.bits - 1) - 1
    scale = np.maximum(np.abs(real).max(axis=others, keepdims=True), 1e-30) / top
    return np.asarray(np.clip(round_real(real / scale), -top, top) * scale, one.real.dtype)


def _is_symmetric(own: Quantizer) -> bool:
    """Return whether the middle of its integers represents 0, and does so with another range, too."""
    return own.low < 0 and abs(own.low + own.high) <= 1


def _wide(own: Quantizer) -> Quantizer:
    """Return the same range in 2^16 steps."""
    finer = (2**WIDE - 1) / (own.qmax - own.qmin)
    step, zero = np.asarray(own.scale, np.float64) / finer, round(-own.low * finer)
    return replace(own, scale=np.asarray(step, np.float32), zero_point=zero, bits=WIDE, qmin=0, qmax=2**WIDE - 1)


def culprits_of(rows: Sequence[Mapping[str, Any]]) -> list[Culprit]:
    """Return roles by cost, worst first; a weight and its bias are one, and roles without cost are left out."""
    found: dict[tuple[str, bool], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["kind"] in ("tensor", "weight", "bias") and (row["alone"] > 0 or row["overflow"]):
            found.setdefault((row["role"], row["kind"] != "tensor"), []).append(row)
    culprits = [
        Culprit(role, tuple(row["tensor"] for row in rows), is_weight, sum(row["alone"] for row in rows))
        for (role, is_weight), rows in found.items()
    ]
    return sorted(culprits, key=lambda one: -one.loss)
