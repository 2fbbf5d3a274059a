"""A planned network whose integers are asked for: what the plan stores, tensor by tensor, on given inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from quantpipe.arrays import Array
from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import expose
from quantpipe.graph.view import Graph
from quantpipe.simulate.simulator import bind, simulate
from quantpipe.types import DType, Form, Kernel, QuantPlan, Topology

ACCUMULATOR = " (accumulator)"
"""What the name of a tensor ends with where its accumulator is meant, as every form of a plan calls it."""


@dataclass(frozen=True, eq=False)
class Network:
    """Hold a graph, what of it runs in integers, and every number of it."""

    graph: Graph
    topology: Topology
    plan: QuantPlan

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """Return every tensor that has integers, in the order in which they are made; accumulators by their names."""
        held = simulate(self.graph, self.topology, self.plan).rendered.integers
        order = {t: n for n, t in enumerate([*self.graph.input_names, *self.graph.producers])}
        return tuple(sorted(held, key=lambda t: (order.get(t.removesuffix(ACCUMULATOR), -1), not is_raw(t))))

    @cached_property
    def maker(self) -> Mapping[str, Kernel]:
        """Return a mapping: tensor, as it is named in dumps -> the kernel that makes it (or its accumulator)."""
        return {name_of(k.output, k.form): k for k in self.topology.kernels}

    def zero(self, tensor: str) -> int:
        """Return the zero point of a tensor; accumulators have 0."""
        return 0 if is_raw(tensor) else self.plan.quantizers[tensor].zero_point

    def dtype(self, tensor: str) -> DType:
        """Return the type that a tensor is given in: as it is stored; of accumulators int32, or int64 at need."""
        if not is_raw(tensor):
            return self.plan.quantizers[tensor].dtype
        numbers = self.plan.kernels.get(self.maker[tensor].node) if tensor in self.maker else None
        bound = getattr(numbers, "bound", None)
        return DType.INT32 if bound is None or bound <= DType.INT32.qmax else DType.INT64

    def golden(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return every stored tensor and every accumulator that a kernel reads, as in the simulated model.

        The inputs are float values, `[N, …]` each; the result has integers q in the type of `dtype`.
        """
        simulation = simulate(self.graph, self.topology, self.plan)
        held = simulation.rendered.integers
        model = expose(bind(simulation.rendered.model, simulation.weights), list(held.values()))
        names = list(dict.fromkeys(held.values()))
        found = Session(model, where="simulated model").run({**inputs, **simulation.scalars}, names)
        return {t: (found[held[t]].astype(np.int64) + self.zero(t)).astype(self.dtype(t).numpy) for t in self.tensors}


def is_raw(tensor: str) -> bool:
    """Return whether a tensor is named as an accumulator."""
    return tensor.endswith(ACCUMULATOR)


def name_of(tensor: str, form: Form) -> str:
    """Return how a tensor in a form is named in dumps."""
    return f"{tensor}{ACCUMULATOR}" if form is Form.RAW else tensor


def joined(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return batches one after the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
