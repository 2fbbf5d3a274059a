"""Running simulations: plans in, outputs out, sessions shared.

Scales, multipliers and bounds are fed with every run; weights are bound as constants, with one session per set of
weights, because a session costs 0.08 s while weights as inputs cost half a float pass more on every run (measured on
efficientnet_lite0: the runtime can then no longer lay them out in advance).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.graph.execute import Session
from quantpipe.graph.io import model_bytes
from quantpipe.graph.view import Graph
from quantpipe.rendering import Rendered, render
from quantpipe.simulate.dialect import Parameters, Simulated
from quantpipe.types import QuantPlan, Topology

SESSIONS = 4  # kept at once: a search alternates between few weight sets, and each session holds a copy of the weights


@dataclass(frozen=True, eq=False)
class Simulation:
    """A rendered plan: the graph, its weights (to be bound) and its scalars (to be fed)."""

    rendered: Rendered
    weights: Parameters = field(repr=False)
    scalars: Parameters = field(repr=False)


def simulate(graph: Graph, topology: Topology, plan: QuantPlan) -> Simulation:
    """Render the simulated graph of a plan. Its inputs are the model's own, then every number of the plan by name."""
    dialect = Simulated()
    rendered = render(graph, topology, plan, dialect)
    return Simulation(rendered, dialect.weights, dialect.scalars)


def bind(model: ir.Model, weights: Mapping[str, NDArray[Any]]) -> ir.Model:
    """Turn the graph inputs named in `weights` into constants, in place."""
    graph = model.graph
    for value in [v for v in graph.inputs if v.name in weights]:
        value.const_value = ir.tensor(weights[value.name or ""])
        graph.inputs.remove(value)
        graph.register_initializer(value)
    return model


class Simulator:
    """Sessions of simulated graphs, the latest few kept. One session serves every plan with the same weights."""

    def __init__(self, graph: Graph, topology: Topology) -> None:
        self._graph, self._topology = graph, topology
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()

    def prepare(self, plan: QuantPlan) -> tuple[Session, Mapping[str, NDArray[Any]]]:
        """The session of a plan and the parameters to feed beside the samples."""
        simulation = simulate(self._graph, self._topology, plan)
        key = _key(simulation)
        session = self._sessions.get(key)
        if session is None:
            session = Session(bind(simulation.rendered.model, simulation.weights), where="simulated model")
            self._sessions[key] = session
            while len(self._sessions) > SESSIONS:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(key)
        return session, simulation.scalars


def _key(simulation: Simulation) -> bytes:
    """Digest of the graph's structure and of all weights."""
    digest = hashlib.blake2b(model_bytes(simulation.rendered.model), digest_size=16)
    for name, array in simulation.weights.items():
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()
