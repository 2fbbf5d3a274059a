"""Estimate before calibration how much memory a run takes, and report a machine that has less.

The estimate follows from the shapes that the model has on samples, and from its weights. It is for the stage with the
most memory, which is one of two. The comparison of models holds two sessions with float weights and the tensors of a
few samples. Recovery holds tensors of all samples between two layers, and the moments of one layer.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from quantpipe.calibrate.passes import fetched_bytes, run_size
from quantpipe.graph.execute import concurrency
from quantpipe.graph.external_weights import is_outside
from quantpipe.graph.view import Graph
from quantpipe.oprules import rule_of
from quantpipe.oprules.matrix import matrix_shape
from quantpipe.pipeline.settings import RUN_LOG, Console
from quantpipe.pipeline.timeline import held_mb
from quantpipe.simulate.float_weights import MANY

_log = logging.getLogger(RUN_LOG)

BASE_MB = 300.0
"""The interpreter, its libraries, and a small model: the peak of a run of the digits model."""

WEIGHTS = 4.0
"""Times the bytes of the weights: the model's own, those of two sessions, and integers in plan and realized model."""

MANY_WEIGHTS = 2.0
"""The same of models whose sessions hold no floats of integer weights, and whose own weights are in a file."""

COMPARED = 2.0
"""Times the tensors of one run: both models hold theirs, in floats and in integers."""

BETWEEN = 1.25
"""Times the float tensors between two layers: recovery keeps their integers, too."""

SOLVED = 6.0
"""Times the second moments of a layer's input: themselves, and what solving the layer takes."""

SCORES = 3 * 4 + 2 * 8
"""Bytes for an element of the outputs: of three models in float32, and two arrays in float64 for their error."""


@dataclass(frozen=True)
class HeldSamples:
    """State how many samples a run holds the outputs of, and how many recovery is fitted to (0: no recovery).

    `memory_mb`: what tensors that are kept may take, in MiB.
    """

    compared: int = 0
    fitted: int = 0
    memory_mb: int = 0


NOTHING_HELD = HeldSamples()
"""Neither outputs nor recovery."""

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True)
class MemoryEstimate:
    """Hold the peak memory of a run in MiB, and its largest parts.

    They are weights, tensors of the samples of one run, what recovery holds, and outputs of all samples.
    """

    weights_mb: float
    tensors_mb: float
    recovery_mb: float = 0.0
    outputs_mb: float = 0.0

    @property
    def peak_mb(self) -> float:
        """Return the peak of the process, MiB. Tensors of a run and recovery do not come together."""
        return BASE_MB + self.weights_mb + max(self.tensors_mb, self.recovery_mb) + self.outputs_mb

    def warning(self, available_mb: float | None, held_mb: float, batch: int) -> str | None:
        """Return a warning if less memory is available, with what to lower; `held_mb` is in use already.

        `batch`: the samples of one run.
        """
        lacking = self.peak_mb - held_mb
        if available_mb is None or lacking <= available_mb:
            return None
        return (
            f"the run needs about {self.peak_mb:,.0f} MB of memory, {lacking:,.0f} MB more than now, and this machine "
            f"has {available_mb:,.0f} MB available: the system may end the run. {self._remedy(batch)}"
        )

    def _remedy(self, batch: int) -> str:
        if self.recovery_mb > max(self.weights_mb, self.tensors_mb, self.outputs_mb):
            return (
                f"{self.recovery_mb:,.0f} MB are for recovery, if it runs: lower calibrate.memory_mb, or give "
                "recover=none"
            )
        if self.outputs_mb > max(self.weights_mb, self.tensors_mb):
            return f"{self.outputs_mb:,.0f} MB are for outputs of all samples: give fewer to evaluate"
        if self.weights_mb >= self.tensors_mb:
            return (
                f"{self.weights_mb:,.0f} MB are for weights: store the model with external data and lower "
                "model.resident_mb below their size, so that weights stay in files; executor=serial opens no sessions "
                "of further processes"
            )
        return (
            f"{self.tensors_mb:,.0f} MB are for tensors of {batch} samples at once: lower calibrate.memory_mb, or give "
            "samples of smaller shapes"
        )


