"""Training algorithms in the setting of papers and in settings that devices run, at 4 bits, and ways to fold norms.

Every cell is a run of the package: search, recovery, training, and the realized model's accuracy on samples that
nothing was fitted to. First and last layers have 8 bits. `recovery` is `recover=default` without training; training
starts from it. Folds other than 0 start from rounding to the nearest, without recovery. The mean and the standard
deviation are over the seeds, which change the samples of recovery and the order in training; the column `devices`
is over the five devices.

    python benchmarks/deployable.py CACHE.jsonl [--models digits resnet20] [--algorithms lsq …] [--seeds 0 1 2]
        > benchmarks/results/deployable.md

Cells that CACHE.jsonl holds are not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import quantpipe
from quantpipe.data import DigitsDataset
from quantpipe.data.sources.npz import NpzDataset

sys.path.insert(0, str(Path(__file__).parent))

from machine import processor
from recovery import CIFAR, ZOO

SETTINGS = ("academic", "tensorrt", "ascend_acl", "tvm_arm", "snpe", "fbgemm")
ALGORITHMS = ("recovery", "lsq", "dsq", "pact", "dorefa", "qil", "ste")
FOLDS = ((-1, 1), (0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (4, 4))
"""(strategy, parts of a batch with statistics of their own)."""
FOLDED = ("lsq", "pact")
EPOCHS = {"digits": 6, "resnet20": 6}
RATES = {"digits": 1e-3, "resnet20": 1e-4}
QUIET = {"explain": "none", "baseline": "none", "latency_runs": 1, "latency_seconds": 0.1, "agreement_samples": 16,
         "layer_samples": 4}  # fmt: skip


def device(name: str) -> dict[str, Any]:
    """A setting with 4 bits, and 8 in the first and the last layer."""
    return {
        "name": f"{name}_4_bits",
        "like": name,
        "description": "4 bits, first and last layer 8",
        "source": "MQBench",
        "weights": {"bits": 4},
        "activations": {"bits": 4},
        "first_last_bits": 8,
    }


def inputs(model: str) -> tuple[Any, Any]:
    """A model and its samples."""
    if model == "digits":
        return quantpipe.example_model(), DigitsDataset(samples={"train": 1000})
    data = ZOO / "data"
    samples = NpzDataset(
        calibrate={"path": str(data / "cifar10_calib.npz")},
        evaluate={"path": str(data / "cifar10_val.npz")},
        samples={"train": 384},
        preprocess=CIFAR,
    )
    return str(ZOO / "models" / "cifar10_resnet20_bn.onnx"), samples


def run(cell: Mapping[str, Any]) -> dict[str, Any]:
    """One cell: accuracy and KL of the realized model, and seconds."""
    model, samples = inputs(cell["model"])
    started = time.perf_counter()
    fold = int(cell["fold"])
    train: Any = "none"
    if cell["algorithm"] != "recovery":
        train = {
            "option": cell["algorithm"],
            "epochs": EPOCHS[cell["model"]],
            "learning_rate": RATES[cell["model"]],
            "fold": fold,
            "asynchronous": cell["parts"],
        }
    found = quantpipe.quantize(
        model,
        samples,
        device(cell["device"]),
        seed=cell["seed"],
        precision="none",
        train=train,
        recover="none" if fold else "default",
        evaluate=QUIET,
    )
    step = next((s for s in found.report["recover"] if s["step"] == "train"), None)
    metrics = found.report["metrics"]
    return {
        **cell,
        "top1": metrics["realized"]["top1"],
        "float": metrics["float"]["top1"],
        "differing": found.report["agreement"]["differing"],
        "kept": None if step is None else step["kept"],
        "reason": None if step is None else step.get("reason"),
        "seconds": round(time.perf_counter() - started, 1),
    }


def cells(models: Sequence[str], algorithms: Sequence[str], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """All cells, those of the first table first."""
    found = [
        {"model": m, "device": d, "algorithm": a, "fold": 0, "parts": 1, "seed": s}
        for m in models
        for s in seeds
        for a in algorithms
        for d in SETTINGS
    ]
    found += [
        {"model": m, "device": "tensorrt", "algorithm": a, "fold": f, "parts": p, "seed": s}
        for m in models
        for s in seeds
        for a in FOLDED
        if a in algorithms
        for f, p in FOLDS
        if f != 0
    ]
    return found


def key(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(cell[name] for name in ("model", "device", "algorithm", "fold", "parts", "seed"))


def text(values: Sequence[float]) -> str:
    """Mean in percent, and the standard deviation of several."""
    if not values:
        return "–"
    mean = f"{100 * float(np.mean(values)):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {100 * float(np.std(values, ddof=1)):.1f}"


def report(found: Sequence[Mapping[str, Any]]) -> str:
    """The tables as Markdown."""
    lines = [
        "# Training in deployable settings", "",
        "`python benchmarks/deployable.py CACHE.jsonl > benchmarks/results/deployable.md`",
        f"({processor()}; PyTorch {_torch()}; one thread).", "",
        "Top-1 in percent of the realized model, mean ± standard deviation over seeds. Weights and activations have 4",
        "bits, first and last layer 8. A training that does not lower the loss on the judging samples is not kept: the",
        "cell then has the accuracy of recovery, and the number of such runs follows as \"not kept\". `devices` is the",
        "mean ± standard deviation over the five devices. Elements that differ between simulated and realized models:",
        f"{sum(c['differing'] for c in found)} in {len(found)} runs.", "",
    ]  # fmt: skip
    for model in dict.fromkeys(c["model"] for c in found):
        own = [c for c in found if c["model"] == model]
        samples = "1000" if model == "digits" else "384"
        lines += [f"## {model} (float {100 * own[0]['float']:.1f}; {samples} training samples, "
                  f"{EPOCHS[model]} epochs, no labels)", "",
                  "| algorithm | " + " | ".join(SETTINGS) + " | devices |",
                  "|---" * (len(SETTINGS) + 2) + "|"]  # fmt: skip
        for algorithm in dict.fromkeys(c["algorithm"] for c in own if c["fold"] == 0):
            row, means = [algorithm], []
            for name in SETTINGS:
                cell = [c for c in own if (c["algorithm"], c["device"], c["fold"]) == (algorithm, name, 0)]
                left = sum(c["kept"] is False for c in cell)
                row.append(text([c["top1"] for c in cell]) + (f" ({left} not kept)" if left else ""))
                means += [float(np.mean([c["top1"] for c in cell]))] if cell and name != "academic" else []
            lines.append("| " + " | ".join([*row, text(means)]) + " |")
        folds = [c for c in own if c["fold"] != 0]
        if folds:
            lines += ["", "Folding (tensorrt, from rounding to the nearest, without recovery):", "",
                      "| algorithm | " + " | ".join(f"{f}{'*' if p > 1 else ''}" for f, p in FOLDS if f != 0) + " |",
                      "|---" * len(FOLDS) + "|"]  # fmt: skip
            for algorithm in dict.fromkeys(c["algorithm"] for c in folds):
                row = [algorithm]
                for fold, parts in FOLDS:
                    cell = [c for c in folds if (c["algorithm"], c["fold"], c["parts"]) == (algorithm, fold, parts)]
                    left = sum(c["kept"] is False for c in cell)
                    row += [text([c["top1"] for c in cell]) + (f" ({left} not kept)" if left else "")] if fold else []
                lines.append("| " + " | ".join(row) + " |")
        lines.append("")
    return "\n".join(lines)


def _torch() -> str:
    import torch

    return str(torch.__version__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("cache", type=Path)
    parser.add_argument("--models", nargs="+", default=["digits"])
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=None, help="begin no cell after so many seconds")
    given = parser.parse_args()
    lines = given.cache.read_text().splitlines() if given.cache.exists() else []
    known = {key(c): c for c in map(json.loads, lines)}
    started = time.perf_counter()
    with given.cache.open("a", encoding="utf-8") as file:
        for cell in cells(given.models, given.algorithms, given.seeds):
            if key(cell) in known or (given.seconds is not None and time.perf_counter() - started > given.seconds):
                continue
            known[key(cell)] = run(cell)
            file.write(json.dumps(known[key(cell)]) + "\n")
            file.flush()
            print(known[key(cell)], file=sys.stderr, flush=True)
    print(report(list(known.values())))


if __name__ == "__main__":
    main()
