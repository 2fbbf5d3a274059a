"""Both models of a walk of calibrators, batch by batch: run as far as somebody looks.

A batch is taken through layers only when a calibrator asks for views of it, and then through all layers up to there,
with what is decided by then. Batches that nobody asks for are never run. Between layers their tensors are kept in
memory up to a limit, in files beyond it. Batches run side by side, with the cores divided among them: layers are too
short for threads to share each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from threading import Lock
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.graph.execute import Session, concurrency
from quantpipe.graph.external_weights import heavy_weights, is_heavy, strip_initializers
from quantpipe.graph.extract import part_of
from quantpipe.graph.view import Graph
from quantpipe.recover.layer_units import BATCHES, Unit, samples_at_once
from quantpipe.recover.reconstruct.activation_store import ActivationStore
from quantpipe.types import Form

Array = NDArray[Any]
Numbers = tuple[np.float32, int, int, int]
"""Scale, zero point, least and greatest integer."""

MOST_KEPT = 1 << 27
"""Bytes of weights whose sessions a unit keeps."""

CHUNK = 1 << 16
"""Elements that are rounded at a time: they stay in the cache between the steps."""


class Decisions(Protocol):
    """What holds for a unit once its calibrator was asked."""

    def numbers(self, tensor: str) -> Numbers:
        """Return how a stored tensor is rounded."""

    def weight_key(self, tensor: str) -> bytes:
        """Return what tells the integers of a weight from those by other thresholds."""

    def weight(self, tensor: str) -> Array:
        """Return the real values of a weight's integers."""


class UnitRunner:
    """Run one unit, in float or with a weight in place of its own.

    Weights are constants of a session each, for which the runtime lays them out once: as inputs they cost up to ten
    times the run of a depthwise convolution. Sessions are kept while their weights are few bytes.
    """

    def __init__(self, graph: Graph, unit: Unit, threads: int) -> None:
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
        self._threads = threads
        self._sessions: dict[bytes | None, Session] = {}
        self._bytes = 0

    def session(self, key: bytes | None = None, make: Callable[[], Array] | None = None) -> Session:
        """Return the unit with another weight, or with its own.

        Args:
            key: tells weights apart; None for the unit's own.
            make: gives the weight, where it was not there before.

        Returns:
            The session.
        """
        key = key if self.weight is not None else None
        if key not in self._sessions:
            weights = dict(self._given)
            if self.weight is not None and key is not None and make is not None:
                weights[self.weight] = make()
            size = sum(w.nbytes for w in weights.values())
            if self._bytes + size > MOST_KEPT:
                self._sessions.clear()
                self._bytes = 0
            self._bytes += size
            name = self.unit.nodes[0].name
            self._sessions[key] = Session(self._model, threads=self._threads, spin=False, weights=weights, where=name)
        return self._sessions[key]


class LayerStream:
    """Hold the tensors of both models at the place that each batch has reached.

    Args:
        graph: the clean model.
        units: what runs at once, in order.
        batches: the samples.
        decisions: what holds for a unit by the time that it is run.
        memory_mb: a quarter of it is what kept tensors may take in memory, half is for those of layers that run.
            Where it is little, batches run in pieces; which samples a share has does not depend on it.
    """

    def __init__(
        self,
        graph: Graph,
        units: Sequence[Unit],
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
        self._memory = memory_mb << 19
        self._unread: Iterable[Mapping[str, Array]] | None = batches
        self._concurrent, self._threads = 1, 1
        self._pool: ThreadPoolExecutor | None = None
        self._runner: tuple[int, UnitRunner] | None = None

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
        """Return the pieces of a share of the batches, evenly spread; a larger share has those of a smaller one."""
        self._read()
        order = _spread(len(self._batches))
        return [n for batch in sorted(order[: max(1, min(len(order), round(share * len(order))))])
                for n in self._batches[batch]]  # fmt: skip

    def runner(self, index: int) -> UnitRunner:
        """Return what runs a unit; the last one that was asked for is kept."""
        if self._runner is None or self._runner[0] != index:
            self._runner = (index, UnitRunner(self._graph, self._units[index], self._threads))
        return self._runner[1]

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

    def wanted(self, index: int, number: int, runner: UnitRunner) -> dict[str, Array]:
        """Return what a unit makes in the float model; it is run where nobody asked before."""
        outputs = runner.unit.makes
        with self._locks[number]:
            if not all(self._real.holds(t, number) for t in outputs):
                for tensor, array in runner.session().run(self.real(index, number), outputs).items():
                    self._real.put(tensor, number, array)
        return {t: self._real.get(t, number) for t in outputs}

    def side_by_side(self, run: Callable[[int], Any], numbers: Sequence[int]) -> Iterator[Any]:
        """Yield what a function gives for each batch, in order, with no more under way than run at once."""
        pool, rest, under_way = self._read(), iter(numbers), deque[Future[Any]]()
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
        wanted = [t for t in unit.makes if t in self._graph.consumers]
        if wanted:
            runner = self.runner(index)
            quantized = runner.session()
            if (weight := runner.weight) is not None:
                quantized = runner.session(self._decisions.weight_key(weight), lambda: self._decisions.weight(weight))
            how = {t: self._decisions.numbers(t) for t in runner.stored}

            def advance(number: int) -> None:
                self.wanted(index, number, runner)
                feeds = self.reached(index, number)
                feeds |= {t: rounded(feeds[t], numbers) for t, numbers in how.items()}
                for tensor, array in quantized.run(feeds, wanted).items():
                    self._reached.put(tensor, number, array)

            for _ in self.side_by_side(advance, numbers):
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
