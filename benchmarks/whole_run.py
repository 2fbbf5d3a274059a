"""What a whole run takes: EfficientNet-Lite0 on vta with recovery, judged on 436 images, from a fresh folder.

    python benchmarks/whole_run.py > benchmarks/results/whole_run.md

Seconds by the clock, those that both cores worked together, and the seconds of each stage; statistics are measured anew
in every turn. Nothing else should run on the machine.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import onnxruntime
from machine import processor

ROOT = Path(__file__).resolve().parent.parent
ZOO = Path(os.environ.get("QUANTPIPE_ZOO", ROOT.parent / "shared" / "zoo"))
TURNS = 3


def command(folder: Path) -> list[str]:
    """Return the command line of the run."""
    data = ZOO / "data" / "imagenet"
    overrides = [
        *("hardware=vta", "recover=default", "tracking=none", "calibrate.cache=none", f"hydra.run.dir={folder}"),
        f"model.path={ZOO / 'models' / 'imagenet_efficientnet_lite0.onnx'}",
        *("dataset=image_folder", f"dataset.calibrate.path={data / 'calib'}", f"dataset.evaluate.path={data / 'val'}"),
        *(f"dataset.labels={data / 'labels.csv'}", "dataset.label_columns=[wnid,index]"),
        *("dataset.preprocess.scale=1", "dataset.preprocess.mean=127", "dataset.preprocess.std=128"),
        *("dataset.samples.calibrate=96", "dataset.samples.search=32"),
    ]
    return [sys.executable, str(ROOT / "run.py"), *overrides]


def turn(folder: Path) -> tuple[dict[str, float], str]:
    """Run once; return seconds by what they were spent on, and what was compared."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command(folder), check=True, capture_output=True)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    stages = json.loads((folder / "evaluate" / "figures.json").read_text(encoding="utf-8"))["timeline"]
    report = json.loads((folder / "evaluate" / "report.json").read_text(encoding="utf-8"))
    worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = {"whole run": wall, "processor time, both cores": worked}
    found |= {row["stage"]: row["seconds"] for row in stages}
    agreement, metrics = report["agreement"], report["metrics"]["realized"]
    said = f"{agreement['differing']} of {agreement['elements']:,} elements differ; top-1 {100 * metrics['top1']:.2f} %"
    return found, said


def spread(values: Sequence[float]) -> str:
    """Return the median, and the least and the greatest."""
    return f"{statistics.median(values):.1f} ({min(values):.1f} – {max(values):.1f})"


def main() -> None:
    """Print the table."""
    turns, said = [], set()
    for _ in range(TURNS):
        with tempfile.TemporaryDirectory() as folder:
            found, what = turn(Path(folder) / "run")
            turns.append(found)
            said.add(what)
    print("# A whole run\n")
    machine = f"{os.cpu_count()} CPUs ({processor()})"
    print(f"`python benchmarks/whole_run.py`, onnxruntime {onnxruntime.__version__}, {machine},")
    print(f"{TURNS} turns: median, and the least and the greatest in brackets.")
    print("EfficientNet-Lite0 on vta with recover=default, 96 samples to calibrate, 32 to search, 436 to evaluate.\n")
    print("| | seconds |\n|---|---|")
    for name in turns[0]:
        print(f"| {name} | {spread([found[name] for found in turns])} |")
    print(f"\n{'; '.join(sorted(said))}.")


if __name__ == "__main__":
    main()
