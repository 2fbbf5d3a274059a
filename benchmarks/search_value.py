"""What each search is worth on each device: the loss before and after, on samples that no decision has seen.

    python benchmarks/search_value.py [--nets digits] [--devices vta,snpe] [--searches greedy,random] [--out FILE.md]

Every run is made through the Python functions, in one process. Per device it makes the start (search=uniform) and every
search, and what recovery makes of the start and of each search. The loss is the one of the objective: KL divergence
or squared error from the float model; `held out` is on the samples of the report, which neither the ranges, the search
nor recovery have seen. Networks of the zoo are looked for in the folder QUANTPIPE_ZOO.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import quantpipe
from quantpipe.data import DigitsDataset, SampleSets

DEVICES = (
    *("ort_cpu", "vta", "tflite_int8", "snpe", "tensorrt"),
    *("fpga_shift", "esp32p4", "qnn_htp", "mixed_npu", "hago_int16_acc"),
)
SEARCHES = ("greedy", "greedy_backward", "greedy_edge", "knapsack", "surrogate", "tpe", "annealing", "random")
HEAD = ("search", "start", "result", "evaluations", "seconds", "held out", "held out, recovered", "met")


def _digits() -> tuple[Any, Any]:
    return quantpipe.example_model(), DigitsDataset()


def _digits_vit() -> tuple[Any, Any]:
    return Path(quantpipe.__file__).parent / "assets" / "digits_vit.onnx", DigitsDataset()


def _resnet20() -> tuple[Any, Any]:
    zoo = Path(os.environ.get("QUANTPIPE_ZOO", "../shared/zoo"))
    calibrate, judge = (_cifar(zoo / "data" / f"cifar10_{part}.npz") for part in ("calib", "val"))
    parts = (calibrate[0][:128], tuple(a[512:] for a in judge), tuple(a[:128] for a in judge))
    sets = SampleSets(calibrate=parts[0], evaluate=parts[1], search=parts[2])
    return zoo / "models" / "cifar10_resnet20.onnx", sets


def _cifar(path: Path) -> tuple[np.ndarray, np.ndarray]:
    held = np.load(path)
    mean, std = (np.float32(v).reshape(1, 3, 1, 1) for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    images = held["images"] if "images" in held else held["x"]
    images = images.transpose(0, 3, 1, 2) if images.shape[-1] == 3 else images
    return (images.astype(np.float32) / 255 - mean) / std, held["labels"] if "labels" in held else held["y"]


NETS: dict[str, Callable[[], tuple[Any, Any]]] = {"digits": _digits, "digits_vit": _digits_vit, "resnet20": _resnet20}


@dataclass(frozen=True)
class Outcome:
    """Hold what one run came to; losses are positive, `seconds` those of the search."""

    start: float
    result: float
    evaluations: int
    seconds: float
    held_out: float
    met: bool


def outcome(net: tuple[Any, Any], device: str, search: str, recover: str) -> Outcome:
    """Run the pipeline once, without a folder that stays."""
    model, samples = net
    quick = {"baseline": "none", "explain": "none", "agreement_samples": 8, "layer_samples": 4, "latency_runs": 5}
    begin = time.perf_counter()
    with quantpipe.Pipeline(
        model, samples, device, search=search, recover=recover, executor="serial", evaluate=quick
    ) as pipeline:
        report = pipeline.evaluate()
    found, carried = report["search"], report["generalization"]
    sys.stderr.write(f"{device} {search} recover={recover}: {time.perf_counter() - begin:.1f} s\n")
    return Outcome(
        -found["trace"][0][1],
        -found["best_value"],
        found["evaluations"],
        found["seconds"],
        carried["report"],
        bool(found["feasible"]),
    )


def table(name: str, device: str, searches: Sequence[str]) -> list[str]:
    """Return the rows of a device, the start first."""
    net = NETS[name]()
    rows = []
    for search in ("uniform", *searches):
        alone, recovered = (outcome(net, device, search, recover) for recover in ("none", "default"))
        cells = (
            search if search != "uniform" else "uniform (the start)",
            f"{alone.start:.5f}",
            f"{alone.result:.5f}",
            str(alone.evaluations),
            f"{alone.seconds:.1f}",
            f"{alone.held_out:.5f}",
            f"{recovered.held_out:.5f}",
            "yes" if alone.met else "no",
        )
        rows.append("| " + " | ".join(cells) + " |")
    return [f"## {name} on {device}", "", "| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|", *rows, ""]


def processor() -> str:
    """Return the name of this machine's processor and its cores."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, {os.cpu_count()} cores"


def main() -> None:
    """Print the tables, and write them to a file where one is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default="digits", help=", ".join(NETS))
    parser.add_argument("--devices", default=",".join(DEVICES))
    parser.add_argument("--searches", default=",".join(SEARCHES))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = [
        "# What each search is worth",
        "",
        f"{processor()}. quantpipe {quantpipe.__version__}, printed by `python benchmarks/search_value.py "
        f"--nets {given.nets} --devices {given.devices} --searches {given.searches}`.",
        "",
        "`start`, `result`: loss on the search samples, before recovery. `held out`: loss on samples that no decision "
        "has seen. `recovered`: after `recover=default`. `met`: whether the search alone meets the default objective.",
        "",
    ]
    for name in given.nets.split(","):
        for device in given.devices.split(","):
            lines += table(name, device, [s for s in given.searches.split(",") if s])
            if given.out is not None:
                given.out.write_text("\n".join(lines).rstrip() + "\n")
    sys.stdout.write("\n".join(lines))


if __name__ == "__main__":
    main()
