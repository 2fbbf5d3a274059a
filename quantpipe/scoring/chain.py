"""Running a candidate: the sections of the model one after the other, each in the form that is fastest here.

A candidate's numbers in the sections up to a cut are one digest; the tensors at the cut are kept under it. Another
candidate with the same digest starts there. Sessions are kept per section, so a change builds one section again and not
the whole model. Equal digests of parts of a plan mean equal numbers, hence equal integers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from threading import Lock
from typing import Any

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from quantpipe.graph.execute import Session
from quantpipe.realize import write
from quantpipe.scoring.sections import Section
from quantpipe.scoring.tensor_cache import State, TensorCache
from quantpipe.simulate.simulator import Simulator
from quantpipe.types import QuantPlan, Topology


class PlanDigest:
    """Digests of sections of plans. Weights, which plans share, are read once each."""

    def of(self, plan: QuantPlan, topology: Topology, tensors: tuple[str, ...], identity: str = "") -> bytes:
        """Return a digest of every number that the kernels and the conversions of their tensors use."""
        digest = hashlib.blake2b(identity.encode(), digest_size=16)
        names = dict.fromkeys(tensors)
        for kernel in topology.kernels:
            names |= dict.fromkeys([*(o.tensor for o in kernel.operands), kernel.output])
            if kernel.weight is not None:
                digest.update(plan.weights[kernel.weight].digest)
            _feed(digest, plan.kernels.get(kernel.node))
        for site in topology.tables:
            digest.update(plan.tables[site.tensor].digest)
        for kernel in topology.weighted:
            digest.update(plan.weights[kernel.weight or ""].digest)
        for loop in topology.loops:
            names |= dict.fromkeys(loop.stored)
            for _, tensor in loop.products:
                digest.update(plan.weights[tensor].digest)
        for cell in topology.cells:
            for tensor in cell.weights:
                digest.update(plan.weights[tensor].digest)
        for name in names:
            for numbers in (plan.quantizers, plan.raw_scales, plan.narrowings, plan.constants):
                _feed(digest, numbers.get(name))
        return digest.digest()


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, np.ndarray | np.generic):
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif is_dataclass(value):
        for field in fields(value):
            _feed(digest, getattr(value, field.name))
    elif isinstance(value, tuple):
        digest.update(f"({len(value)}".encode())
        for item in value:
            _feed(digest, item)
    else:
        digest.update(f"{value!r};".encode())


SESSIONS = 4
"""Kept per section: a search alternates between few sets of numbers, and each session holds its weights."""

SAMPLES = b""
"""The key of the model's own inputs in the cache."""


@dataclass(frozen=True, eq=False)
class Ready:
    """A section that can run: its session, the parameters to feed with the tensors, and the names of its ports."""

    session: Session
    parameters: Mapping[str, NDArray[Any]]
    ports: tuple[str, ...]


class Chain:
    """Run plans on the batches of one list of samples.

    `backend`: the realized form for the sections that are integers throughout; None: every section is simulated. Both
    give the same. `cache` None: nothing is kept. `graphs`: other graphs, with other constants, share the
    cache. Several threads may run batches of one candidate.
    """

    def __init__(
        self,
        parts: Sequence[Section],
        cache: TensorCache | None,
        backend: str | None,
        threads: int | None = None,
        *,
        graphs: bool = False,
    ) -> None:
        self._parts, self.cache, self._backend, self._threads = tuple(parts), cache, backend, threads
        self._identities = [p.identity + (p.constants if graphs else "") for p in self._parts]
        self._digests = PlanDigest()
        self._ready: list[LRUCache[bytes, Ready]] = [LRUCache(SESSIONS) for _ in parts]
        self._lock = Lock()
        self._simulators = [Simulator(p.graph, p.topology, p.stored, SESSIONS, threads=threads) for p in parts]

    def candidate(self, plan: QuantPlan) -> Candidate:
        """Return a plan, ready to be run batch by batch."""
        own = [
            self._digests.of(plan, part.topology, (*part.reads, *part.makes), identity)
            for part, identity in zip(self._parts, self._identities, strict=True)
        ]
        keys, key = [], b""
        for digest in own:
            key = hashlib.blake2b(key + digest, digest_size=16).digest()
            keys.append(key)
        if self.cache is not None:
            self.cache.begin(keys[:-1])
        return Candidate(self, plan, own, keys)

    def run(self, of: Candidate, number: int, inputs: Callable[[int], State]) -> State:
        """Return the outputs for batch `number`, by name.

        `inputs` gives the samples of a batch, and is called only where they are needed.
        """
        first, state = self._start(of, number)
        for index in range(first, len(self._parts)):
            part, ready = self._parts[index], self._prepared(index, of)
            given = [*(inputs(number)[t] for t in part.feeds), *(state[t] for t in part.reads)]
            results = ready.session.run({**dict(zip(ready.ports, given, strict=True)), **ready.parameters})
            if index == len(self._parts) - 1:
                return dict(zip(part.ends, results.values(), strict=True))
            made = dict(zip(part.makes, results.values(), strict=True))
            state = {t: made[t] if t in made else state[t] for t in part.live}
            if self.cache is not None:
                self.cache.put(of.keys[index], number, state)
        raise AssertionError("a chain has a last section")

    def _start(self, of: Candidate, number: int) -> tuple[int, State]:
        """The first section to run, and what it starts from."""
        for index in range(len(self._parts) - 2, -1, -1):
            state = self.cache.get(of.keys[index], number) if self.cache is not None else None
            if state is not None:
                return index + 1, state
        return 0, {}

    def _prepared(self, index: int, of: Candidate) -> Ready:
        kept, key = self._ready[index], of.own[index]
        with self._lock:
            found = kept.get(key)
            if found is None:
                found = kept[key] = self._prepare(index, of.plan)
            return found

    def _prepare(self, index: int, plan: QuantPlan) -> Ready:
        part, count = self._parts[index], len(self._parts[index].feeds) + len(self._parts[index].reads)
        if self._backend is not None and part.integer:
            written = write(self._backend, part.graph, part.topology, plan, stored=part.stored)
            session = Session(written.model, threads=self._threads, spin=False, where="realized section")
            return Ready(session, {}, session.inputs[:count])
        session, parameters = self._simulators[index].prepare(plan)
        return Ready(session, parameters, session.inputs[:count])


@dataclass(frozen=True, eq=False)
class Candidate:
    """A plan with the digest of each section (`own`), and of each section with all before it (`keys`)."""

    chain: Chain
    plan: QuantPlan
    own: Sequence[bytes]
    keys: Sequence[bytes]

    def run(self, number: int, inputs: Callable[[int], State]) -> State:
        """Return the outputs for one batch, by name."""
        return self.chain.run(self, number, inputs)
