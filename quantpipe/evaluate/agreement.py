"""Whether the simulated and the realized model hold the same integers, tensor by tensor, element by element.

Both graphs are run on the same samples with all their integer tensors as outputs. Where a float island feeds integers
again, two correct runs may differ by rounding inside the island; so behind each such entry the simulated run goes on
with the realized integers, and what differs at the entry itself is counted apart (`behind_float`). Nothing can then
cascade: every difference that is counted is made where it is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.calibrate.passes import run_size
from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import expose
from quantpipe.graph.view import Graph
from quantpipe.rendering import Rendered
from quantpipe.simulate.simulator import Simulation, bind
from quantpipe.types import Form, QuantPlan, Samples, Topology

NOISE = 1e-5
"""Difference of real outputs, over the largest of them, that is put down to the order of float32 sums."""


WORSE = 2.0
"""Squared error of the realized over that of the simulated model that rounding in float nodes does not explain."""


@dataclass(frozen=True)
class Agreement:
    """`tensors` and `elements` compared; `differing` elements fed by integers only, `behind_float` right behind a float
    island; `max_lsb` the greatest difference in integer steps; `first_tensor` the first that differs, in graph
    order."""

    tensors: int
    elements: int
    differing: int
    behind_float: int
    max_lsb: float
    first_tensor: str | None
    samples: int = 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    graph: Graph,
    topology: Topology,
    plan: QuantPlan,
    simulation: Simulation,
    realized: Rendered,
    samples: Samples,
) -> Agreement:
    """Run both on all samples. The final outputs of the realized model as users run it are compared as well."""
    shared = [t for t in simulation.rendered.integers if t in realized.integers]
    entries = [t for t in shared if t in island_entries(graph, topology)]
    sim_names = {t: simulation.rendered.integers[t] for t in shared}
    real_names = {t: realized.integers[t] for t in shared}
    model = bind(simulation.rendered.model, simulation.weights)
    stored = {k.output for k in topology.kernels if k.form is Form.QUANTIZED}
    outputs = [o.name for o in graph.outputs]
    own = _feed_from_outside(model, {sim_names[t]: t for t in entries})
    simulated = Session(expose(model, [own.get(t, sim_names[t]) for t in shared]), where="simulated model")
    exposed = Session(expose(realized.model, list(real_names.values())), int8_kernels=True, where="realized model")
    plain = Session(expose(realized.model, [real_names[t] for t in entries]), where="realized model")
    zero = {t: _zero_point(plan, t) for t in shared}

    def entering(run: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]]:
        return {sim_names[t]: run[real_names[t]].astype(np.float32) - np.float32(zero[t]) for t in entries}

    count = _Counter(entries)
    for batch in samples.batches(run_size(graph, [t for t in shared if t in graph.shapes])):
        real, users = exposed.run(batch.inputs), plain.run(batch.inputs)
        feeds = {**batch.inputs, **simulation.scalars}
        sim = simulated.run({**feeds, **entering(real)})
        for tensor in shared:
            expected = sim[own.get(tensor, sim_names[tensor])].astype(np.float64) + zero[tensor]
            count.add(tensor, expected, real[real_names[tensor]].astype(np.float64))
        # The instrumented graph could be fused differently; what counts is the graph that users run. A float island in
        # it may then round another way: if so, the simulated run goes on with what entered there.
        if any(np.any(users[real_names[t]] != real[real_names[t]]) for t in entries):
            real = simulated.run({**feeds, **entering(users)}, outputs)
        for name in outputs:
            expected, found = real[name].astype(np.float64), users[name].astype(np.float64)
            if name not in stored:
                found = _without_noise(expected, found)
            count.add(name, expected, found, tensor=False)
    return replace(count.result(len(shared)), samples=len(samples))


def float_warning(agreement: Agreement, simulated: Mapping[str, Any], realized: Mapping[str, Any]) -> str | None:
    """What to say where all integers that integers feed agree, and the realized model is far worse all the same: what
    its nodes in float compute is not counted, and should differ by rounding alone. `simulated`, `realized`: metrics."""
    lost, found = simulated.get("mse"), realized.get("mse")
    if agreement.differing or lost is None or found is None or not found > WORSE * lost + NOISE**2:
        return None
    return (
        f"the realized model's squared error is {found:.3g} of the outputs' variance, the simulated model's "
        f"{lost:.3g}, although all integers agree: a node in float computes something else in the realized model"
    )


def island_entries(graph: Graph, topology: Topology) -> frozenset[str]:
    """Stored tensors that are quantized from the result of a float node (not from the model's own inputs)."""
    made = {k.output for k in topology.kernels}
    read = {o.tensor for k in topology.kernels for o in k.operands if o.form is Form.QUANTIZED}
    return frozenset(t for t in read if t not in made and t in graph.producers)


def _feed_from_outside(model: ir.Model, names: Mapping[str, str]) -> dict[str, str]:
    """Make values graph inputs, keeping what the graph computes for them under another name: tensor -> that name."""
    renamed = {}
    for node in list(model.graph):
        for value in node.outputs:
            name = value.name or ""
            if name in names:
                tensor = names[name]
                outside = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT))
                value.replace_all_uses_with(outside)
                value.name = f"{name}/own"
                model.graph.inputs.append(outside)
                renamed[tensor] = value.name
    return renamed


def _without_noise(expected: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Real results with what float32 sums lose by another order taken away (integers differ by far more)."""
    if expected.shape != found.shape:
        return found
    return np.where(np.abs(found - expected) <= NOISE * np.max(np.abs(expected), initial=0.0), expected, found)


def _zero_point(plan: QuantPlan, tensor: str) -> int:
    """What turns the simulated q - z into q (accumulators have none)."""
    return plan.quantizers[tensor].zero_point if tensor in plan.quantizers else 0


class _Counter:
    """Counts while batches go by."""

    def __init__(self, entries: list[str]) -> None:
        self._entries = frozenset(entries)
        self._elements = self._differing = self._behind = 0
        self._max = 0.0
        self._first: str | None = None

    def add(self, name: str, expected: np.ndarray[Any, Any], found: np.ndarray[Any, Any], tensor: bool = True) -> None:
        if tensor:
            self._elements += found.size
        different = int(np.count_nonzero(expected != found)) if expected.shape == found.shape else found.size
        if not different:
            return
        if name in self._entries:
            self._behind += different
        else:
            self._differing += different
            self._first = self._first or name
        if tensor and expected.shape == found.shape:
            self._max = max(self._max, float(np.max(np.abs(expected - found))))

    def result(self, tensors: int) -> Agreement:
        return Agreement(tensors, self._elements, self._differing, self._behind, self._max, self._first)
