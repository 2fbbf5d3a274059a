"""What each search is worth on each device: the loss before and after, on samples that no decision has seen.

    python benchmarks/search_value.py [--nets digits] [--devices vta,snpe] [--searches greedy,random] [--keep FOLDER]

Every run is made through the Python functions, in one process. Per device it makes the start (search=uniform) and every
search, and what recovery makes of the start and of each search. The loss is the one of the objective: KL divergence
or squared error from the float model; `held out` is on the samples of the report, which neither the ranges, the search
nor recovery have seen. Networks of the zoo are looked for in the folder QUANTPIPE_ZOO.

With `--keep`, what is measured is kept in FOLDER, and an interrupted benchmark goes on there. `--seconds` ends it after
that time, with the tables of what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from machine import processor

import quantpipe
from quantpipe.data import DigitsDataset, SampleSets
from quantpipe.metrics.paired import mean_interval

DEVICES = (
    *("ort_cpu", "vta", "tflite_int8", "snpe", "tensorrt"),
    *("fpga_shift", "esp32p4", "qnn_htp", "mixed_npu", "hago_int16_acc"),
)
SEARCHES = ("greedy", "greedy_backward", "greedy_edge", "knapsack", "surrogate", "tpe", "annealing", "random")
HEAD = (
    *("search", "start", "result", "met", "evaluations", "seconds", "held out", "held out, recovered"),
    *("seconds of recovery", "beside the start recovered"),
)


@cache
def _digits() -> tuple[Any, Any]:
    return quantpipe.example_model(), DigitsDataset()


@cache
def _digits_vit() -> tuple[Any, Any]:
    return Path(quantpipe.__file__).parent / "assets" / "digits_vit.onnx", DigitsDataset()


@cache
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
    """Hold what one search came to, alone and with recovery; losses are positive.

    `alone` and `recovered` are the losses of each held-out sample.
    """

    start: float
    result: float
    met: bool
    evaluations: int
    seconds: float
    recovery_seconds: float
    alone: list[float]
    recovered: list[float]


def outcome(net: tuple[Any, Any], device: str, search: str) -> Outcome:
    """Run the pipeline without recovery, then recovery of the same search."""
    model, samples = net
    quick = {"baseline": "none", "explain": "none", "agreement_samples": 8, "layer_samples": 4, "latency_runs": 5}
    losses: dict[str, list[float]] = {}
    seconds = 0.0
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for recover in ("none", "default"):
            given: dict[str, Any] = {"search": search, "recover": recover, "executor": "serial", "evaluate": quick}
            with quantpipe.Pipeline(model, samples, device, folder=folder, **given) as pipeline:
                pipeline.search()
                begin = time.perf_counter()
                pipeline.recover()
                seconds = time.perf_counter() - begin
                found = dict(pipeline.evaluate()["search"]) if recover == "none" else found
                pipeline.evaluate()
            losses[recover] = np.load(Path(folder) / "evaluate" / "samples.npz")["loss"].tolist()
    return Outcome(
        -found["trace"][0][1],
        -found["best_value"],
        bool(found["feasible"]),
        found["evaluations"],
        found["seconds"],
        seconds,
        losses["none"],
        losses["default"],
    )


def kept(name: str, device: str, search: str, folder: Path | None) -> Outcome | None:
    """Return what an earlier benchmark has measured in this folder."""
    path = None if folder is None else folder / f"{name}-{device}-{search}.json"
    return Outcome(**json.loads(path.read_text())) if path is not None and path.is_file() else None


def measured(name: str, device: str, search: str, folder: Path | None) -> Outcome:
    """Measure a search, and keep the outcome."""
    begin = time.perf_counter()
    found = outcome(NETS[name](), device, search)
    sys.stderr.write(f"{name} {device} {search}: {time.perf_counter() - begin:.1f} s\n")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}-{device}-{search}.json").write_text(json.dumps(asdict(found)))
    return found


def row(search: str, found: Outcome, start: Outcome) -> str:
    """Return the row of a search; the last cell compares it with the start, both recovered, sample by sample."""
    difference, low, high = mean_interval(np.subtract(found.recovered, start.recovered))
    better = "equal" if low <= 0 <= high else "less" if high < 0 else "more"
    cells = (
        search if found is not start else "uniform (the start)",
        f"{found.start:.5f}",
        f"{found.result:.5f}",
        "yes" if found.met else "no",
        str(found.evaluations),
        f"{found.seconds:.1f}",
        f"{np.mean(found.alone):.5f}",
        f"{np.mean(found.recovered):.5f}",
        f"{found.recovery_seconds:.1f}",
        "" if found is start else f"{better}: {difference:+.5f} ({low:+.5f} to {high:+.5f})",
    )
    return "| " + " | ".join(cells) + " |"


def tables(found: dict[tuple[str, str], dict[str, Outcome]]) -> Iterator[str]:
    """Return the tables, one per network and device."""
    for (name, device), outcomes in found.items():
        rows = [row(search, one, outcomes["uniform"]) for search, one in outcomes.items()]
        yield from (f"## {name} on {device}", "", "| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|", *rows, "")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default="digits", help=", ".join(NETS))
    parser.add_argument("--devices", default=",".join(DEVICES))
    parser.add_argument("--searches", default=",".join(SEARCHES))
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    end = time.perf_counter() + given.seconds
    found: dict[tuple[str, str], dict[str, Outcome]] = {}
    for name in given.nets.split(","):
        for device in given.devices.split(","):
            outcomes: dict[str, Outcome] = {}
            for search in ("uniform", *(s for s in given.searches.split(",") if s)):
                one = kept(name, device, search, given.keep)
                if one is None and time.perf_counter() < end:
                    one = measured(name, device, search, given.keep)
                outcomes |= {} if one is None else {search: one}
            found |= {(name, device): outcomes} if "uniform" in outcomes else {}
    lines = [
        "# What each search is worth",
        "",
        f"{processor()}, {os.cpu_count()} cores. quantpipe {quantpipe.__version__}, printed by "
        f"`python benchmarks/search_value.py --nets {given.nets} --devices {given.devices} "
        f"--searches {given.searches}`.",
        "",
        "`start`, `result`: loss on the search samples, before recovery. `met`: whether the search alone meets the "
        "default objective. `held out`: loss on samples that no decision has seen. `recovered`: after "
        "`recover=default`. The last column: difference of the held-out losses after recovery, with its 95 % interval "
        "over paired samples. `equal` if the interval holds 0.",
        "",
        *tables(found),
    ]
    sys.stdout.write("\n".join(lines))


if __name__ == "__main__":
    main()
