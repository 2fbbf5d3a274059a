"""The course of an evaluation: its progress while it runs, and its finished parts for a later run.

An evaluation is a row of phases. Phases with outputs (one of the three models over a split) are kept batch by batch,
every few seconds; of the others the result is kept. A later evaluation of the same origin takes the kept parts.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from itertools import count, islice, takewhile
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from quantpipe.artifacts import plain
from quantpipe.artifacts.checkpoint import Kept, NoCheckpoint, PartCheckpoint
from quantpipe.graph.ahead import in_order
from quantpipe.graph.execute import joined
from quantpipe.types import Batch, Outputs, Samples

Update = Callable[[int, int, str], None]
T = TypeVar("T")

_Row = tuple[Sequence[NDArray[Any]], NDArray[np.int64] | None]
"""The outputs `[n, ...]` of one batch, and its labels, if it has any."""

SECONDS = 2.0
"""Work worth keeping: what is quicker is done again."""


def _silent(name: str) -> Update:
    return lambda done, total, note: None


@dataclass(frozen=True, eq=False)
class CountedSamples:
    """The same samples; `tell` hears how many of them have been asked for, in one pass."""

    samples: Samples
    tell: Callable[[int], None]

    @property
    def digest(self) -> str:
        """Return the digest of the samples."""
        return self.samples.digest

    @property
    def labelled(self) -> bool:
        """Return whether the samples have labels."""
        return self.samples.labelled

    def __len__(self) -> int:
        return len(self.samples)

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the batches, and tell after each how many samples are done."""
        done = 0
        for batch in self.samples.batches(size):
            yield batch
            done += len(batch)  # behind the yield: what was handed out has been worked on by now
            self.tell(done)


