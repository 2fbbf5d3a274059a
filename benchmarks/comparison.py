"""All searches with equal budgets: runs in a folder, which may be stopped and gone on with, and the tables of them.

Each run is the program itself in a folder of its own (experiments/search_comparison.yaml with the changes below). One
that has its report is not made again, one that was stopped goes on after its last evaluation.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime as ort
from curves import Curve, drawing

ROOT = Path(__file__).resolve().parents[1]
SEARCHES = (
    *("knapsack", "greedy", "greedy_backward", "greedy_edge", "surrogate", "tpe", "evolutionary", "annealing"),
    *("random", "grid", "uniform"),
)
RIVALS = ("annealing", "random")
MARKS = (5, 10, 20, 30, 50, 75, 100, 130, 182)
"""Evaluations after which the tables give the best so far."""

DEVICES = {
    "mixed_npu": ("least cost in BOPs within KL 0.02, widths 16, 8 and 4", ()),
    "hago_int16_acc": (
        "least KL, bits 8 to 4, 16-bit accumulators that overflow",
        (
            "choices.restrict=null",
            "objective.form=best_value_within_cost",
            "objective.cost_limit=1",
            "objective.cost=bits",
        ),
    ),
    "vta": (
        "least KL, 8 bits, every range times 1, 2 or 1/2",
        (
            *("choices.restrict=null", "annotate.min_bits=8", "annotate.threshold_steps=[-1,0,1]"),
            *("objective.form=best_value_within_cost", "objective.cost_limit=1", "objective.cost=bits"),
        ),
    ),
}
"""What is searched, and what is changed in the experiment for it."""


def _resnet20(zoo: Path) -> tuple[str, ...]:
    return ()


def _efficientnet_lite0(zoo: Path) -> tuple[str, ...]:
    data = zoo / "data" / "imagenet"
    return (
        f"model.path={zoo / 'models' / 'imagenet_efficientnet_lite0.onnx'}",
        *("dataset=image_folder", f"dataset.calibrate.path={data / 'calib'}", f"dataset.evaluate.path={data / 'val'}"),
        *(f"dataset.labels={data / 'labels.csv'}", "dataset.label_columns=[wnid,index]"),
        *("dataset.preprocess.scale=1", "dataset.preprocess.mean=127", "dataset.preprocess.std=128"),
        *("dataset.samples.calibrate=96", "dataset.samples.search=32"),
    )


MODELS: dict[str, tuple[Callable[[Path], tuple[str, ...]], dict[str, int]]] = {
    "resnet20": (_resnet20, {"mixed_npu": 130, "hago_int16_acc": 182, "vta": 75}),
    "efficientnet_lite0": (_efficientnet_lite0, {"mixed_npu": 40, "hago_int16_acc": 40, "vta": 40}),
}
"""What is changed for a model, and how many evaluations a search on a device has."""


@dataclass(frozen=True)
class Task:
    """A model on a device."""

    model: str
    device: str

    @property
    def budget(self) -> int:
        return MODELS[self.model][1][self.device]

    @property
    def by_cost(self) -> bool:
        """Whether the least cost is looked for, and not the best value."""
        return not any("best_value" in change for change in DEVICES[self.device][1])


def tasks(models: Sequence[str], devices: Sequence[str]) -> list[Task]:
    return [Task(m, d) for m in MODELS if m in (models or MODELS) for d in DEVICES if d in (devices or DEVICES)]


def make(folder: Path, zoo: Path, wanted: Sequence[Task], searches: Sequence[str]) -> None:
    """All runs that are not there yet; what the program says goes to standard error."""
    for task in wanted:
        for search in searches or SEARCHES:
            place = _place(folder, task, search)
            if (place / "evaluate" / "report.json").is_file():
                continue
            command = [
                *(sys.executable, str(ROOT / "run.py"), "experiments=search_comparison", f"search={search}"),
                *(f"hardware={task.device}", f"search.max_evaluations={task.budget}", f"hydra.run.dir={place}"),
                *(*MODELS[task.model][0](zoo), *DEVICES[task.device][1]),
            ]
            environment = os.environ | {"QUANTPIPE_ZOO": str(zoo)}
            subprocess.run(command, check=True, env=environment, stdout=sys.stderr)


def _place(folder: Path, task: Task, search: str) -> Path:
    return folder / task.model / task.device / search


@dataclass(frozen=True)
class Run:
    """What one search found."""

    search: str
    curve: Curve
    report: dict[str, Any]


def runs(folder: Path, task: Task) -> list[Run]:
    """Those that are finished, in the order of `SEARCHES`."""
    found = []
    for search in SEARCHES:
        path = _place(folder, task, search) / "evaluate" / "report.json"
        if not path.is_file():
            continue
        report = json.loads(path.read_text())
        traced = report["search"]["trace_cost" if task.by_cost else "trace"]
        sign = 1 if task.by_cost else -1  # a value is minus the KL
        found.append(Run(search, Curve([(n + 1, sign * v) for n, v in traced], task.budget), report))
    return found


def table(task: Task, found: Sequence[Run]) -> Iterator[str]:
    """Rows of one task, and what they say of knapsack."""
    marks = [m for m in MARKS if m <= task.budget]
    unit = found[0].curve.at(1) if task.by_cost else 1.0
    best = min(run.curve.at(task.budget) for run in found)
    what = "cost, % of the most precise point's" if task.by_cost else "KL"
    yield f"## {task.model}, {task.device}: {DEVICES[task.device][0]}\n"
    yield f"Budget {task.budget} evaluations. Best so far ({what}) after so many; area: its mean over the budget.\n"
    heads = [*map(str, marks), "end", "area", "last gain at", "evaluations", "s", "top-1 on the report split", "cost"]
    yield f"| search | {' | '.join(heads)} |"
    yield "|---" * (len(heads) + 1) + "|"
    for run in found:
        report, curve = run.report, run.curve
        cells = [curve.at(m) / unit for m in (*marks, task.budget)]
        shown = [f"{100 * c:.2f}" if task.by_cost else f"{c:.4f}" for c in (*cells, curve.area / unit)]
        top1 = report["metrics"]["realized"].get("top1")
        count = report["run"]["samples"]
        yield (
            f"| `{run.search}` | {' | '.join(shown)} | {curve.last} | {report['search']['evaluations']} "
            f"| {report['search']['seconds']:.0f} | {top1:.4f} ({round(top1 * count)} of {count}) "
            f"| {report['search']['best_cost']:.6g} |"
        )
    yield ""
    yield from _verdict(task, found, best)


def _verdict(task: Task, found: Sequence[Run], best: float) -> Iterator[str]:
    curves = {run.search: run.curve for run in found}
    own = curves.get("knapsack")
    if own is None:
        return
    reached = next((n for n in range(1, task.budget + 1) if own.at(n) <= 1.01 * best), None)
    yield (
        f"`knapsack` ended {100 * (own.at(task.budget) / best - 1):.2f} % above the best found by any search"
        + (f" and was within 1 % of it after {reached} evaluations." if reached else ".")
    )
    for rival in RIVALS:
        if rival in curves:
            behind = [n for n in range(1, task.budget + 1) if own.at(n) > curves[rival].at(n)]
            where = f"behind at {_ranges(behind)}" if behind else "never behind"
            yield f"Against `{rival}`: {where}."
    yield ""


def _ranges(numbers: Sequence[int]) -> str:
    """1, 2, 3, 7 -> 1-3, 7."""
    found: list[list[int]] = []
    for n in numbers:
        if found and n == found[-1][1] + 1:
            found[-1][1] = n
        else:
            found.append([n, n])
    return ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in found)


def compare(
    folder: Path,
    zoo: Path,
    models: Sequence[str],
    devices: Sequence[str],
    *,
    searches: Sequence[str],
    plot: Path | None,
) -> None:
    """Make what is missing, then print the tables of all that is there; `plot`: where their curves are drawn (SVG)."""
    make(folder, zoo, tasks(models, devices), searches)
    print("# Searches with equal budgets\n")
    print(f"onnxruntime {ort.__version__}, Python {platform.python_version()}, seed 0, KL on the search split.\n")
    panels = []
    for task in tasks((), ()):
        found = runs(folder, task)
        if found:
            print("\n".join(table(task, found)))
            panels.append((f"{task.model}, {task.device}", task.by_cost, {run.search: run.curve for run in found}))
    if plot is not None:
        plot.write_text(drawing(panels))
