"""Measure where accuracy is lost, per stored tensor.

The figures are the error of quantizing it alone, split into rounding and saturation, and the error that has built up in
the simulated model by then.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.calibrate.passes import run_size
from quantpipe.evaluate.channels import ChannelSums, channel_axis
from quantpipe.evaluate.in_cache import in_cache
from quantpipe.graph.execute import Session, available_cores
from quantpipe.graph.normalize import expose
from quantpipe.graph.view import Graph
from quantpipe.simulate.simulator import Simulation, bind
from quantpipe.types import LayerRow, MomentsRow, Quantizer, QuantPlan, Samples

ELEMENTS = 1 << 26
"""Values of stored tensors that errors are computed from; some seconds on two cores."""
FEWEST = 4
"""Samples that they are computed from at least."""


@dataclass
class TensorMoments:
    """Extremes and sums of the values of a tensor, in real units; what is not finite is left out."""

    minimum: float = math.inf
    maximum: float = -math.inf
    total: float = 0.0
    squares: float = 0.0
    elements: int = 0

    def add(self, values: NDArray[Any]) -> None:
        """Include some values, float64 of any shape."""
        finite = np.isfinite(values)
        known = values if finite.all() else values[finite]  # a copy of all takes as long as all the sums
        if known.size:
            self.minimum, self.maximum = min(self.minimum, float(known.min())), max(self.maximum, float(known.max()))
            self.total += float(known.sum())
            self.squares += float(np.sum(known**2))
            self.elements += known.size

    def row(self) -> MomentsRow | None:
        """Return the figures; None where there was no value."""
        if not self.elements:
            return None
        mean = self.total / self.elements
        variance = max(self.squares / self.elements - mean**2, 0.0)
        return {"min": self.minimum, "max": self.maximum, "mean": mean, "variance": variance}


@dataclass
class LayerSums:
    """Hold what the comparison of one stored tensor adds up to; `real` and `held` are its values in both models."""

    signal: float = 0.0
    noise: float = 0.0
    rounding: float = 0.0
    saturation: float = 0.0
    saturated: int = 0
    elements: int = 0
    real: TensorMoments = field(default_factory=TensorMoments)
    held: TensorMoments = field(default_factory=TensorMoments)
    channels: ChannelSums | None = None


def layer_report(graph: Graph, plan: QuantPlan, simulation: Simulation, samples: Samples) -> list[LayerRow]:
    """Return one entry per stored tensor in graph order.

    `sqnr_db` compares the float tensor with the simulated one, all errors up to there included. `rounding` and
    `saturation` are the mean squared error of quantizing the float tensor alone, over its mean square. `saturated` is
    the share of elements beyond the clip bounds. `overflow` is filled from the overflow report.
    """
    sums = layer_sums(graph, plan, simulation, samples)
    return [layer_row(t, found, plan.quantizers[t]) for t, found in sums.items() if t in graph.producers]


def samples_for(graph: Graph, plan: QuantPlan, most: int) -> int:
    """Return how many samples the errors per tensor are computed from: fewer than `most` where tensors are large."""
    one = sum(prod(graph.shapes.get(tensor, ())) for tensor in plan.quantizers) // (graph.fixed_batch or 1)
    return min(most, max(FEWEST, ELEMENTS // max(one, 1)))


def layer_sums(
    graph: Graph, plan: QuantPlan, simulation: Simulation, samples: Samples, *, by_channel: Collection[str] = ()
) -> dict[str, LayerSums]:
    """Return sums of the float and the simulated values of each stored tensor, inputs included, in graph order.

    Channels of the tensors in `by_channel` are compared too.
    """
    known = {*graph.producers, *graph.input_names}
    stored = {t: n for t, n in simulation.rendered.integers.items() if t in plan.quantizers and t in known}
    if not stored:
        return {}
    made = [t for t in stored if t in graph.producers]
    model = bind(simulation.rendered.model, simulation.weights)
    simulated = Session(expose(model, list(stored.values())), spin=False, where="simulated model")
    real = Session(expose(graph.model, made), spin=False, where=graph.source)
    sums = {t: layer_start(graph, plan.quantizers[t], t in by_channel) for t in stored}
    with ThreadPoolExecutor(available_cores()) as pool:
        for batch in samples.batches(run_size(graph, made)):
            x = {**batch.inputs, **real.run(batch.inputs, made)}
            q = simulated.run({**batch.inputs, **simulation.scalars}, list(stored.values()))
            largest = sorted(stored, key=lambda tensor: -x[tensor].size)
            list(pool.map(lambda t: add_layer(sums[t], x[t], q[stored[t]], plan.quantizers[t]), largest))  # noqa: B023
    return sums


def layer_start(graph: Graph, quantizer: Quantizer, by_channel: bool) -> LayerSums:
    """Return the empty sums of a tensor, with sums per channel where they are requested."""
    shape, scale = graph.shapes.get(quantizer.tensor, ()), np.ravel(np.asarray(quantizer.scale, np.float64))
    if not by_channel or len(shape) < 2:
        return LayerSums()
    axis = channel_axis(len(shape))
    low, high, step = (
        np.array(np.broadcast_to(end * scale, (shape[axis],))) for end in (quantizer.low, quantizer.high, 1)
    )
    return LayerSums(channels=ChannelSums(axis, low, high, step))


def add_layer(sums: LayerSums, x: NDArray[Any], q: NDArray[Any], quantizer: Quantizer) -> None:
    """Include one batch: float values x `[n, ...]`, and integers q less their zero point, in the same shape."""
    for rows in in_cache(x.shape) if x.shape == q.shape else ((),):
        _add(sums, x[rows], q[rows], quantizer)


def _add(sums: LayerSums, x: NDArray[Any], q: NDArray[Any], quantizer: Quantizer) -> None:
    scale = np.asarray(quantizer.scale, np.float64)
    real, held = x.astype(np.float64), q.astype(np.float64) * scale
    if sums.channels is not None:
        sums.channels.add(real, held)
    sums.real.add(real)
    sums.held.add(held)
    sums.signal += float(np.sum(real**2))
    sums.noise += float(np.sum((real - held) ** 2))
    low, high = quantizer.low * scale, quantizer.high * scale
    clipped = np.clip(real, low, high)
    outside = real != clipped
    sums.saturation += float(np.sum((real - clipped) ** 2))
    inside = clipped / scale
    sums.rounding += float(np.sum(((inside - np.rint(inside)) * scale) ** 2))
    sums.saturated += int(np.count_nonzero(outside))
    sums.elements += real.size


def layer_row(tensor: str, sums: LayerSums, quantizer: Quantizer) -> LayerRow:
    """Return the entry of one tensor."""
    signal = sums.signal or 1.0
    sqnr = 10.0 * float(np.log10(signal / sums.noise)) if sums.noise > 0 and sums.signal > 0 else None
    return {
        "tensor": tensor,
        "bits": quantizer.bits,
        "scale": float(np.max(quantizer.scale)),
        "zero_point": quantizer.zero_point,
        "sqnr_db": sqnr,
        "rounding": sums.rounding / signal,
        "saturation": sums.saturation / signal,
        "saturated": sums.saturated / max(sums.elements, 1),
        "overflow": 0.0,
    }
