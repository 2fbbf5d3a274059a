"""Threshold quality per estimator and bit width: the sweeps of experiments/estimators_*.yaml, and their table.

Each model is calibrated once; every run of its sweep loads that profile. Error of a tensor: quantizing it alone
(rounding and saturation, on evaluation samples), as SQNR in dB. Also timed: the thresholds of every estimator, for all
tensors and 2 to 8 bits, from the stored statistics.

    python benchmarks/estimators.py digits > benchmarks/results/estimators_digits.md     (resnet20, efficientnet_lite0)
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import onnxruntime as ort

from quantpipe.artifacts import read_npz
from quantpipe.calibrate import profile_from_arrays
from quantpipe.calibrate.estimators import (
    KL,
    MSE,
    Estimator,
    MaxRange,
    MeanRange,
    MovingAverage,
    Percentile,
    Power2Range,
)
from quantpipe.types import Symmetry, TensorSchema

ROOT = Path(__file__).resolve().parents[1]
ZOO = Path(os.environ.get("QUANTPIPE_ZOO", ROOT.parent / "shared" / "zoo"))
MODELS = ("digits", "resnet20", "efficientnet_lite0")
ESTIMATORS: dict[str, Estimator] = {
    "max_range": MaxRange(),
    "power2_range": Power2Range(),
    "mean_range": MeanRange(),
    "moving_average": MovingAverage(),
    "percentile": Percentile(),
    "mse": MSE(),
    "kl": KL(),
}
BITS = range(2, 9)


def start(*arguments: str) -> None:
    """One start of the program; its own messages go to standard error."""
    command = [sys.executable, str(ROOT / "run.py"), *arguments]
    subprocess.run(command, check=True, env=os.environ | {"QUANTPIPE_ZOO": str(ZOO)}, stdout=sys.stderr)


def reports(sweep: Path) -> Iterator[dict[str, Any]]:
    """The reports of a sweep's jobs, with the bits of their activations."""
    for path in sorted(sweep.glob("*/evaluate/report.json")):
        report: dict[str, Any] = json.loads(path.read_text())
        widths = {c["value"] for c in report["choices"] if c["kind"] == "activation"}
        yield report | {"bits": max(widths)}


def sqnr(layer: dict[str, Any]) -> float:
    """Of quantizing one tensor alone, dB; without any error it counts as 120."""
    error = layer["rounding"] + layer["saturation"]
    return -10 * math.log10(error) if error > 1e-12 else 120.0


def line(model: str, report: dict[str, Any]) -> str:
    layers = [sqnr(layer) for layer in report["layers"]]
    realized = report["metrics"]["realized"]
    return (
        f"| {model} | {report['bits']} | {report['run']['threshold']} | {median(layers):.1f} | {min(layers):.1f} "
        f"| {realized['top1']:.4f} | {realized['kl']:.4f} | {report['agreement']['differing']} |"
    )


def seconds(stats: Path, symmetry: Symmetry) -> dict[str, float]:
    """All thresholds of 2 to 8 bits from a stored profile, by estimator."""
    tensors = profile_from_arrays(read_npz(stats)).tensors.values()
    schema, found = TensorSchema(symmetry=symmetry), {}
    for name, estimator in ESTIMATORS.items():
        begin = time.perf_counter()
        for tensor in tensors:
            for bits in BITS:
                estimator(tensor, bits, schema)
        found[name] = time.perf_counter() - begin
    return found


def main() -> None:
    lines, timed = [], []
    with tempfile.TemporaryDirectory() as folder:
        for model in sys.argv[1:] or MODELS:
            experiment, place = f"experiments=estimators_{model}", Path(folder) / model
            start(experiment, "stages=[annotate,calibrate]", f"hydra.run.dir={place}")
            profile = place / "calibrate" / "profile.yaml"
            sweep = Path(folder) / f"{model}_sweep"
            start("-m", experiment, f"profile.load={profile}", f"hydra.sweep.dir={sweep}")
            found = list(reports(sweep))
            order = list(ESTIMATORS)
            found.sort(key=lambda r: (r["bits"], order.index(r["run"]["threshold"])))
            first = found[0]
            head = f"{first['metrics']['float']['top1']:.4f} of {first['run']['samples']}"
            lines += [f"| {model} | float | | | | {head} | | |", *(line(model, r) for r in found)]
            for symmetry in (Symmetry.ASYMMETRIC, Symmetry.SYMMETRIC):
                spent = seconds(place / "calibrate" / "stats.npz", symmetry)
                each = " | ".join(f"{spent[name]:.2f}" for name in ESTIMATORS)
                timed.append(f"| {model} | {symmetry.value} | {each} | {sum(spent.values()):.2f} |")
    print("# Threshold estimators\n")
    print(
        f"onnxruntime {ort.__version__}, Python {platform.python_version()}, {os.cpu_count()} CPUs, hardware ort_cpu,"
    )
    print("asymmetric activations of the given bits, weights of 8 bits. Settings: experiments/estimators_*.yaml.\n")
    print(
        "SQNR: of each tensor quantized alone, in dB, median and worst over the tensors. Top-1 and KL: of the realized"
    )
    print("model on the evaluation samples. Differing: elements in which simulated and realized integers differ.\n")
    print("| model | bits | threshold | median SQNR | worst SQNR | top-1 | KL | differing |")
    print("|---|---|---|---|---|---|---|---|")
    print("\n".join(lines))
    print("\nSeconds for the thresholds of all tensors and 2 to 8 bits, from stored statistics:\n")
    print(f"| model | schema | {' | '.join(ESTIMATORS)} | all |")
    print("|---|---" + "|---" * len(ESTIMATORS) + "|---|")
    print("\n".join(timed))


if __name__ == "__main__":
    main()
