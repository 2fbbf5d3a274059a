"""What each search is worth on each device: the loss before and after, on samples that no decision has seen.

    python benchmarks/search_value.py [--nets digits] [--devices vta,snpe] [--searches greedy,random] [--keep FOLDER]
        [--seconds N] [--search-seconds N]

Every run is made through the Python functions, in one process. Per device it makes the start (search=uniform) and every
search, and what recovery makes of the start and of each search. The loss is the one of the objective: KL divergence
or squared error from the float model; `held out` is on the samples of the report, which neither the ranges, the search
nor recovery have seen. Networks of the zoo are looked for in the folder QUANTPIPE_ZOO.

With `--keep`, what is measured is kept in FOLDER, and an interrupted benchmark goes on there. `--seconds` ends it after
that time, with the tables of what is measured. `--search-seconds` ends each search after that time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from machine import processor

import quantpipe
from quantpipe.data import DigitsDataset, ImageFolderDataset, SampleSets
from quantpipe.metrics.paired import mean_interval

DEVICES = (
    *("ort_cpu", "vta", "tflite_int8", "snpe", "tensorrt"),
    *("fpga_shift", "esp32p4", "qnn_htp", "mixed_npu", "hago_int16_acc"),
)
SEARCHES = ("greedy", "greedy_backward", "greedy_edge", "knapsack", "surrogate", "tpe", "annealing", "random")
HEAD = (
    *("search", "start", "result", "cost", "met", "evaluations", "to greedy's loss", "seconds", "held out"),
    *("compared with greedy", "held out, recovered", "seconds of recovery", "compared with the start, recovered"),
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


@cache
def _efficientnet_lite0() -> tuple[Any, Any]:
    zoo = Path(os.environ.get("QUANTPIPE_ZOO", "../shared/zoo"))
    images = zoo / "data" / "imagenet"
    data = ImageFolderDataset(
        calibrate={"path": str(images / "calib")},
        evaluate={"path": str(images / "val")},
        labels=str(images / "labels.csv"),
        label_columns=["wnid", "index"],
        preprocess={"scale": 1, "mean": 127, "std": 128},
        samples={"calibrate": 96, "search": 32, "evaluate": 96},
    )
    return zoo / "models" / "imagenet_efficientnet_lite0.onnx", data


NETS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "digits": _digits,
    "digits_vit": _digits_vit,
    "resnet20": _resnet20,
    "efficientnet_lite0": _efficientnet_lite0,
}


@dataclass(frozen=True)
class Outcome:
    """Hold what one search came to, alone and with recovery; losses are positive, seconds of the processor.

    `cost` is a share of the cost of the start.

    `alone` and `recovered` are the losses of each held-out sample; `trace` has the evaluations and loss of each best.
    """

    start: float
    result: float
    cost: float
    met: bool
    evaluations: int
    seconds: float
    recovery_seconds: float
    alone: list[float]
    recovered: list[float]
    trace: list[list[float]]

    def evaluations_to(self, loss: float) -> int | None:
        """Return after how many evaluations the loss was at most this one; None if it never was."""
        return next((int(count) for count, found in self.trace if found <= loss * (1 + 1e-6)), None)


def outcome(net: tuple[Any, Any], device: str, search: str, seconds_of_search: float | None) -> Outcome:
    """Run the pipeline without recovery, then recovery of the same search."""
    model, samples = net
    quick = {"baseline": "none", "explain": "none", "agreement_samples": 8, "layer_samples": 4, "latency_runs": 5}
    losses: dict[str, list[float]] = {}
    seconds: dict[str, tuple[float, float]] = {}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for recover in ("none", "default"):
            searched = search if seconds_of_search is None else {"option": search, "max_seconds": seconds_of_search}
            given: dict[str, Any] = {"search": searched, "recover": recover, "executor": "serial", "evaluate": quick}
            with quantpipe.Pipeline(model, samples, device, folder=folder, **given) as pipeline:
                pipeline.calibrate()
                begin = time.process_time()
                pipeline.search()
                between = time.process_time()
                pipeline.recover()
                seconds |= {recover: (between - begin, time.process_time() - between)}
                found = dict(pipeline.evaluate()["search"]) if recover == "none" else found
                pipeline.evaluate()
            losses[recover] = np.load(Path(folder) / "evaluate" / "samples.npz")["loss"].tolist()
    return Outcome(
        -found["trace"][0][1],
        -found["best_value"],
        found["best_cost"] / found["trace_cost"][0][1],
        bool(found["feasible"]),
        found["evaluations"],
        seconds["none"][0],
        seconds["default"][1],
        losses["none"],
        losses["default"],
        [[number + 1, -value] for number, value in found["trace"]],
    )


def kept(name: str, device: str, search: str, folder: Path | None) -> Outcome | None:
    """Return what an earlier benchmark has measured in this folder."""
    path = None if folder is None else folder / f"{name}-{device}-{search}.json"
    return Outcome(**json.loads(path.read_text())) if path is not None and path.is_file() else None


def measured(
    name: str, device: str, search: str, folder: Path | None, seconds_of_search: float | None = None
) -> Outcome:
    """Measure a search, and keep the outcome."""
    begin = time.perf_counter()
    found = outcome(NETS[name](), device, search, seconds_of_search)
    sys.stderr.write(f"{name} {device} {search}: {time.perf_counter() - begin:.1f} s\n")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}-{device}-{search}.json").write_text(json.dumps(asdict(found)))
    return found


def row(search: str, found: Outcome, outcomes: Mapping[str, Outcome]) -> str:
    """Return the row of a search. Two cells compare held-out losses sample by sample: with greedy, with the start."""
    start, greedy = outcomes["uniform"], outcomes.get("greedy")
    reached = None if greedy is None else found.evaluations_to(greedy.result)
    cells = (
        search if found is not start else "uniform (the start)",
        f"{found.start:.5f}",
        f"{found.result:.5f}",
        f"{found.cost:.0%}",
        "yes" if found.met else "no",
        str(found.evaluations),
        "" if greedy is None else str(reached or "never"),
        f"{found.seconds:.1f}",
        f"{np.mean(found.alone):.5f}",
        "" if greedy is None or found is greedy else compared(found.alone, greedy.alone),
        f"{np.mean(found.recovered):.5f}",
        f"{found.recovery_seconds:.1f}",
        "" if found is start else compared(found.recovered, start.recovered),
    )
    return "| " + " | ".join(cells) + " |"


def compared(losses: list[float], others: list[float]) -> str:
    """Return the paired difference of losses with its 95 % interval, and whether it is beyond chance."""
    difference, low, high = mean_interval(np.subtract(losses, others))
    verdict = "equal" if low <= 0 <= high else "less" if high < 0 else "more"
    return f"{verdict}: {difference:+.5f} ({low:+.5f} to {high:+.5f})"


def tables(found: dict[tuple[str, str], dict[str, Outcome]]) -> Iterator[str]:
    """Return the tables, one per network and device."""
    for (name, device), outcomes in found.items():
        rows = [row(search, one, outcomes) for search, one in outcomes.items()]
        yield from (f"## {name} on {device}", "", "| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|", *rows, "")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default="digits", help=", ".join(NETS))
    parser.add_argument("--devices", default=",".join(DEVICES))
    parser.add_argument("--searches", default=",".join(SEARCHES))
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--search-seconds", type=float)
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
                    one = measured(name, device, search, given.keep, given.search_seconds)
                outcomes |= {} if one is None else {search: one}
            found |= {(name, device): outcomes} if "uniform" in outcomes else {}
    lines = [
        "# What each search is worth",
        "",
        f"{processor()}, {os.cpu_count()} cores. quantpipe {quantpipe.__version__}, printed by "
        f"`python benchmarks/search_value.py --nets {given.nets} --devices {given.devices} "
        f"--searches {given.searches}`.",
        "",
        "`start`, `result`: loss on the search samples, before recovery. `cost`: share of the start's cost, which a "
        "search lowers within the tolerance once that is met. `met`: whether the search alone meets the "
        "default objective. `to greedy's loss`: evaluations until the loss was at most the one that greedy ends with. "
        "`seconds`: processor time of all cores. `held out`: loss on samples that no decision has seen. "
        "`recovered`: after `recover=default`. "
        "`compared with greedy`: difference of the held-out losses, before recovery, from those of greedy, with its "
        "95 % interval over paired samples. `equal` if the interval holds 0. The last column: the same after recovery, "
        "from the start after recovery.",
        "",
        *tables(found),
    ]
    sys.stdout.write("\n".join(lines))


if __name__ == "__main__":
    main()
