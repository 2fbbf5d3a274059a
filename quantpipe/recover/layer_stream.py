"""Both models of a walk of calibrators, batch by batch: run as far as somebody looks.

A batch is taken through layers only when a calibrator asks for views of it, and then through all layers up to there,
with what is decided by then. Batches that nobody asks for are never run. Between layers their tensors are kept in
memory up to a limit, in files beyond it. Batches run side by side, with the cores divided among them: layers are too
short for threads to share each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from types import TracebackType
from typing import Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.arrays import Array
from quantpipe.graph.execute import Session, concurrency
from quantpipe.graph.external_weights import heavy_weights, is_heavy, strip_initializers
from quantpipe.graph.extract import part_of
from quantpipe.graph.view import Graph
from quantpipe.recover.layer_units import BATCHES, LayerUnit, samples_at_once
from quantpipe.recover.reconstruct.activation_store import ActivationStore
from quantpipe.types import Form

T = TypeVar("T")
Numbers = tuple[np.float32, int, int, int]
"""Scale, zero point, minimum and maximum integer."""
Weight = tuple[bytes | None, Callable[[], Array] | None]
"""A key that identifies a weight, and its source; None of a unit's own."""

MOST_KEPT = 1 << 26
"""Bytes of weights whose sessions a unit keeps, and all units before it together; an eighth of the memory, if less."""

CHUNK = 1 << 18
"""Elements that are rounded at a time: they stay in the cache between the steps, which are long enough for two threads
not to wait for the interpreter."""


class Decisions(Protocol):
    """What holds for a unit once its calibrator was asked."""

    def numbers(self, tensor: str) -> Numbers:
        """Return how a stored tensor is rounded."""

    def weight_key(self, tensor: str) -> bytes:
        """Return a key for the integers of a weight by its thresholds."""

    def weight(self, tensor: str) -> Array:
        """Return the real values of a weight's integers."""


@dataclass(frozen=True)
class UnitRounding:
    """Say what a unit of the quantized model runs with: how its inputs are rounded, and its weight, told by a key."""

    numbers: Mapping[str, Numbers]
    key: bytes | None = None


class UnitRunner:
    """Run one unit, in float or with a weight in place of its own.

    Weights are constants of a session each, for which the runtime lays them out once: as inputs they cost up to ten
    times the run of a depthwise convolution. Sessions are kept while their weights are few bytes.
    """

    def __init__(self, graph: Graph, unit: LayerUnit, threads: int, most: int) -> None:
        kernel = unit.kernel
        operands = kernel.operands if kernel is not None else ()
        self.unit = unit
        self.weight = kernel.weight if kernel is not None else None
        self.stored = frozenset(o.tensor for o in operands if o.form is Form.QUANTIZED).intersection(unit.reads)
        model = part_of(graph, unit.reads, list(unit.makes)).model
        held = heavy_weights(model) if is_heavy(model) else {}
        self._given = {name: tensor.numpy() for name, tensor in held.items()}
        if self.weight is not None:
            self._given[self.weight] = graph.constant(self.weight)
        self._model = strip_initializers(model, self._given) if self._given else model
        self._threads, self._most = threads, most
        self._sessions: dict[bytes | None, Session] = {}
        self._each = sum(w.nbytes for w in self._given.values())

    @property
    def held(self) -> int:
        """Return how many bytes the weights of its sessions have."""
        return self._each * len(self._sessions)

    def settle(self, key: bytes | None) -> None:
        """Forget the sessions with other weights than its own and the one with this key."""
        self._sessions = {k: session for k, session in self._sessions.items() if k in (None, key)}

    def sessions(self, wanted: Sequence[Weight], pool: Executor) -> list[Session]:
        """Return the unit with some weights, each as its key and its source.

        `wanted`: the weights; (None, None) is the unit's own.
        """
        makes = {key if self.weight is not None else None: make for key, make in wanted}
        missing = [key for key in makes if key not in self._sessions]
        if (len(self._sessions) + len(missing)) * self._each > self._most:
            self._sessions, missing = {}, list(makes)
        made = pool.map(lambda key: self._session(makes[key]), missing)
        self._sessions |= dict(zip(missing, made, strict=True))
        return [self._sessions[key if self.weight is not None else None] for key, _ in wanted]

    def session(self) -> Session:
        """Return the unit with its own weight, which was made before."""
        return self._sessions[None]

    def _session(self, make: Callable[[], Array] | None) -> Session:
        weights = dict(self._given)
        if self.weight is not None and make is not None:
            weights[self.weight] = make()
        name = self.unit.nodes[0].name
        return Session(self._model, threads=self._threads, spin=False, weights=weights, where=name)