@dataclass(eq=False)
class EvaluationProgress:
    """Tell how far an evaluation is, and keep its finished parts.

    `kept`: the folder of finished parts between two runs of the program. `progress` opens a bar of a phase by its name;
    `phases` is the expected number of phases, for that name. `concurrent`: how many batches of a model run at once.
    `part` counts the time of a phase under its name. `allowed` gives the seconds that an optional part may take;
    `left_out` notes what was not measured for that. `clock` is for tests.
    """

    kept: Kept = field(default_factory=NoCheckpoint)
    progress: Callable[[str], Update] = _silent
    phases: int = 0
    concurrent: int = 1
    part: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext()
    allowed: Callable[[str], float] = lambda name: math.inf
    left_out: Callable[[str], None] = lambda sentence: None
    seconds: float | None = None
    clock: Callable[[], float] = time.perf_counter
    _phase: int = 0
    _per_sample: dict[str, float] = field(default_factory=dict)

    def outputs(
        self, name: str, run: Callable[[Batch], NDArray[Any]], samples: Samples, size: int
    ) -> tuple[Outputs, NDArray[np.int64] | None]:
        """Return the results of `run` over all samples, and their labels, continuing an interrupted evaluation.

        `run` returns one array for a batch.
        """
        (found,), labels = self.several(name, lambda batch: [run(batch)], samples, size)
        return found, labels

    def several(
        self, name: str, run: Callable[[Batch], Sequence[NDArray[Any]]], samples: Samples, size: int
    ) -> tuple[list[Outputs], NDArray[np.int64] | None]:
        """Return several outputs over all samples in the order of `run`, and the labels `[N]` or None."""
        update = self._begin(name)
        with self.part(name):
            rows, complete = self._stored(_key(name, size))
            known, begin = _samples(rows), self.clock()
            update(known, len(samples), "")
            if not complete:
                key = _key(name, size)
                self._go_on(key, run, samples.batches(size), rows, tell=lambda n: update(n, len(samples), ""))
            if fresh := _samples(rows) - known:
                self._per_sample[name] = (self.clock() - begin) / fresh
        labels = [known for _, known in rows if known is not None]
        outputs = [joined(list(found)) for found in zip(*(row for row, _ in rows), strict=True)]
        return outputs, np.concatenate(labels) if labels else None

    def result(self, name: str, work: Callable[[Samples], T], samples: Samples, make: Callable[[Any], T]) -> T:
        """Return the result of `work` for the samples.

        `make` restores the result from JSON, if an interrupted evaluation had it.
        """
        update = self._begin(name)
        found = self.kept.read(_key(name, len(samples)))
        if found is not None:
            return make(json.loads(str(found["result"])))
        begin = self.clock()
        with self.part(name):
            result = work(CountedSamples(samples, lambda done: update(done, len(samples), "")))
        if self.clock() - begin >= self._worth:
            self.kept.write(_key(name, len(samples)), {"result": np.array(json.dumps(_plain(result), default=plain))})
        return result

    def seconds_per_sample(self, name: str) -> float | None:
        """Return what a sample took in a phase with outputs; None where every sample came from an earlier run."""
        return self._per_sample.get(name)

    @property
    def goes_on(self) -> bool:
        """Return whether parts of an interrupted evaluation are kept."""
        return isinstance(self.kept, PartCheckpoint) and self.kept.any()

    @property
    def _worth(self) -> float:
        return SECONDS if self.seconds is None else self.seconds

    def _begin(self, name: str) -> Update:
        self._phase += 1
        place = f" {self._phase}/{self.phases}" if self.phases else ""
        return self.progress(f"evaluate{place}: {name}")

    def _stored(self, key: str) -> tuple[list[_Row], bool]:
        """Return the kept part of a phase, and whether it is complete."""
        rows: list[_Row] = []
        while (part := self.kept.read(f"{key}-{len(rows):06d}")) is not None:
            batches = int(part["batches"])
            rows += [(_outputs(part, i), part.get(f"labels.{i}")) for i in range(batches)]
            if part["last"] or not batches:
                return rows, bool(part["last"])
        return rows, False

    def _go_on(
        self,
        key: str,
        run: Callable[[Batch], Sequence[NDArray[Any]]],
        batches: Iterable[Batch],
        rows: list[_Row],
        *,
        tell: Callable[[int], None],
    ) -> None:
        """Run the batches after those in `rows`, and add them there."""
        known = kept = len(rows)
        begin = self.clock()
        with (
            ThreadPoolExecutor(self.concurrent) as pool,
            closing(in_order(pool, run, islice(batches, known, None), self.concurrent)) as running,
        ):
            for batch, coming in running:
                rows.append((coming.result(), batch.labels))
                tell(_samples(rows))
                if self.clock() - begin >= self._worth:
                    self._keep(key, kept, rows, last=False)
                    kept, begin = len(rows), self.clock()
        if kept:
            self._keep(key, kept, rows, last=True)

    def _keep(self, key: str, first: int, rows: list[_Row], *, last: bool) -> None:
        fresh = rows[first:]
        part: dict[str, NDArray[Any]] = {"batches": np.array(len(fresh)), "last": np.array(last)}
        part |= {_place(i, k): found for i, (row, _) in enumerate(fresh) for k, found in enumerate(row)}
        part |= {f"labels.{i}": labels for i, (_, labels) in enumerate(fresh) if labels is not None}
        self.kept.write(f"{key}-{first:06d}", part)


def _samples(rows: Sequence[_Row]) -> int:
    return sum(np.atleast_1d(row[0]).shape[0] for row, _ in rows)


def _place(batch: int, output: int) -> str:
    """Return the key of an output of a batch, in a kept part."""
    return f"outputs.{batch}" + (f".{output}" if output else "")


def _outputs(part: Mapping[str, NDArray[Any]], batch: int) -> list[NDArray[Any]]:
    return [part[_place(batch, k)] for k in takewhile(lambda k: _place(batch, k) in part, count())]


def _key(name: str, size: int) -> str:
    """Return the key of a file name; a run with other batches is another part."""
    return f"{name.replace(' ', '_')}-by-{size}"


def _plain(result: Any) -> Any:
    return dataclasses.asdict(result) if dataclasses.is_dataclass(result) and not isinstance(result, type) else result
