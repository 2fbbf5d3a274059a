"""Give the two sides of the comparison.

They are the simulated model, which defines the expected values, and the realized model in one kind of session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from quantpipe.arrays import Array
from quantpipe.errors import ModelError
from quantpipe.evaluate.compared_tensors import of_half_nodes, watched
from quantpipe.evaluate.counting import Counter
from quantpipe.evaluate.loop_products import compare_loops
from quantpipe.evaluate.roundoff import explained_step, island_tolerance, sum_tolerance
from quantpipe.graph.execute import Kernels, Session
from quantpipe.graph.external_weights import weights_as_inputs
from quantpipe.graph.normalize import expose
from quantpipe.graph.stored_ports import stored_ports
from quantpipe.graph.view import Graph
from quantpipe.lowering import Rendered
from quantpipe.lowering.show_loops import ShownLoops, show_loops
from quantpipe.simulate.simulator import Simulation, bind
from quantpipe.types import QuantPlan, Topology

Values = Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class SessionKind:
    """One way to run the realized model: what every session of it is made with, and what it is compared on."""

    name: str
    decides: bool
    open: Callable[..., Session]
    whole: bool = True
    """With every integer as an output; else as the file is."""
    samples: int | None = None
    same_as: str | None = None
    """The session whose kernels it has on this processor: it is not opened."""


HEAVY = 1 << 27
"""Bytes of float weights that are not held between two batches."""


class SimulatedModel:
    """The simulated model, and what of it each session is compared with."""

    def __init__(
        self, graph: Graph, topology: Topology, plan: QuantPlan, simulation: Simulation, *, realized: Rendered
    ) -> None:
        self.graph, self.topology, self.plan = graph, topology, plan
        held = simulation.rendered.integers
        found = watched(graph, topology, [t for t in held if t in realized.integers])
        made = value_names(simulation.rendered.model)  # an accumulator inside is real nowhere in the simulated model
        self.watched = replace(found, reals=tuple(t for t in found.reals if t in made))
        self.names = {t: held[t] for t in (*self.watched.integers, *self.watched.entries)}
        self.kernels = {k.output: k for k in topology.kernels}
        self._halves = of_half_nodes(graph, topology)
        self._scalars = simulation.scalars
        model = bind(simulation.rendered.model, simulation.weights)
        self._own = _feed_from_outside(model, {self.names[t]: t for t in self.watched.entries})
        self._held = {t: name for t, name in held.items() if "(accumulator)" not in t}
        real = (*self.watched.reals, *self.watched.outside, *self.watched.entries)
        operands = [o.tensor for t in self.watched.reals for o in self.kernels[t].operands]
        self._inner = [*dict.fromkeys(self._held[t] for t in operands if t in self._held)]
        self._model = expose(model, [*(self._own.get(t, n) for t, n in self.names.items()), *real, *self._inner])
        self._session = Session(self._model, where="simulated model")
        self._written: tuple[Session, dict[str, Array]] | None = None
        self._inputs: Values = {}
        self._alone: Values | None = None
        self._feeds: dict[str, Array] = {}
        self._as_written: Values | None = None
        self.zero = {t: plan.quantizers[t].zero_point if t in plan.quantizers else 0 for t in self.names}

    @property
    def held(self) -> list[str]:
        """Return the tensors that a comparison holds for each run, as often as it holds their values in both models.

        What enters after an island is held by both models, as fed, as real values, and as written.
        """
        what, inner = self.watched, [t for t, name in self._held.items() if name in self._inner]
        names = [*self.names, *what.entries, *what.reals, *what.outside, *inner]
        return [t for t in (name.removesuffix(" (accumulator)") for name in names) if t in self.graph.shapes]

    def start(self, inputs: Values) -> None:
        """Take a new batch."""
        self._inputs, self._alone = inputs, None

    def run(self, realized: Values) -> Values:
        """Return all values of the batch, continuing with the realized integers after every island."""
        self._as_written = None
        entering = {
            self.names[t]: realized[t].astype(np.float32) - np.float32(self.zero[t]) for t in self.watched.entries
        }
        self._feeds = {**self._inputs, **self._scalars, **entering}
        if entering:
            return self._session.run(self._feeds)
        if self._alone is None:  # without islands it is the same for every session
            self._alone = self._session.run(self._feeds)
        return self._alone

    def integers(self, values: Values, tensor: str) -> Array:
        """Return q - z as the simulated model computes it.

        These are integral values in float32 or, if that holds too few, float64.
        """
        return values[self._own.get(tensor, self.names[tensor])]

    def centred(self, tensor: str, found: Array) -> Array:
        """Return stored integers less their zero point, in a float type that holds them exactly."""
        real: Array = found.astype(np.float32 if found.dtype.itemsize <= 2 else np.float64)
        return real - np.asarray(self.zero[tensor], real.dtype) if self.zero[tensor] else real

    def as_written(self) -> Values:
        """Return the values of the last run without the runtime's optimizations."""
        if self._as_written is None:
            if self._written is None:
                model, weights = weights_as_inputs(self._model)
                self._written = Session(model, kernels=Kernels.AS_WRITTEN, where="simulated model"), weights
            session, weights = self._written
            what = self.watched
            names = dict.fromkeys((*what.entries, *what.reals, *what.outside))
            self._as_written = session.run({**self._feeds, **weights}, list(names))
            if sum(array.nbytes for array in weights.values()) >= HEAVY:
                self._written = None  # the next batch makes them again: there are few
        return self._as_written

    def explained(self, expected: Values, tensor: str, found: Array) -> Array:
        """Return, as bool, the integers after a float node that are one step off since its result is between two steps.

        `expected` are the values of the simulated model, `found` the tensor's integers in the other model.
        """
        tolerance = island_tolerance(expected[tensor], self.as_written()[tensor], half=tensor in self._halves)
        return explained_step(found, expected[tensor], tolerance, self.plan.quantizers[tensor])

    def real_tolerance(self, values: Values, tensor: str) -> Array:
        """Return the rounding tolerance of a float value: of a kernel's sum, or of float nodes."""
        kernel = self.kernels.get(tensor)
        if kernel is not None and all(o.tensor in self._held for o in kernel.operands):
            operands = {o.tensor: values[self._held[o.tensor]] for o in kernel.operands}
            found = sum_tolerance(self.graph, self.topology, self.plan, kernel, operands=operands)
            if found is not None:
                return found
        return island_tolerance(values[tensor], self.as_written()[tensor], half=tensor in self._halves)