class LayerStream:
    """Hold the tensors of both models at the place that each batch has reached.

    Args:
        graph: the clean model.
        units: what runs at once, in order.
        batches: the samples.
        decisions: what holds for a unit by the time that it is run.
        memory_mb: a quarter of it is what kept tensors may take in memory, half is for layers that run.
            Where it is little, batches run in pieces; which samples a share has does not depend on it.
    """

    def __init__(
        self,
        graph: Graph,
        units: Sequence[LayerUnit],
        batches: Iterable[Mapping[str, Array]],
        *,
        decisions: Decisions,
        memory_mb: int,
    ) -> None:
        self._graph, self._units, self._decisions = graph, units, decisions
        self._last = {t: number for number, unit in enumerate(units) for t in unit.reads}
        self._real, self._reached = ActivationStore(memory_mb << 17), ActivationStore(memory_mb << 17)
        self._at: list[int] = []
        self._locks: list[Lock] = []
        """Of the batches: a float result is made once, whoever asks for it."""
        self._samples = 0
        self._batches: list[list[int]] = []
        """The numbers of the pieces of each batch."""
        self._memory, self._kept = memory_mb << 19, min(MOST_KEPT, memory_mb << 17)
        self._unread: Iterable[Mapping[str, Array]] | None = batches
        self._concurrent, self._threads = 1, 1
        self._pool: ThreadPoolExecutor | None = None
        self._runners: dict[int, UnitRunner] = {}
        self._offered: dict[int, tuple[int, UnitRounding]] = {}
        """Batch -> the unit whose results in the quantized model are kept already, and what they were made with."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._real.close()
        self._reached.close()

    def _read(self) -> ThreadPoolExecutor:
        """Read the samples, once somebody looks, and return what runs them."""
        if self._unread is not None:
            most = samples_at_once(self._graph, self._units, self._memory, concurrency(BATCHES)[0] + 1)
            for batch in self._unread:
                count = len(next(iter(batch.values())))
                self._samples += count
                step = count if self._graph.fixed_batch else min(most, count)
                self._batches.append([])
                for first in range(0, count, step):
                    self._batches[-1].append(len(self._at))
                    for name, array in batch.items():
                        self._real.put(name, len(self._at), array[first : first + step])
                        self._reached.put(name, len(self._at), array[first : first + step])
                    self._at.append(0)
                    self._locks.append(Lock())
            self._unread = None
        if self._pool is None:
            self._concurrent, self._threads = concurrency(len(self._at))
            self._pool = ThreadPoolExecutor(self._concurrent)
        return self._pool

    @property
    def samples(self) -> int:
        """Return how many samples there are."""
        self._read()
        return self._samples

    def share(self, share: float) -> list[int]:
        """Return the pieces of a share of the batches, evenly spread; a larger share includes a smaller one."""
        self._read()
        order = _spread(len(self._batches))
        return [n for batch in sorted(order[: max(1, min(len(order), round(share * len(order))))])
                for n in self._batches[batch]]  # fmt: skip

    def runner(self, index: int) -> UnitRunner:
        """Return what runs a unit; those that were asked for last are kept, while their weights are few bytes."""
        if index not in self._runners:
            for other in self._runners.values():
                other.settle(None if other.weight is None else self._decisions.weight_key(other.weight))
            while self._runners and sum(r.held for r in self._runners.values()) > self._kept:
                del self._runners[next(iter(self._runners))]
            self._runners[index] = UnitRunner(self._graph, self._units[index], self._threads, self._kept)
        return self._runners[index]

    def sessions(self, runner: UnitRunner, wanted: Sequence[Weight]) -> list[Session]:
        """Return a unit with some weights."""
        return runner.sessions(wanted, self._read())

    def reach(self, index: int, numbers: Sequence[int]) -> None:
        """Take batches up to a unit, which they have not run yet."""
        while behind := [n for n in numbers if self._at[n] < index]:
            first = min(self._at[n] for n in behind)
            self._through(first, [n for n in behind if self._at[n] == first])

    def real(self, index: int, number: int) -> dict[str, Array]:
        """Return what a unit reads in the float model, of a batch that has reached it."""
        return {t: self._real.get(t, number) for t in self._units[index].reads}

    def reached(self, index: int, number: int) -> dict[str, Array]:
        """Return what a unit reads in the quantized model, not rounded yet."""
        return {t: self._reached.get(t, number) for t in self._units[index].reads}

    def wanted(self, number: int, runner: UnitRunner, real: Mapping[str, Array]) -> dict[str, Array]:
        """Return what a unit makes in the float model of what it reads there; it is run where nobody asked before."""
        outputs = runner.unit.makes
        with self._locks[number]:
            if all(self._real.holds(t, number) for t in outputs):
                return {t: self._real.get(t, number) for t in outputs}
            found = runner.session().run(real, outputs)
            for tensor, array in found.items():
                self._real.put(tensor, number, array)
            return found

    def offer(self, index: int, number: int, how: UnitRounding, outputs: Mapping[str, Array]) -> None:
        """Keep what a unit made in the quantized model, for the case that this is what is decided.

        `outputs`: what it makes, by tensor.
        """
        for tensor in self._read_on(index):
            self._reached.put(tensor, number, outputs[tensor])
        self._offered[number] = (index, how)

    def _read_on(self, index: int) -> list[str]:
        """What a unit makes that others read."""
        return [t for t in self._units[index].makes if t in self._graph.consumers]

    def side_by_side(self, run: Callable[[int], T], numbers: Sequence[int]) -> Iterator[T]:
        """Yield what a function gives for each batch, in order, with no more under way than run at once."""
        pool, rest, under_way = self._read(), iter(numbers), deque[Future[T]]()
        for number in islice(rest, self._concurrent):
            under_way.append(pool.submit(run, number))
        try:
            while under_way:
                found = under_way.popleft().result()
                under_way.extend(pool.submit(run, number) for number in islice(rest, 1))
                yield found
        finally:
            wait(under_way)  # whoever looks at some batches alone: what is under way reads tensors that may be dropped

    def _through(self, index: int, numbers: Sequence[int]) -> None:
        unit = self._units[index]
        wanted = self._read_on(index)
        if wanted:
            runner = self.runner(index)
            key = None if runner.weight is None else self._decisions.weight_key(runner.weight)
            how = UnitRounding({t: self._decisions.numbers(t) for t in runner.stored}, key)
            left = [number for number in numbers if self._offered.get(number) != (index, how)]
            if left:
                own = (key, lambda: self._decisions.weight(runner.weight or ""))
                _, quantized = self.sessions(runner, [(None, None), own])

                def advance(number: int) -> None:
                    if not all(self._real.holds(t, number) for t in unit.makes):
                        self.wanted(number, runner, self.real(index, number))
                    feeds = self.reached(index, number)
                    feeds |= {t: rounded(feeds[t], numbers) for t, numbers in how.numbers.items()}
                    for tensor, array in quantized.run(feeds, wanted).items():
                        self._reached.put(tensor, number, array)

                for _ in self.side_by_side(advance, left):
                    pass
        gone = [t for t in (*unit.reads, *unit.makes) if self._last.get(t, -1) <= index]
        for number in numbers:
            self._at[number] = index + 1
            self._real.drop(gone, number)
            self._reached.drop(gone, number)


def rounded(array: Array, numbers: Numbers) -> NDArray[np.float32]:
    """Return the real values of the integers that an array is stored as, float32 of the same shape."""
    scale, zero, qmin, qmax = numbers
    least, greatest = np.float32(qmin - zero), np.float32(qmax - zero)
    flat = np.ascontiguousarray(array, np.float32).reshape(-1)
    found = np.empty_like(flat)
    for first in range(0, flat.size, CHUNK):
        steps = found[first : first + CHUNK]
        np.divide(flat[first : first + CHUNK], scale, out=steps)
        intmath.nearest_step(steps, least, greatest, out=steps)
        np.multiply(steps, scale, out=steps)
    return found.reshape(array.shape)


def _spread(count: int) -> list[int]:
    """Numbers below `count` in an order whose every beginning is spread evenly: 0, half, a quarter, three quarters."""
    bits = max(1, (count - 1).bit_length())
    return [n for n in (int(f"{i:0{bits}b}"[::-1], 2) for i in range(1 << bits)) if n < count]