def memory_estimate(graph: Graph, held: HeldSamples = NOTHING_HELD) -> MemoryEstimate:
    """Return the memory that a run of the default line takes for a model."""
    weights = [] if is_outside(graph.model) else [graph.constant_tensor(name).nbytes for name in graph.constant_names()]
    made = [t for node in graph.nodes for t in node.outputs if t in graph.shapes]
    size, fixed = run_size(graph, made), graph.fixed_batch or 1
    compared = size / fixed * sum(fetched_bytes(graph, t) for t in made)
    running = concurrency(2)[0] * graph.batch_size / fixed * _alive(graph)
    tensors = max(COMPARED * max(compared, 0.0), running)
    recovery = 0.0
    if held.fitted:
        between = BETWEEN * held.fitted / fixed * _alive(graph)
        recovery = min(between, held.memory_mb * 2**20 / 4) + 2 * running + _largest_layer(graph)
    scores = sum(prod(graph.shapes.get(o.name, ())) for o in graph.outputs) / fixed * held.compared * SCORES
    times = WEIGHTS if sum(weights) < 4 * MANY else MANY_WEIGHTS
    return MemoryEstimate(times * sum(weights) / 2**20, *(v / 2**20 for v in (tensors, recovery, scores)))


def _largest_layer(graph: Graph) -> float:
    """Return the bytes that the moments and the solution of a layer take at most, float64."""
    most = 0.0
    for node in graph.nodes:
        rule = rule_of(node)
        weight = next((t for t in node.inputs[1:2] if t and graph.is_constant(t)), None)
        if rule is None or rule.matrix is None or weight is None:
            continue
        groups, outs, width = matrix_shape(rule.matrix, node, graph.shapes[weight])
        wanted = outs if 2 * outs < width else max(outs, width)
        most = max(most, 8.0 * groups * width * (SOLVED * width + wanted))
    return most


def _alive(graph: Graph) -> int:
    """Return the bytes of the tensors of one sample that are alive together at most, in the order of the nodes."""
    last = {t: place for place, node in enumerate(graph.nodes) for t in (*node.inputs, *node.captured)}
    sizes = {t: prod(s) * np.dtype(graph.dtypes[t]).itemsize for t, s in graph.shapes.items() if t in graph.dtypes}
    alive, most = sum(sizes.get(name, 0) for name in graph.input_names), 0
    ends: dict[int, list[str]] = {}
    for tensor, place in last.items():
        if tensor in graph.producers or tensor in graph.input_names:
            ends.setdefault(place, []).append(tensor)
    for place, node in enumerate(graph.nodes):
        alive += sum(sizes.get(t, 0) for t in node.outputs)
        most = max(most, alive)
        alive -= sum(sizes.get(t, 0) for t in ends.get(place, ()))
    return most


def warn_of_little_memory(graph: Graph, held: HeldSamples, console: Console) -> None:
    """Warn if a run needs more memory than this machine has available; the log has the estimate in any case."""
    estimate, available = memory_estimate(graph, held), available_mb()
    known = "unknown" if available is None else f"{available:.0f} MB"
    _log.info("memory     about %.0f MB by weights and shapes of the model; available: %s", estimate.peak_mb, known)
    warning = estimate.warning(available, held_mb() or 0.0, graph.batch_size)
    if warning is not None:
        console.warn(warning)


def available_mb() -> float | None:
    """Return the memory in MiB that this process may still take, by the system and its control group; None: unknown."""
    found = []
    with suppress(OSError, ValueError, StopIteration):
        lines = MEMINFO.read_text(encoding="ascii").splitlines()
        found.append(next(int(line.split()[1]) / 1024 for line in lines if line.startswith("MemAvailable:")))
    for most, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # no such group, or "max"
            limit, taken = (int((CGROUP / name).read_text(encoding="ascii")) for name in (most, used))
            found.append((limit - taken) / 2**20)
    return min(found) if found else None
