"""What one point of the choice space is worth: plan it, run its integers, compare its outputs, count its cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Lock

import cloudpickle
import numpy as np
from cachetools import FIFOCache, LRUCache

from quantpipe.annotate.choices import bits_of
from quantpipe.annotate.variants import Topologies
from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.errors import DataError, HardwareError
from quantpipe.graph.ahead import in_order
from quantpipe.graph.execute import MAX_CONCURRENT, concurrency, joined, lifted, release_memory
from quantpipe.graph.io import external_tensors
from quantpipe.graph.view import MAX_BATCH, Graph
from quantpipe.hardware.cost import COSTS, cost_function
from quantpipe.metrics.reference import Found, Reference, objective_value, output_metrics
from quantpipe.plan import NO_OVERRIDES, Planner
from quantpipe.recover import LayerOptions, Moments, Variants
from quantpipe.scoring.bound import PartialScoreBound
from quantpipe.scoring.chain import SAMPLES, Candidate, Chain
from quantpipe.scoring.sections import Section, sections
from quantpipe.scoring.tensor_cache import State, TensorCache
from quantpipe.types import (
    Batch,
    ChoiceSpace,
    HardwareSpec,
    Point,
    QuantPlan,
    Samples,
    Schema,
    Score,
    Strategy,
    Structure,
    Topology,
)

CHAINS = 4
"""Kept, one per structure: each holds sessions, and what two have in common is kept in both."""

FAST_BITS = 8
"""Storage for which onnxruntime has integer kernels."""


MOST_SENT = 2_000_000_000
"""Bytes of constants; a protobuf message holds less than 2 GiB."""


class EvaluatorKind(StrEnum):
    """How candidates are run: as integer models in onnxruntime, simulated in float32, or whichever is faster here."""

    AUTO = "auto"
    SIMULATED = "simulated"
    INTEGER = "integer"


@dataclass(frozen=True, eq=False)
class CandidateRecipe:
    """Everything that a score depends on, and how to get at it; travels to other processes.

    `metric` is auto, accuracy, kl, mse or callable; `cost` a key of COSTS; `backend` the output form of the run;
    `memory_mb` what tensors kept for later candidates may take. `kind` changes the time only: integers are equal in
    every form.
    `moments` of the layers' inputs: a candidate's weights are recovered with them, by `layer`; None: rounded to the
    nearest. `branches`: the topologies that points decide on, where there is more than `topology`.
    """

    graph: Graph = field(repr=False)
    topology: Topology = field(repr=False)
    spec: HardwareSpec = field(repr=False)
    schema: Schema
    space: ChoiceSpace = field(repr=False)
    table: ThresholdTable = field(repr=False)
    samples: Samples = field(repr=False)
    reference: Reference = field(repr=False)
    metric: str
    cost: str
    backend: str
    kind: EvaluatorKind = EvaluatorKind.AUTO
    memory_mb: int = 1024
    moments: Mapping[str, Moments] | None = field(default=None, repr=False)
    layer: LayerOptions = LayerOptions()  # noqa: RUF009  (frozen)
    branches: Topologies | None = field(default=None, repr=False)

    def variants(self, planner: Planner) -> Variants | None:
        """Return what gives a candidate its weights, where they are recovered."""
        if self.moments is None:
            return None
        return Variants(self.graph, self.topology, self.schema, planner, moments=self.moments, options=self.layer)

    @property
    def is_picklable(self) -> bool:
        """Return whether the recipe can be sent to another process.

        It can where the model fits the format in which it is sent and needs no other files, and all else can be
        pickled.
        """
        if external_tensors(self.graph.model):
            return False
        constants = (self.graph.constant_tensor(name) for name in self.graph.constant_names())
        if sum(tensor.nbytes for tensor in constants) >= MOST_SENT:
            return False
        try:
            cloudpickle.dumps((self.samples, self.reference.value_of))
        except Exception:  # whatever a user's object raises; a session that carries states cannot go either
            return False
        return True

    def make(self, threads: int | None = None, share: int = 1) -> CandidateMeasure:
        """Return the measure, for one process: its threads, and how many share the memory."""
        return CandidateMeasure(self, threads, (self.memory_mb << 20) // share)


class CandidateMeasure:
    """Measures points on the search split, one after the other."""

    def __init__(self, recipe: CandidateRecipe, threads: int | None = None, memory: int = 1 << 30) -> None:
        self._recipe = recipe
        self._planner = Planner(recipe.graph, recipe.topology, recipe.spec, recipe.schema)
        self._variants = recipe.variants(self._planner)
        self._cost = cost_function(recipe.cost) or COSTS[recipe.cost]
        self._cache = TensorCache(memory)
        self._batches = _Batches(recipe.samples, _batch_size(recipe.graph), self._cache)
        self._concurrent, self._threads = concurrency(self._batches.least, threads)
        self._pool = ThreadPoolExecutor(self._concurrent)
        self._parts = self._sections(recipe.topology)
        self._chains: LRUCache[Structure, Chain] = LRUCache(CHAINS)
        self.kind = EvaluatorKind(recipe.kind)
        """For `auto`, what it came to, once a point was measured."""

    def cost(self, point: Point) -> float:
        """Return the cost alone; runs nothing."""
        r = self._recipe
        assignment = r.space.decode(point)
        if r.branches is None:
            return self._cost(r.topology, r.graph, r.spec, bits_of(r.topology, assignment))
        return self._cost(r.branches.topology_of(assignment), r.graph, r.spec, r.branches.bits(assignment))

    def __call__(self, points: Sequence[Point], should_prune: Callable[[Score], bool] | None = None) -> Iterator[Score]:
        """Yield one score after the other, measured when asked for.

        With `should_prune`, a measurement ends as soon as that is true of the best score still possible: such a score
        is marked `pruned` and its value is a bound.
        """
        return (self._score(point, should_prune) for point in points)

    def release(self) -> None:
        """Give back sessions, kept tensors and integer weights; a later measurement makes them again."""
        self._chains.clear()
        self._cache.clear()
        self._planner.release()
        release_memory()

    def _score(self, point: Point, should_prune: Callable[[Score], bool] | None) -> Score:
        r = self._recipe
        cost = self.cost(point)
        bound = PartialScoreBound(r.metric, r.reference) if should_prune is not None else None
        try:
            strategy = r.table.strategy(r.space.decode(point))
            topology = self._topology(strategy.structure)
            plan = self._plan(strategy, topology)
        except (DataError, HardwareError):  # no range, or beyond the device, so that another is looked for
            return Score(float("nan"), cost)
        batches = self._batches
        self._cache.begin([SAMPLES])
        candidate = self._chain(strategy.structure, topology, plan, batches).candidate(plan)
        outputs = []

        def given_up() -> Score | None:
            possible = None if bound is None else bound.best(cost)
            return None if possible is None or should_prune is None or not should_prune(possible) else possible

        if lost := given_up():
            return lost
        with closing(self._running(candidate, batches)) as running:
            for _, coming in running:
                if lost := given_up():
                    return lost
                outputs.append(lifted(coming.result(), r.reference.selected))
                if bound is not None:
                    bound.add(outputs[-1])
        metrics = output_metrics(r.reference, self._found(outputs))
        return Score(objective_value(r.metric, metrics), cost, tuple(metrics.items()))

    def _found(self, batches: Sequence[State]) -> Found:
        """The outputs of all batches: the one, or by name."""
        found = {name: joined([batch[name] for batch in batches]) for name in batches[0]}
        return found if len(found) > 1 else next(iter(found.values()))

    def _running(self, candidate: Candidate, batches: _Batches) -> Generator[tuple[int, Future[State]], None, None]:
        """Yield the batches' outputs in order, each while the next ones are under way."""
        return in_order(self._pool, lambda n: candidate.run(n, batches), batches.numbers(), self._concurrent)

    def _plan(self, strategy: Strategy, topology: Topology) -> QuantPlan:
        """All numbers of a point."""
        overrides = NO_OVERRIDES if self._variants is None else self._variants.on(topology).overrides(strategy)
        return self._planner.on(topology).plan(strategy, overrides)

    def _topology(self, structure: Structure) -> Topology:
        r = self._recipe
        return r.topology if r.branches is None else r.branches.at(structure)

    def _sections(self, topology: Topology) -> tuple[Section, ...]:
        return sections(self._recipe.graph, topology, *self._recipe.reference.names)

    def _chain(self, structure: Structure, topology: Topology, plan: QuantPlan, batches: _Batches) -> Chain:
        """The chain of a topology. Chains of several share what is kept: sections that are the same have one key."""
        found = self._chains.get(structure)
        if found is None:
            parts = self._sections(topology) if structure else self._parts
            if self.kind is EvaluatorKind.AUTO:
                found = self._decided(plan, batches, topology, parts)
            else:
                found = self._in_form(self.kind, parts)
            found.cache = self._cache
            self._chains[structure] = found
        return found

    def _in_form(self, kind: EvaluatorKind, parts: Sequence[Section]) -> Chain:
        self.kind = kind
        backend = self._recipe.backend if kind is EvaluatorKind.INTEGER else None
        return Chain(parts, None, backend, self._threads)

    def _decided(self, plan: QuantPlan, batches: _Batches, topology: Topology, parts: Sequence[Section]) -> Chain:
        """The integer form where it can run fast, gives the same on one batch, and was faster; else the simulated one.

        Where a processor's kernels give something else, simulation is what remains. The scores do not depend on the
        outcome, so it may depend on time.
        """
        simulated = self._in_form(EvaluatorKind.SIMULATED, parts)
        if not runs_fast(self._recipe.backend, topology, parts):
            return simulated
        integer = self._in_form(EvaluatorKind.INTEGER, parts)
        (expected, slow), (found, fast) = (_timed(c, plan, batches, self._concurrent) for c in (simulated, integer))
        if fast < slow and all(np.array_equal(expected[n], found[n], equal_nan=True) for n in expected):
            return integer
        self.kind = EvaluatorKind.SIMULATED
        return simulated


