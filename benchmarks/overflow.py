"""What overflow costs on CIFAR-10 ResNet-20, and what gives it back.

Every line is a run of the program itself, its command printed beside it. Accumulators of 16 bits that wrap
(hago_int16_acc), at 8 bits everywhere and searched (experiments=int16_overflow); pairs of uint8 x int8 products that
saturate in int16 (ort_cpu with isa avx2), and 7-bit weights, with which none does.

    python benchmarks/overflow.py [--samples N] > benchmarks/results/overflow.md
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnxruntime as ort

ROOT = Path(__file__).resolve().parents[1]
ZOO = Path(os.environ.get("QUANTPIPE_ZOO", ROOT.parent / "shared" / "zoo"))
DATA = (
    "dataset=npz",
    f"dataset.calibrate.path={ZOO / 'data' / 'cifar10_calib.npz'}",
    f"dataset.evaluate.path={ZOO / 'data' / 'cifar10_val.npz'}",
    "dataset.preprocess.scale=1/255",
    "dataset.preprocess.mean=[0.485,0.456,0.406]",
    "dataset.preprocess.std=[0.229,0.224,0.225]",
    "dataset.preprocess.layout=NCHW",
)
PLAIN = ("precision=none", "recover=none")
"""What a run does by default to make up for it."""

RUNS = {
    "16-bit accumulators, 8 bits everywhere": ("hardware=hago_int16_acc",),
    "16-bit accumulators, searched": ("experiments=int16_overflow",),
    "avx2, without saturation (isa=vnni)": ("hardware=ort_cpu",),
    "avx2": ("hardware=ort_cpu", "hardware.isa=avx2", "realize=integer"),
    "avx2, 7-bit weights": ("hardware=ort_cpu", "hardware.isa=avx2", "hardware.weights.reduce_range=true"),
}


def report_of(arguments: tuple[str, ...], samples: str) -> dict[str, Any]:
    """The report of a run with these arguments."""
    with tempfile.TemporaryDirectory() as folder:
        fixed = (f"model.path={ZOO / 'models' / 'cifar10_resnet20.onnx'}", *DATA, *PLAIN, "tracking=none")
        more = (f"dataset.samples.evaluate={samples}", f"hydra.run.dir={folder}", "calibrate.cache=none")
        command = [sys.executable, str(ROOT / "run.py"), *arguments, *fixed, *more]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        report: dict[str, Any] = json.loads((Path(folder) / "evaluate" / "report.json").read_text())
    return report


def line(name: str, arguments: tuple[str, ...], report: dict[str, Any]) -> str:
    metrics, model, overflow = report["metrics"], report["model"], report["overflow"]
    lost, elements = (sum(entry[key] for entry in overflow) for key in ("overflowed", "elements"))
    worst = max((entry["share"] for entry in overflow), default=0.0)
    sums = f"{lost / elements:.2e} | {worst:.2e}" if elements else "none can | none can"
    cells = [
        name,
        f"`{' '.join(arguments)}`",
        f"{metrics['float']['top1']:.2%}",
        f"{metrics['realized']['top1']:.2%}",
        f"{metrics['realized']['kl']:.4f}",
        f"{model['mean_weight_bits']:.2f} / {model['mean_activation_bits']:.2f}",
        sums,
        str(report["agreement"]["differing"]),
        f"{report['search']['evaluations']} in {report['search']['seconds']:.0f} s",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", default="null", help="evaluation images, null for all 2000")
    options = parser.parse_args()
    print("# Overflow: CIFAR-10 ResNet-20\n")
    print(f"onnxruntime {ort.__version__}, Python {platform.python_version()}, seed 0; top-1 and KL of the realized")
    print("model; sums that overflow as a share of those of all accumulators that can, and in the worst layer;")
    print("integers that differ between simulated and realized model; candidates of the search.")
    print(f"All with `{' '.join(PLAIN)}`: nothing else makes up for what is lost.\n")
    print("| | arguments | float top-1 | top-1 | KL to float | bits W / A | overflow | worst | differ | search |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for name, arguments in RUNS.items():
        print(line(name, arguments, report_of(arguments, options.samples)), flush=True)


if __name__ == "__main__":
    main()
