"""What calibrators of layers cost and gain, on EfficientNet-Lite0.

    python benchmarks/layers.py > benchmarks/results/layers.md

Three calibrators: one that decides without looking, one that looks at all views once and decides nothing, and
threshold=output_error. Seconds of the walk over those of one pass of the float model, by turns with it; and the SQNR of
the integer model's outputs on images that were not seen, beside threshold=mse. Then, each in a process of its own, how
far the walk raises the peak of memory, by `calibrate.memory_mb`.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from recovery import ZOO, dataset, option

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.calibrate.decided import DecidedEstimator
from quantpipe.calibrate.estimators import MSE, OutputError
from quantpipe.calibrate.measure import measure
from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.extend import Layer, LayerDecision
from quantpipe.graph.execute import Session, release_memory
from quantpipe.hardware.load import load_hardware
from quantpipe.hardware.schemas import resolve_schema
from quantpipe.intake.load import load_graph
from quantpipe.pipeline.stages import annotate, realize
from quantpipe.plan import Problem
from quantpipe.recover.layer_units import Choosing, walked
from quantpipe.recover.layer_views import calibrate_layers
from quantpipe.types import Batch

NET = "imagenet_efficientnet_lite0"
MEMORY_MB = 512
UNLIMITED = 1 << 14
LIMITS = (UNLIMITED, 1024, 512, 256)
IMAGES = 128
TURNS = 7
Decide = Callable[[Layer], LayerDecision | None]


def nothing(layer: Layer) -> LayerDecision | None:
    """Decide nothing, and look at nothing."""
    return None


def looking(layer: Layer) -> LayerDecision | None:
    """Look at every view once, and decide nothing."""
    for views in layer.batches():
        if len(views.float_outputs) != len(views.quantized_outputs):
            raise ValueError(layer.node)
    return None


CALIBRATORS: dict[str, Decide] = {
    "decides nothing": nothing,
    "looks at all views once": looking,
    "output_error": OutputError().layer,
}


class Problems:
    """The network on ort_cpu, with its samples and statistics."""

    def __init__(self, bits: int) -> None:
        made: list[Any] = []

        def example(raw: Any) -> Any:
            made.append(dataset(NET).splits(raw.inputs, None, 0))
            return next(iter(made[0].calibrate.batches(4))).inputs

        self.graph = load_graph(ZOO / "models" / f"{NET}.onnx", example)
        self.splits = made[0]
        data = option("hardware/ort_cpu")
        data["activations"]["bits"] = bits
        spec = load_hardware(data)
        self.schema = resolve_schema(spec, option("schema/asymmetric"), {})
        self.topology, space = annotate(self.graph, spec, self.schema, AnnotateOptions(min_bits=2))
        self.start = space.decode(space.start)
        self.profile = measure(self.graph, self.topology.measured, self.splits.calibrate, MEMORY_MB)
        self.problem = Problem(self.graph, self.topology, spec, self.schema)

    def table(self) -> ThresholdTable:
        """Return ranges by mse, open for decisions."""
        estimator = DecidedEstimator(MSE())
        return ThresholdTable(
            self.graph, self.topology, self.schema, self.profile, estimator=estimator, weight_method="mse"
        )

    def walk(self, table: ThresholdTable, decide: Decide, memory_mb: int = MEMORY_MB) -> str:
        """Let a calibrator decide; return how many ranges and weights it decided."""
        found = calibrate_layers(
            self.problem,
            table,
            table.strategy(self.start),
            self.splits.calibrate,
            choosing=Choosing(decide),
            memory_mb=memory_mb,
        )
        return f"{len(found.ranges)}, {len(found.weights)}"

    def sqnr(self, table: ThresholdTable) -> str:
        """Return that of the integer model, in dB, over the first images of the evaluation split."""
        plan = self.problem.planner.plan(table.strategy(self.start))
        model = realize(self.graph, self.topology, plan, "qdq").model
        sessions, signal, noise, seen = (Session(self.graph.model), Session(model)), 0.0, 0.0, 0
        for batch in self.splits.evaluate.batches(self.graph.batch_size):
            wanted, found = (next(iter(s.run(batch.inputs).values())).astype(np.float64) for s in sessions)
            signal, noise = signal + np.square(wanted).sum(), noise + np.square(found - wanted).sum()
            seen += len(batch)
            if seen >= IMAGES:
                break
        return f"{10 * np.log10(signal / noise):.1f} dB"


def seconds(run: Callable[[], object]) -> float:
    """Return how long something takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def middle(values: list[float]) -> str:
    """Return the median, and the least and the greatest."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} – {max(values):.2f})"


def cost(turns: int) -> None:
    """Print seconds and passes, by turns with a float pass."""
    made = Problems(8)
    session, samples = Session(made.graph.model), made.splits.calibrate
    some = sum(len(b) for b in walked(made.graph, made.splits.calibrate))

    def one(batches: Iterator[Batch]) -> None:
        for batch in batches:
            session.run(batch.inputs)

    one(samples.batches(made.graph.batch_size))
    passes: dict[str, list[float]] = {name: [] for name in ("float", *CALIBRATORS)}
    ratios: dict[str, list[float]] = {name: [] for name in CALIBRATORS}
    own: dict[str, list[float]] = {name: [] for name in CALIBRATORS}
    for _ in range(turns):
        for name, decide in CALIBRATORS.items():
            whole = seconds(lambda: one(samples.batches(made.graph.batch_size)))
            part = seconds(lambda: one(walked(made.graph, made.splits.calibrate)))
            table = made.table()
            table.strategy(made.start)  # which every run estimates
            took = seconds(lambda table=table, decide=decide: made.walk(table, decide))
            passes["float"].append(whole)
            passes[name].append(took)
            ratios[name].append(took / whole)
            own[name].append(took / part)
    print(f"## What the walk takes\n\n{turns} turns, memory_mb={MEMORY_MB}: median, and the least and the greatest in")
    print(f"brackets. A pass over the {len(samples)} calibration samples: {middle(passes['float'])} s, reading them")
    print(f"included. The walk runs on {some} of them.\n")
    print(f"| calibrator | seconds | passes over all {len(samples)} | over the {some} that it may run on |")
    print("|---|---|---|---|")
    for name in CALIBRATORS:
        print(f"| {name} | {middle(passes[name])} | {middle(ratios[name])} | {middle(own[name])} |", flush=True)


def gain() -> None:
    """Print the outputs' error with and without."""
    print("\n## What output_error gains\n\nSQNR of the integer model's outputs on", IMAGES, "images not seen.\n")
    print("| bits of activations | mse | output_error | ranges, weights decided |")
    print("|---|---|---|---|")
    for bits in (8, 6, 5, 4):
        made = Problems(bits)
        table = made.table()
        before = made.sqnr(table)
        decided = made.walk(table, CALIBRATORS["output_error"])
        print(f"| {bits} | {before} | {made.sqnr(table)} | {decided} |", flush=True)


