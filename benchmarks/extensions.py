"""What an installed plug-in package costs a model that has none of its ops.

    python benchmarks/extensions.py > benchmarks/results/extensions.md

The embedded digits model is loaded, annotated and calibrated, by turns with nothing installed, with an extension of 50
ops, with calibrators of ops that the model has none of, and with one of its convolutions that decides nothing; the
process's own time, and each turn's ratio to the time without anything in the same turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import quantpipe
from quantpipe import extend
from quantpipe.annotate.choices import choice_space
from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.topology import analyze
from quantpipe.app import compose
from quantpipe.calibrate.decided import DecidedEstimator, with_decisions
from quantpipe.calibrate.estimators import MSE
from quantpipe.calibrate.measure import measure
from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.extend import DeviceOp, Extension, Layer, function
from quantpipe.hardware.load import load_hardware
from quantpipe.hardware.schemas import resolve_schema
from quantpipe.intake.load import load_graph
from quantpipe.plan import Problem
from quantpipe.recover.layer_units import Choosing
from quantpipe.recover.layer_views import calibrate_layers
from quantpipe.testing import installed
from quantpipe.types import Batch, HardwareSpec, Schema

TURNS = 41
OPS = 50
TEXT = '<domain: "idle", opset_import: ["" : 17]> {} (x) => (y) {{ y = Identity (x) }}'


def idle(number: int) -> DeviceOp:
    forms = [function(TEXT.format(f"{kind}{number}")) for kind in ("Op", "OpInteger")]
    return DeviceOp(forms[0], lambda site: {}, forms[1], lambda stored, numbers, attributes: stored["x"], pattern=True)


def nothing(layer: Layer) -> None:
    """Decide nothing."""


class Digits:
    """128 samples in memory."""

    labels, digest, labelled = None, "digits", False

    def __init__(self, name: str) -> None:
        self.name = name
        self.images = (load_digits().images[:128, None] / 16).astype(np.float32)

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, size: int) -> Any:
        """Yield the batches."""
        for first in range(0, len(self), size):
            part = self.images[first : first + size]
            yield Batch({self.name: part}, None, np.arange(first, first + len(part)))


def once(path: Path, spec: HardwareSpec, schema: Schema) -> float:
    """Return the processor time of the stages up to calibrated ranges."""
    begin = time.process_time()

    def example(raw: Any) -> Mapping[str, np.ndarray[Any, Any]]:
        return {i.name: np.zeros((4, *[d or 1 for d in i.shape[1:]]), np.float32) for i in raw.inputs}

    graph = load_graph(path, example, isolate=False, declared=spec.ops)
    topology = analyze(graph, spec, schema, AnnotateOptions())
    samples = Digits(graph.inputs[0].name)
    profile = measure(graph, topology.measured, samples, 512)
    estimator = with_decisions(MSE(), MSE())
    table = ThresholdTable(graph, topology, schema, profile, estimator=estimator, weight_method="mse")
    space = choice_space(topology, AnnotateOptions())
    strategy = table.strategy(space.decode(space.start))
    if isinstance(estimator, DecidedEstimator) and any(extend.calibrator_of(k.op) for k in topology.kernels):
        problem = Problem(graph, topology, spec, schema)
        calibrate_layers(problem, table, strategy, samples, choosing=Choosing(None), memory_mb=512)
    return time.process_time() - begin


def main() -> None:
    """Print the table."""
    path = quantpipe.example_model()
    spec = load_hardware(compose.option("hardware", "ort_cpu"))
    schema = resolve_schema(spec, {"name": "auto"}, compose.schemas())
    ops = tuple(idle(n) for n in range(OPS))
    others = {f"idle.Op{n}": nothing for n in range(5)}
    ways = {
        f"{OPS} ops": Extension(ops),
        f"{OPS} ops, calibrators of them": Extension(ops, calibrators=others),
        f"{OPS} ops, a calibrator of convolutions that decides nothing": Extension(ops, calibrators={"Conv": nothing}),
    }
    times: dict[str, list[float]] = {"nothing": [], **{name: [] for name in ways}}
    for _ in range(3):
        once(path, spec, schema)
    for turn in range(TURNS):
        order = list(times) if turn % 2 else list(times)[::-1]  # what runs first in a turn is not always the same
        for name in order:
            if name == "nothing":
                times[name].append(once(path, spec, schema))
                continue
            with installed(ways[name], "idle"):
                times[name].append(once(path, spec, schema))
    begin = time.perf_counter()
    for _ in range(1000):
        extend.install(())
    each = (time.perf_counter() - begin) / 1000
    print("# Cost of an installed plug-in package\n")
    print(
        "`python benchmarks/extensions.py`: processor time to load, annotate and calibrate the digits model on ort_cpu,"
    )
    print(f"{TURNS} turns. The ratio is that to the time without anything in the same turn: median, and between which")
    print("values the middle half of the turns lies.\n")
    print("| installed | median | least | ratio, paired |\n|---|---|---|---|")
    for name, found in times.items():
        ratios = [a / b for a, b in zip(found, times["nothing"], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        paired = "" if name == "nothing" else f"{statistics.median(ratios):.3f} ({low:.3f} – {high:.3f})"
        print(f"| {name} | {1000 * statistics.median(found):.1f} ms | {1000 * min(found):.1f} ms | {paired} |")
    print(f"\nA run without `plugins` asks once, which takes {1e6 * each:.2f} µs.")


if __name__ == "__main__":
    main()
