"""Passes of the float model over the calibration samples: every tensor's statistics, no tensor kept.

Tensors are fetched as extra outputs, run by run, and counted by as many threads as there are cores, each tensor by one
of them. Where extremes are enough the graph reduces them itself. The memory is the memory of one run (`passes` computes
its size). Values that are not finite end the measurement with their tensor and sample. A `Checkpoint` lets an
interrupted measurement continue.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quantpipe.calibrate.collector import StatsCollector
from quantpipe.calibrate.extremes import ExtremesCollector
from quantpipe.calibrate.nonfinite import NO_RANGE, around
from quantpipe.calibrate.passes import Pass, channel_axis, plan_passes
from quantpipe.errors import DataError
from quantpipe.graph.execute import Session, available_cores
from quantpipe.graph.outputs import with_extremes, with_outputs
from quantpipe.graph.view import Graph
from quantpipe.types import Batch, Profile, Samples, TensorStats

Progress = Callable[[int, int, str], None]
"""Called with (samples done in all passes, samples in all passes, what the pass does)."""

CHECKPOINT_SECONDS = 30.0
FLOAT_PASS_SECONDS = 2.0
"""How long the float pass, the unit of costs, is timed at most."""

State = dict[str, NDArray[Any]]
Collector = StatsCollector | ExtremesCollector


class Checkpoint(Protocol):
    """Keep the state of a measurement between two runs of the program."""

    def read(self) -> State | None:
        """Return the state of an interrupted measurement, or None."""

    def write(self, state: State) -> None:
        """Keep the state, so that an interrupted measurement can go on."""


class NoMeasurementCheckpoint:
    """Keep no state: an interrupted measurement begins again."""

    def read(self) -> State | None:
        """Return None: nothing is kept."""
        return None

    def write(self, state: State) -> None:
        """Keep nothing."""


@dataclass(frozen=True)
class Detail:
    """State the measured statistics of each tensor.

    `extremes_only`: no more than minima and maxima (see `TensorStats.full`). `by_channel`: tensors whose channels are
    measured, too (those are always measured in full). `most`: values of each tensor and sample that are counted (see
    `StatsCollector`). `timed`: a float pass is timed besides. `finite`: tensors that are rejected where they hold NaN
    or infinities; None for all. In other tensors these are counted (of tensors measured in full), and no range is made
    from them.
    """

    extremes_only: bool = False
    by_channel: Collection[str] = ()
    most: int | None = None
    timed: bool = True
    finite: Collection[str] | None = None


def measure(
    graph: Graph,
    tensors: Sequence[str],
    samples: Samples,
    memory_mb: int,
    *,
    detail: Detail = Detail(),
    progress: Progress = lambda done, total, note: None,
    checkpoint: Checkpoint | None = None,
) -> Profile:
    """Return the statistics of `tensors` over all samples.

    `memory_mb` is the memory limit in MiB. `detail` selects the statistics of each tensor. `checkpoint` keeps the state
    of an interrupted measurement. Raises DataError for values that are not finite in an activation.
    """
    if len(samples) == 0:
        raise DataError("there are no calibration samples", stage="calibrate")
    by_channel = detail.by_channel
    reduced = [t for t in tensors if detail.extremes_only and t not in by_channel]
    passes = plan_passes(graph, tensors, memory_mb, reduced)
    work = Measurement(
        graph, samples, passes, detail, progress=progress, checkpoint=checkpoint or NoMeasurementCheckpoint()
    )
    work.run()
    timed = detail.timed
    seconds = float_pass_seconds(graph, samples, graph.batch_size, FLOAT_PASS_SECONDS) if timed else 0.0
    return Profile(
        model_hash=graph.model_hash,
        samples=len(samples),
        tensors={t: work.collectors[t].finish() for t in tensors},
        seconds=work.seconds,
        float_pass_seconds=seconds,
        peak_rss_mb=peak_rss_mb(),
    )


class Measurement:
    """The state of one measurement: its passes, the collectors of all tensors, and how far it is."""

    def __init__(
        self,
        graph: Graph,
        samples: Samples,
        passes: Sequence[Pass],
        detail: Detail,
        *,
        progress: Progress,
        checkpoint: Checkpoint,
    ) -> None:
        self._graph, self._samples, self._passes = graph, samples, tuple(passes)
        self._progress, self._checkpoint, self._finite = progress, checkpoint, detail.finite
        self.collectors: dict[str, Collector] = {}
        for one in passes:
            for tensor in one.tensors:
                if one.reduced:
                    self.collectors[tensor] = ExtremesCollector(tensor)
                else:
                    axis = channel_axis(graph, tensor) if tensor in detail.by_channel else None
                    self.collectors[tensor] = StatsCollector(tensor, axis, detail.most)
        self.seconds = 0.0
        self._pass = self._done = 0
        self._saved = time.perf_counter()

    def run(self) -> None:
        """Run all passes, from where the checkpoint says."""
        self._restore()
        with ThreadPoolExecutor(available_cores()) as pool:
            for number in range(self._pass, len(self._passes)):
                self._one_pass(number, pool)

    def _one_pass(self, number: int, pool: ThreadPoolExecutor) -> None:
        one, total = self._passes[number], len(self._samples)
        note = f"{len(one.tensors)} tensors" + (f", {number + 1} of {len(self._passes)}" if self._passes[1:] else "")
        include = self._reducer(one) if one.reduced else self._fetcher(one, pool)
        started, before = time.perf_counter(), self.seconds
        open_samples, first = 0, 0
        for batch in self._samples.batches(one.size):
            if first + len(batch) <= self._done:  # an earlier, interrupted run has these
                first += len(batch)
                continue
            include(batch, first)
            first += len(batch)
            open_samples += len(batch)
            if open_samples >= self._graph.batch_size or first >= total:
                open_samples = 0
                for tensor in one.tensors:
                    self.collectors[tensor].close_batch()
                self._pass, self._done = number, first
                self.seconds = before + time.perf_counter() - started
                self._save_at(CHECKPOINT_SECONDS)
            self._progress(number * total + first, len(self._passes) * total, note)
        self._pass, self._done = number + 1, 0
        if self._pass < len(self._passes):
            self._save_at(0.0)

    def _fetcher(self, one: Pass, pool: ThreadPoolExecutor) -> Callable[[Batch, int], None]:
        """Return a function that runs a batch and counts its tensors on all cores, the largest first."""
        inputs = {i.name for i in self._graph.inputs}
        fetched = [t for t in one.tensors if t not in inputs]
        # Worker threads of the runtime that wait by spinning would take the cores from the counting.
        model = with_outputs(self._graph.model, fetched) if fetched else None
        session = Session(model, spin=False, where=self._graph.source) if model is not None else None

        def include(batch: Batch, first: int) -> None:
            values = {**batch.inputs, **(session.run(batch.inputs, fetched) if session is not None else {})}
            ordered = sorted(one.tensors, key=lambda t: -values[t].size)
            list(pool.map(lambda t: self._full(t).update(values[t], first, batch_ends=False), ordered))
            for tensor in one.tensors:
                if self._finite is None or tensor in self._finite:
                    self._refuse_nonfinite(self._full(tensor))

        return include

    def _reducer(self, one: Pass) -> Callable[[Batch, int], None]:
        """Return a function that runs a batch reduced in the graph; it inspects a tensor whose sum is not finite."""
        ranks = {t: len(self._graph.shapes[t]) for t in one.tensors}
        model, names = with_extremes(self._graph.model, ranks)
        session = Session(model, where=self._graph.source)

        def include(batch: Batch, first: int) -> None:
            found = session.run(batch.inputs)
            for tensor in one.tensors:
                of = names[tensor]
                if np.isfinite(found[of.sums]).all():
                    low, high = found[of.minima].min(initial=np.inf), found[of.maxima].max(initial=-np.inf)
                    self._extremes(tensor).add(float(low), float(high), int(found[of.count]))
                else:
                    stats = self._looked_at(tensor, batch, first)
                    self._extremes(tensor).add(stats.minimum, stats.maximum, stats.count)

        return include

    def _looked_at(self, tensor: str, batch: Batch, first: int) -> TensorStats:
        """Return statistics of one tensor in one batch; DataError when its values are not finite."""
        collector = StatsCollector(tensor)
        fetched = [] if tensor in batch.inputs else [tensor]
        values = batch.inputs
        if fetched:
            session = Session(with_outputs(self._graph.model, fetched), where=self._graph.source)
            values = session.run(batch.inputs, fetched)
        collector.update(values[tensor], first)
        self._refuse_nonfinite(collector)
        return collector.finish()

    def _refuse_nonfinite(self, collector: StatsCollector) -> None:
        if collector.first_nonfinite is not None:
            raise DataError(
                f"the tensor {collector.name} holds {collector.nonfinite} values that are not finite, first in "
                f"calibration sample {collector.first_nonfinite} of {len(self._samples)}. The float model itself "
                f"overflows or divides by zero there, or masks with infinities, {NO_RANGE}. Leave that sample out, or "
                f"keep the nodes that make and read it in float with {around(self._graph, collector.name)}",
                stage="calibrate",
                where=collector.name,
            )

    def _full(self, tensor: str) -> StatsCollector:
        collector = self.collectors[tensor]
        assert isinstance(collector, StatsCollector)  # noqa: S101  (made so in __init__; narrows the type)
        return collector

    def _extremes(self, tensor: str) -> ExtremesCollector:
        collector = self.collectors[tensor]
        assert isinstance(collector, ExtremesCollector)  # noqa: S101  (as above)
        return collector

    # --- going on after an interruption -----------------------------------------------------------------------------

    def _save_at(self, seconds: float) -> None:
        """Write the checkpoint when the last one is `seconds` old."""
        now = time.perf_counter()
        if now - self._saved < seconds:
            return
        state: State = {"place": np.asarray([self._pass, self._done, self.seconds], np.float64)}
        for i, collector in enumerate(self.collectors.values()):
            state |= {f"{i}.{key}": array for key, array in collector.state().items()}
        self._checkpoint.write(state)
        self._saved = time.perf_counter()

    def _restore(self) -> None:
        state = self._checkpoint.read()
        if state is None:
            return
        self._pass, self._done = (int(n) for n in state["place"][:2])
        self.seconds = float(state["place"][2])
        for i, collector in enumerate(self.collectors.values()):
            head = f"{i}."
            collector.restore({key.removeprefix(head): a for key, a in state.items() if key.startswith(head)})


def float_pass_seconds(graph: Graph, samples: Samples, size: int, at_most: float = math.inf) -> float:
    """Return the seconds of one plain pass of the float model over the same samples, the unit of reported costs.

    The pass is timed for at least `at_most` seconds or to the end; the remaining samples are extrapolated. `size` is
    samples per batch.
    """
    session = Session(graph.model, where=graph.source)
    started, seconds, done = time.perf_counter(), 0.0, 0
    for batch in samples.batches(size):
        session.run(batch.inputs)
        done += len(batch)
        seconds = time.perf_counter() - started
        if seconds > at_most:
            break
    return seconds * len(samples) / max(done, 1)


def peak_rss_mb() -> float:
    """Return the operating system's own figure for this process, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
