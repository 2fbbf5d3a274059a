"""What an installed plug-in package costs a model that has none of its ops.

    python benchmarks/extensions.py > benchmarks/results/extensions.md

The embedded digits model is loaded, planned, simulated and written, by turns with nothing installed and with an
extension of 50 ops; medians of the process's own time.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

import quantpipe
from quantpipe import extend
from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.topology import analyze
from quantpipe.app import compose
from quantpipe.extend import DeviceOp, Extension, function
from quantpipe.graph.load import load_graph
from quantpipe.hardware.load import load_hardware
from quantpipe.hardware.schemas import resolve_schema
from quantpipe.testing import installed

TURNS = 15
OPS = 50
TEXT = '<domain: "idle", opset_import: ["" : 17]> {} (x) => (y) {{ y = Identity (x) }}'


def idle(number: int) -> DeviceOp:
    forms = [function(TEXT.format(f"{kind}{number}")) for kind in ("Op", "OpInteger")]
    return DeviceOp(forms[0], lambda site: {}, forms[1], lambda stored, numbers, attributes: stored["x"], pattern=True)


def once(path, spec, schema) -> float:  # type: ignore[no-untyped-def]
    begin = time.process_time()
    graph = load_graph(
        path,
        lambda raw: {i.name: np.zeros((4, *[d or 1 for d in i.shape[1:]]), np.float32) for i in raw.inputs},
        isolate=False,
        declared=spec.ops,
    )
    analyze(graph, spec, schema, AnnotateOptions())
    return time.process_time() - begin


def main() -> None:
    path = quantpipe.example_model()
    spec = load_hardware(compose.option("hardware", "ort_cpu"))
    schema = resolve_schema(spec, {"name": "auto"}, compose.schemas())
    extension = Extension(tuple(idle(n) for n in range(OPS)))
    times: dict[str, list[float]] = {"nothing installed": [], f"{OPS} ops installed": []}
    once(path, spec, schema)
    for _ in range(TURNS):
        times["nothing installed"].append(once(path, spec, schema))
        with installed(extension, "idle"):
            times[f"{OPS} ops installed"].append(once(path, spec, schema))
    begin = time.perf_counter()
    for _ in range(1000):
        extend.install(())
    each = (time.perf_counter() - begin) / 1000
    print("# Cost of an installed plug-in package\n")
    print(f"Processor time to load and annotate the digits model on ort_cpu, {TURNS} turns each.\n")
    print("| | median | least |\n|---|---|---|")
    for name, found in times.items():
        print(f"| {name} | {1000 * statistics.median(found):.1f} ms | {1000 * min(found):.1f} ms |")
    print(f"\nA run without `plugins` asks once, which takes {1e6 * each:.2f} µs.")


if __name__ == "__main__":
    main()
