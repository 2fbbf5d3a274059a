"""Running simulations: plans in, outputs out, sessions shared.

Scales, multipliers and bounds are fed with every run. Weights are bound as constants, with one session per set of
weights. A session costs 0.08 s, while weights as inputs cost half a float pass more on every run (measured on
efficientnet_lite0: the runtime can then no longer lay them out in advance).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
from cachetools import LRUCache
from numpy.typing import NDArray

from quantpipe.graph.execute import Session
from quantpipe.graph.external_weights import copied, is_heavy, strip_initializers
from quantpipe.graph.structure import structure_digest
from quantpipe.graph.view import Graph
from quantpipe.lowering import Rendered, render
from quantpipe.simulate.arithmetic import Parameters
from quantpipe.simulate.dialect import Simulated
from quantpipe.simulate.float_weights import BoundWeights
from quantpipe.types import QuantPlan, RowTable, Topology, WeightTensor

SESSIONS = 4  # kept at once: a search alternates between few weight sets, and each session holds a copy of the weights


@dataclass(frozen=True, eq=False)
class Simulation:
    """A rendered plan: the graph, its weights (to be bound) and its scalars (to be fed).

    `limits`: tensor -> names of its accumulator before and after overflow, where some input can make it overflow.
    `centred`: the integer weights, or tables, that `weights` of these names are made of.
    """

    rendered: Rendered
    weights: BoundWeights = field(repr=False)
    scalars: Parameters = field(repr=False)
    limits: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    centred: Mapping[str, WeightTensor | RowTable] = field(default_factory=dict, repr=False)


def simulate(graph: Graph, topology: Topology, plan: QuantPlan, stored: Collection[str] = ()) -> Simulation:
    """Render the simulated graph of a plan.

    The inputs of the graph are the model's own and then every number of the plan by name, with their values. `stored`
    graph inputs carry integers.
    """
    dialect = Simulated()
    rendered = render(graph, topology, plan, dialect, stored=stored)
    return Simulation(rendered, dialect.weights, dialect.scalars, dialect.limits, dialect.centred)


def bind(model: ir.Model, weights: BoundWeights) -> ir.Model:
    """Return a copy of the model in which the graph inputs named in `weights` are constants."""
    return bind_in_place(copied(model), weights)


def bind_in_place(model: ir.Model, weights: BoundWeights) -> ir.Model:
    """Make constants of the graph inputs named in `weights`, in place, and return the model.

    A copy costs as much as a small session; this is for a rendering without other readers.
    """
    graph = model.graph
    for value in [v for v in graph.inputs if v.name in weights]:
        value.const_value = weights.tensor(value.name or "")
        graph.inputs.remove(value)
        graph.register_initializer(value)
    return model


class Simulator:
    """Sessions of simulated graphs, the latest few kept. One session serves every plan with the same weights.

    `stored`: ports of a section of a graph that carry integers; `threads` of each session (None: every core).
    """

    def __init__(
        self,
        graph: Graph,
        topology: Topology,
        stored: Collection[str] = (),
        sessions: int = SESSIONS,
        *,
        threads: int | None = None,
    ) -> None:
        self._graph, self._topology, self._stored = graph, topology, stored
        self._threads = threads
        self._sessions: LRUCache[bytes, Session] = LRUCache(sessions)
        self._skeletons: LRUCache[bytes, bytes] = LRUCache(sessions)

    def prepare(self, plan: QuantPlan) -> tuple[Session, Mapping[str, NDArray[Any]]]:
        """Return the session of a plan and the parameters to feed with the samples."""
        simulation = simulate(self._graph, self._topology, plan, self._stored)
        structure = structure_digest(simulation.rendered.model)
        key = structure + _weights_digest(simulation)
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = self._session(simulation, structure)
        return session, simulation.scalars

    def _session(self, simulation: Simulation, structure: bytes) -> Session:
        """Return the session; the bytes without weights are made once for graphs that differ in weights only."""
        # Sections run in turn: cores that one leaves busy would be missing for the next.
        load = partial(Session, threads=self._threads, spin=not self._stored, where="simulated model")
        data = self._skeletons.get(structure)
        if data is None:
            model = bind_in_place(simulation.rendered.model, simulation.weights)
            if is_heavy(model):
                return load(model)
            data = self._skeletons[structure] = strip_initializers(model, simulation.weights)
        return load(data, weights=simulation.weights)


def _weights_digest(simulation: Simulation) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name in simulation.weights:
        digest.update(name.encode())
        weight = simulation.centred.get(name)
        digest.update(weight.digest if weight is not None else np.ascontiguousarray(simulation.weights[name]).data)
    return digest.digest()
