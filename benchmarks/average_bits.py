"""EfficientNet-Lite0 at 4, 5 and 6 bits per weight on average: knapsack on weight bytes, then recovery.

Runs of experiments/average_bits.yaml, each in a folder of its own below FOLDER; one that has its report is not made
again, one that was stopped goes on. A seed divides the images and draws the rows of the moments. Prints top-1 on the
validation images, beside the goal, and means over the seeds.

    python benchmarks/average_bits.py FOLDER [--bits 4 ...] [--seeds 0 ...] > benchmarks/results/average_bits.md
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from recovery import ZOO, machine

ROOT = Path(__file__).resolve().parents[1]
GOALS = {4: 0.878, 5: 0.887, 6: 0.890}


def made(folder: Path, bits: int, seed: int, more: list[str]) -> dict[str, Any]:
    """The report of one run, made if it is not there."""
    place = folder / f"{bits}-{seed}"
    report = place / "evaluate" / "report.json"
    if not report.is_file():
        command = [
            *(sys.executable, str(ROOT / "run.py"), "experiments=average_bits", f"hydra.run.dir={place}"),
            *(f"objective.cost_limit={bits / 8}", f"seed={seed}", *more),
        ]
        subprocess.run(command, check=True, env=os.environ | {"QUANTPIPE_ZOO": str(ZOO)}, stdout=sys.stderr)
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def row(bits: int, seed: int, report: dict[str, Any]) -> str:
    top1, count, search = report["metrics"]["realized"]["top1"], report["run"]["samples"], report["search"]
    error = (top1 * (1 - top1) / count) ** 0.5
    steps = ", ".join(_step(step) for step in report["recover"])
    return (
        f"| {bits} | {seed} | {report['model']['mean_weight_bits']:.3f} "
        f"| {top1:.4f} ({round(top1 * count)} of {count}) | {error:.4f} | {GOALS[bits]:.3f} "
        f"| {report['metrics']['realized']['kl']:.4f} | {-search['best_value']:.4f} | {steps} "
        f"| {search['evaluations']} | {search['seconds']:.0f} | {report['agreement']['differing']} |"
    )


def means(bits: int, reports: list[dict[str, Any]]) -> str:
    """Over the seeds."""
    top1, kl = (np.mean([r["metrics"]["realized"][key] for r in reports]) for key in ("top1", "kl"))
    return f"Mean over {len(reports)} seeds, {bits} bits: top-1 {top1:.4f} (goal {GOALS[bits]:.3f}), KL {kl:.4f}."


def _step(step: dict[str, Any]) -> str:
    after = "refused" if step["kl_after"] is None else f"{step['kl_after']:.4f}"
    return f"{step['step']} {step['kl_before']:.4f} → {after}{'' if step['kept'] else ', not kept'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bits", nargs="+", type=int, choices=GOALS, default=list(GOALS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("more", nargs="*", help="further overrides of the experiment")
    options = parser.parse_args()
    pairs = [(bits, seed) for bits in options.bits for seed in options.seeds]
    found = {pair: made(options.folder, *pair, options.more) for pair in pairs}
    first = next(iter(found.values()))
    splits = ", ".join(f"{role} {entry['samples']}" for role, entry in first["data"].items())
    print("# Average weight bits: EfficientNet-Lite0, activations of 8 bits\n")
    print(f"{machine()}; images: {splits};")
    print(f"float top-1 {first['metrics']['float']['top1']:.4f}.\n")
    print(
        "| average allowed | seed | of the result | top-1 | standard error | goal | KL | KL, searched "
        "| recovery, on images that the search has not seen | evaluations | s | differing |"
    )
    print("|---" * 12 + "|")
    for pair, report in found.items():
        print(row(*pair, report))
    if len(options.seeds) > 1:
        print()
        for bits in options.bits:
            print(means(bits, [found[bits, seed] for seed in options.seeds]))


if __name__ == "__main__":
    main()
