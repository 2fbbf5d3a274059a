"""Measure where accuracy is lost, per stored tensor.

The figures are the error of quantizing it alone, split into rounding and saturation, and the error that has built up in
the simulated model by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.calibrate.passes import run_size
from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import expose
from quantpipe.graph.view import Graph
from quantpipe.simulate.simulator import Simulation, bind
from quantpipe.types import (
    LayerRow,
    Quantizer,
    QuantPlan,
    Samples,
)


@dataclass
class _Sums:
    signal: float = 0.0
    noise: float = 0.0
    rounding: float = 0.0
    saturation: float = 0.0
    saturated: int = 0
    elements: int = 0


def layer_report(graph: Graph, plan: QuantPlan, simulation: Simulation, samples: Samples) -> list[LayerRow]:
    """Return one entry per stored tensor in graph order.

    `sqnr_db`: float tensor against the simulated one, all errors up to there. `rounding`, `saturation`: mean squared
    error of quantizing the float tensor alone, over its mean square. `saturated`: share of elements beyond the clip
    bounds. `overflow`: filled from the overflow report.

    Args:
        graph: the clean model.
        plan: every number of the integer model.
        simulation: the simulated graph.
        samples: the samples.

    Returns:
        The entries.
    """
    stored = {t: n for t, n in simulation.rendered.integers.items() if t in plan.quantizers and t in graph.producers}
    if not stored:
        return []
    model = bind(simulation.rendered.model, simulation.weights)
    simulated = Session(expose(model, list(stored.values())), where="simulated model")
    real = Session(expose(graph.model, list(stored)), where=graph.source)
    sums = {t: _Sums() for t in stored}
    for batch in samples.batches(run_size(graph, list(stored))):
        x = real.run(batch.inputs, list(stored))
        q = simulated.run({**batch.inputs, **simulation.scalars}, list(stored.values()))
        for tensor, name in stored.items():
            _add(sums[tensor], x[tensor], q[name], plan.quantizers[tensor])
    return [_entry(t, sums[t], plan.quantizers[t]) for t in stored]


def _add(sums: _Sums, x: NDArray[Any], q: NDArray[Any], quantizer: Quantizer) -> None:
    scale = float(quantizer.scale)
    real = x.astype(np.float64)
    sums.signal += float(np.sum(real**2))
    sums.noise += float(np.sum((real - q.astype(np.float64) * scale) ** 2))
    low, high = quantizer.low * scale, quantizer.high * scale
    clipped = np.clip(real, low, high)
    outside = real != clipped
    sums.saturation += float(np.sum((real - clipped) ** 2))
    inside = clipped / scale
    sums.rounding += float(np.sum(((inside - np.rint(inside)) * scale) ** 2))
    sums.saturated += int(np.count_nonzero(outside))
    sums.elements += real.size


def _entry(tensor: str, sums: _Sums, quantizer: Quantizer) -> LayerRow:
    signal = sums.signal or 1.0
    sqnr = 10.0 * float(np.log10(signal / sums.noise)) if sums.noise > 0 and sums.signal > 0 else None
    return {
        "tensor": tensor,
        "bits": quantizer.bits,
        "scale": float(quantizer.scale),
        "zero_point": quantizer.zero_point,
        "sqnr_db": sqnr,
        "rounding": sums.rounding / signal,
        "saturation": sums.saturation / signal,
        "saturated": sums.saturated / max(sums.elements, 1),
        "overflow": 0.0,
    }