class RealizedModel:
    """The realized model in one kind of session, and what of it differs."""

    def __init__(
        self, kind: SessionKind, simulated: SimulatedModel, realized: Rendered, *, threads: int | None = None
    ) -> None:
        self.kind, self._simulated = kind, simulated
        what = simulated.watched
        cached = {port.output for port in stored_ports(realized.model)}
        integers = (*what.integers, *what.entries) if kind.whole else (*what.entries, *cached)
        self._names = {t: realized.integers[t] for t in dict.fromkeys(integers)}
        known = value_names(realized.model)
        inner = (*what.reals, *what.outside) if kind.whole else ()
        real = dict.fromkeys(t for t in (*inner, *what.outputs) if t in known and t not in cached)
        self._real = {t: realized.inside.get(t, t) for t in real}  # half precision would hide what differs
        self.count = Counter()
        self.session: Session | None = None
        self.refused: str | None = None
        self.samples = 0
        self._loops = ShownLoops()
        if kind.same_as is not None:
            return
        try:
            model = expose(realized.model, [*self._names.values(), *self._real.values()])
            if kind.whole:
                self._loops = show_loops(model, simulated.topology, simulated.plan)
            self.session = kind.open(model, where=f"realized model, {kind.name}", threads=threads)
        except ModelError as error:
            if kind.decides:
                raise
            self.refused = str(error)

    @property
    def products(self) -> int:
        """Return how many products inside of loops are compared, whose sums are integers as well."""
        return len(self._loops.products)

    def close(self) -> None:
        """Give the session back; what it has counted stays."""
        self.session = None

    def takes(self, done: int) -> bool:
        """Return whether it is compared on a batch after so many samples."""
        return self.session is not None and (self.kind.samples is None or done < self.kind.samples)

    def run(self, inputs: Values) -> Values:
        """Return its results, by the names of the realized model; several may run at once."""
        names = dict.fromkeys((*self._names.values(), *self._real.values(), *self._loops.names))
        return self.session.run(inputs, list(names), stored=True) if self.session is not None else {}

    def compare(self, found: Values, samples: int) -> None:
        """Compare what it computed of one batch with the simulated model."""
        self.samples += samples
        integers = {t: found[name] for t, name in self._names.items()}
        expected = self._simulated.run(integers)
        for tensor in integers:
            self._integers(tensor, expected, integers[tensor])
        for tensor, name in self._real.items():
            self._reals(tensor, expected, found[name])
        compare_loops(self._loops, self._simulated.plan, found, self.count.integers)

    def _integers(self, tensor: str, expected: Values, found: Array) -> None:
        simulated, what = self._simulated, self._simulated.watched
        own, centred = simulated.integers(expected, tensor), simulated.centred(tensor, found)
        if tensor not in what.entries or tensor in what.loose:
            self.count.integers(tensor, own, centred, excused=tensor in what.loose)
            return

        self.count.integers(tensor, own, centred, excused=partial(simulated.explained, expected, tensor, found))

    def _reals(self, tensor: str, expected: Values, found: Array) -> None:
        simulated, what = self._simulated, self._simulated.watched
        own, kernel = expected[tensor], simulated.kernels.get(tensor)
        if tensor in what.loose:
            self.count.reals(tensor, own, found, excused=True, by_float=True)
        elif tensor in what.reals or tensor in what.outside:
            tolerance = partial(simulated.real_tolerance, expected, tensor)
            self.count.reals(tensor, own, found, excused=tolerance, by_float=kernel is None)
        else:
            self.count.reals(tensor, own, found)


def value_names(model: ir.Model) -> set[str]:
    """Return every value of the main graph by name."""
    made = {v.name or "" for node in model.graph for v in node.outputs}
    return made | {v.name or "" for v in (*model.graph.inputs, *model.graph.initializers.values())}


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
