"""One streaming pass of the float model over the calibration samples: every tensor's statistics, no tensor kept.

Tensors are fetched as extra outputs, batch by batch; memory is that of one batch. `memory_mb` bounds it by choosing
the batch size; the pass reports progress and names the tensor and sample of values that are not finite.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable, Sequence
from math import prod

from quantpipe.calibrate.collector import StatsCollector
from quantpipe.errors import DataError
from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import expose
from quantpipe.graph.view import Graph
from quantpipe.types import Profile, Samples

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with (samples done, samples in all)."""


def measure(
    graph: Graph,
    tensors: Sequence[str],
    samples: Samples,
    memory_mb: int,
    progress: Progress = lambda done, total: None,
) -> Profile:
    """Statistics of `tensors` over all samples. Raises DataError for NaN in an activation."""
    if len(samples) == 0:
        raise DataError("there are no calibration samples", stage="calibrate")
    collectors = {t: StatsCollector(t) for t in tensors}
    inputs = {i.name for i in graph.inputs}
    fetched = [t for t in tensors if t not in inputs]
    session = Session(expose(graph.model, fetched), where=graph.source)
    size = batch_size(graph, fetched, memory_mb)
    started, done = time.perf_counter(), 0
    for batch in samples.batches(size):
        values = {**batch.inputs, **session.run(batch.inputs, fetched)}
        for tensor, collector in collectors.items():
            collector.update(values[tensor], done)
        done += len(batch)
        progress(done, len(samples))
    seconds = time.perf_counter() - started
    _refuse_nan(collectors, samples)
    return Profile(
        model_hash=graph.model_hash,
        samples=done,
        tensors={t: c.finish() for t, c in collectors.items()},
        seconds=seconds,
        float_pass_seconds=float_pass_seconds(graph, samples, size),
        peak_rss_mb=peak_rss_mb(),
    )


def batch_size(graph: Graph, tensors: Sequence[str], memory_mb: int) -> int:
    """The graph's own batch size, halved until the fetched tensors of one batch stay within `memory_mb` MiB."""
    per_sample = 4 * sum(prod(graph.shapes[t]) for t in tensors)
    size = graph.batch_size
    if graph.inputs[0].shape[:1] != (None,):
        return size
    while size > 1 and per_sample * size > memory_mb << 20:
        size //= 2
    return size


def float_pass_seconds(graph: Graph, samples: Samples, size: int) -> float:
    """Seconds of one plain pass of the float model over the same samples: the unit in which costs are reported."""
    session = Session(graph.model, where=graph.source)
    started = time.perf_counter()
    for batch in samples.batches(size):
        session.run(batch.inputs)
    return time.perf_counter() - started


def peak_rss_mb() -> float:
    """The operating system's own figure for this process, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _refuse_nan(collectors: dict[str, StatsCollector], samples: Samples) -> None:
    for tensor, collector in collectors.items():
        if collector.first_nonfinite is not None:
            raise DataError(
                f"the tensor {tensor} holds {collector.nonfinite} values that are not finite, first in calibration "
                f"sample {collector.first_nonfinite}; the float model itself overflows or divides by zero there, "
                "so no range can represent it: leave that sample out or keep the node in float",
                stage="calibrate",
                where=tensor,
            )