def _timed(chain: Chain, plan: QuantPlan, batches: _Batches, concurrent: int) -> tuple[State, float]:
    """The outputs of the first batch, and the seconds that all batches would take, making the sessions included."""
    candidate, begin = chain.candidate(plan), time.perf_counter()
    output = candidate.run(0, batches)
    ready = time.perf_counter()
    candidate.run(0, batches)
    return output, ready - begin + (time.perf_counter() - ready) * (batches.least - 1) / concurrent


def _batch_size(graph: Graph) -> int:
    """Return half of a float pass's batch size where memory decides it.

    A simulated tensor is written and read several times between two layers, a tenth faster where it stays nearer to the
    cores (measured on efficientnet_lite0).
    """
    few = graph.fixed_batch is None and 1 < graph.batch_size < MAX_BATCH
    return graph.batch_size // 2 if few else graph.batch_size


class _Batches:
    """Hold the samples by batch number, read in order and at need.

    Those that fit the memory are read once. Several threads may ask, for batches near one another.
    """

    def __init__(self, samples: Samples, size: int, cache: TensorCache) -> None:
        self._samples, self._size, self._cache = samples, size, cache
        self.least = -(-len(samples) // size)
        """How many there are at least: a batch ends where the samples' shape changes."""
        self._count: int | None = None
        self._reader: Iterator[Batch] | None = None
        self._next = 0
        self._latest: FIFOCache[int, State] = FIFOCache(MAX_CONCURRENT)
        self._lock = Lock()

    def numbers(self) -> Iterator[int]:
        """0 to the last one. The first time, how many there are shows at their end only."""
        number = 0
        while self._count is None or number < self._count:
            if self._count is None:
                try:
                    self(number)
                except StopIteration:
                    self._count = number
                    return
            yield number
            number += 1

    def __call__(self, number: int) -> State:
        with self._lock:
            found = self._latest.get(number) or self._cache.get(SAMPLES, number)
            return found if found is not None else self._read(number)

    def _read(self, number: int) -> State:
        if self._reader is None or number < self._next:
            self._reader, self._next = self._samples.batches(self._size), 0
        while self._next <= number:
            self._latest[self._next] = next(self._reader).inputs
            self._next += 1
        self._cache.put(SAMPLES, number, self._latest[number])
        return self._latest[number]


def runs_fast(backend: str, topology: Topology, parts: Sequence[Section]) -> bool:
    """Return whether onnxruntime has kernels for the realized form.

    That takes float multipliers, storage of 8 bits, and at least one section of such kernels.
    """
    narrow = all(g.dtype.bits <= FAST_BITS for g in topology.groups) and all(
        w.dtype.bits <= FAST_BITS for w in topology.weights
    )
    return backend in ("qdq", "qoperator") and narrow and any(p.integer for p in parts)