def resident_mb() -> float:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / (1 << 20)


def memory(limit: int) -> None:
    """Print by how much a walk raises resident memory, in MiB. Runs in a process of its own."""
    made = Problems(8)
    table, session = made.table(), Session(made.graph.model)
    table.strategy(made.start)
    for batch in walked(made.graph, made.splits.calibrate):  # what a float pass of such batches takes is no part of it
        session.run(batch.inputs)
    release_memory()
    before, ended, most = resident_mb(), threading.Event(), 0.0

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.002):
            most = max(most, resident_mb())

    watching = threading.Thread(target=watch)
    watching.start()
    made.walk(table, CALIBRATORS["output_error"], limit)
    ended.set()
    watching.join()
    print(f"{most - before:.0f}")


def main() -> None:
    """Print all parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--peak", type=int, help="print the growth of memory with this memory_mb alone")
    given = parser.parse_args()
    if given.peak is not None:
        memory(given.peak)
        return
    print("# Calibrators of layers\n")
    print(f"`python benchmarks/layers.py`, onnxruntime {ort.__version__}, {os.cpu_count()} CPUs. EfficientNet-Lite0 on")
    print("ort_cpu; 8 bits where nothing else is said.\n")
    cost(given.turns)
    gain()
    print("\n## What the walk keeps in memory\n\nGrowth of resident memory, at its peak, in a walk of output_error.")
    print(f"{UNLIMITED} MiB are more than all tensors take: no bound.\n")
    print("| calibrate.memory_mb | resident memory grows by |")
    print("|---|---|")
    for limit in LIMITS:
        command = [sys.executable, __file__, "--peak", str(limit)]
        print(f"| {limit} | {subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()} MiB |")


if __name__ == "__main__":
    main()
