"""What calibrators of layers cost and gain: threshold=output_error beside threshold=mse on EfficientNet-Lite0.

    python benchmarks/layers.py > benchmarks/results/layers.md

Seconds of the walk over those of one pass of the float model over the same samples, batch by batch as in calibration;
peak memory of the process before and after; SQNR of the integer model's outputs on images that were not seen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort
from recovery import ZOO, dataset, option, peak_mb

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.calibrate.decided import DecidedEstimator
from quantpipe.calibrate.estimators import MSE, OutputError
from quantpipe.calibrate.measure import measure
from quantpipe.calibrate.table import ThresholdTable
from quantpipe.extend import Layer, LayerDecision
from quantpipe.graph.execute import Session
from quantpipe.graph.load import load_graph
from quantpipe.hardware.load import load_hardware
from quantpipe.hardware.schemas import resolve_schema
from quantpipe.pipeline.stages import annotate, float_pass, realize
from quantpipe.plan import Problem
from quantpipe.recover.layer_units import Choosing
from quantpipe.recover.layer_views import calibrate_layers

NET = "imagenet_efficientnet_lite0"
MEMORY_MB = 512
IMAGES = 128
Decide = Callable[[Layer], LayerDecision | None]


def nothing(layer: Layer) -> LayerDecision | None:
    """Decide nothing: what the walk itself costs."""
    return None


def main() -> None:
    """Print the table."""
    made: list[Any] = []

    def example(raw: Any) -> Any:
        made.append(dataset(NET).splits(raw.inputs, None, 0))
        return next(iter(made[0].calibrate.batches(4))).inputs

    graph = load_graph(ZOO / "models" / f"{NET}.onnx", example)
    splits = made[0]
    one = float_pass(graph, splits.calibrate)
    print("# Calibrators of layers\n")
    print(f"`python benchmarks/layers.py`, onnxruntime {ort.__version__}, {os.cpu_count()} CPUs. EfficientNet-Lite0 on")
    counts = f"{len(splits.calibrate)} calibration images, calibrate.memory_mb={MEMORY_MB}"
    print(f"ort_cpu, {counts}; SQNR on {IMAGES} others.")
    print(f"A pass of the float model: {one:.1f} s.\n")
    print("| bits of activations | decided by | ranges, weights | SQNR | walk | passes | peak memory |")
    print("|---|---|---|---|---|---|---|")
    for bits in (8, 5):
        data = option("hardware/ort_cpu")
        data["activations"]["bits"] = bits
        spec = load_hardware(data)
        schema = resolve_schema(spec, option("schema/asymmetric"), {})
        topology, space = annotate(graph, spec, schema, AnnotateOptions(min_bits=2))
        profile = measure(graph, topology.measured, splits.calibrate, MEMORY_MB)
        ways: dict[str, Decide | None] = {"mse": None, "nothing": nothing, "output_error": OutputError().layer}
        for name, decide in ways.items():
            table = ThresholdTable(
                graph, topology, schema, profile, estimator=DecidedEstimator(MSE()), weight_method="mse"
            )
            problem, start = Problem(graph, topology, spec, schema), space.decode(space.start)
            before, began, decided = peak_mb(), time.perf_counter(), "–"
            if decide is not None:
                found = calibrate_layers(
                    problem,
                    table,
                    table.strategy(start),
                    splits.calibrate,
                    choosing=Choosing(decide),
                    memory_mb=MEMORY_MB,
                )
                decided = f"{len(found.ranges)}, {len(found.weights)}"
            seconds = time.perf_counter() - began
            written = realize(graph, topology, problem.planner.plan(table.strategy(start)), "qdq")
            cost = "– | – | –" if decide is None else f"{seconds:.1f} s | {seconds / one:.1f} | {_peak(before)}"
            print(
                f"| {bits} | {name} | {decided} | {_sqnr(graph, written.model, splits.evaluate)} | {cost} |", flush=True
            )


def _peak(before: float) -> str:
    return f"{before:.0f} → {peak_mb():.0f} MiB"


def _sqnr(graph: Any, model: Any, samples: Any) -> str:
    """In dB, over the first images."""
    sessions, signal, noise, seen = (Session(graph.model), Session(model)), 0.0, 0.0, 0
    for batch in samples.batches(graph.batch_size):
        wanted, found = (next(iter(s.run(batch.inputs).values())).astype(np.float64) for s in sessions)
        signal, noise = signal + np.square(wanted).sum(), noise + np.square(found - wanted).sum()
        seen += len(batch)
        if seen >= IMAGES:
            break
    return f"{10 * np.log10(signal / noise):.1f} dB"


if __name__ == "__main__":
    main()
