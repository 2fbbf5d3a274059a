"""Input scales of each run (`annotate.dynamic`) compared with static scales and onnxruntime's own two forms.

    python benchmarks/run_scales.py MODEL.onnx … > benchmarks/results/run_scales.md

Next to each model lies MODEL.npz with its samples. Each run is by the defaults, on ort_cpu.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from machine import processor

import quantpipe

SAMPLES = {"calibrate": 128, "search": 128, "evaluate": 128}
FORMS: dict[str, dict[str, Any]] = {
    "static": {},
    "dynamic": {"dynamic": ["*"]},
    "dynamic, all else in float": {"dynamic": ["*"]},
}


def main() -> None:
    """Print the table of all models named on the command line."""
    print("# Scales of each run\n")
    print(f"{processor()}. By `python benchmarks/run_scales.py MODEL.onnx …`, quantpipe's defaults on `ort_cpu`.")
    print("SQNR in dB, at the output that the comparison names. Time at batch 1 over the float model's.")
    print("0 elements differ in every row. Committed: two policies of legged robots (Go1, G1), the two networks of a")
    print("noise canceller (DTLN).\n")
    print("| model | form | SQNR | time | onnxruntime static, SQNR (time) | onnxruntime dynamic, SQNR (time) |")
    print("|---|---|---|---|---|---|")
    for name in sys.argv[1:]:
        _rows(Path(name))


def _rows(path: Path) -> None:
    samples = dict(np.load(path.with_suffix(".npz")))
    dense: list[str] = []
    for form, options in FORMS.items():
        annotate = dict(options)
        if form == "dynamic, all else in float":
            annotate["only_ops"] = dense
        result = quantpipe.quantize(path, samples, "ort_cpu", annotate=annotate, dataset={"samples": SAMPLES})
        report = result.report
        plan = json.loads((result.folder / "realize" / "plan.json").read_text())
        dense = sorted({kernel["op"] for kernel in plan.get("weighted", {}).values()})
        assert report["agreement"]["differing"] == 0, f"{path}: {form}"
        latency = report["latency"]
        ratio = latency["ratio"]
        rows = {row["form"]: row for row in (report.get("baseline") or {"rows": []})["rows"]}
        own = next((row["own_db"] for row in rows.values() if row["own_db"] is not None), None)
        first = own if own is not None else report["outputs"][0]["sqnr_db"]
        others = " | ".join(_other(rows.get(kind), ratio) for kind in ("static", "dynamic"))
        print(f"| {path.stem} | {form} | {first:.1f} | {ratio:.2f} | {others} |", flush=True)


def _other(row: Any, ratio: float) -> str:
    if row is None or row["sqnr_db"] is None:
        return "–"
    return f"{row['sqnr_db']:.1f} ({row['latency'] * ratio:.2f})"


if __name__ == "__main__":
    main()
