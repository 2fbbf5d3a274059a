"""What evaluating a candidate costs, in passes of the float model over the same samples; and what each search finds.

    python benchmarks/search.py cost [--model NAME] [--samples N] [--candidates N]
    python benchmarks/search.py workers [--model NAME] [--samples N] [--candidates N]
    python benchmarks/search.py compare FOLDER [--models NAME ...] [--devices NAME ...] [--searches NAME ...] [--plot F]

`cost` gives four figures for each evaluator: the first candidate (everything is made), a candidate that differs in
every choice (a random point), one that differs from the start in one choice (a probe), and a step of a greedy walk,
which lowers one choice after the other in random order and keeps every second lowering. Float passes are timed in
between, so that the machine's drift hits all alike; the figures are medians, for probes and steps also the mean, as
these depend on where in the model the change is.

`workers` measures batches of random points in this process and in worker processes.

`compare` runs all searches with equal budgets (`comparison.py`). The runs stand in FOLDER: stopped, and started again,
it goes on; with some models, devices or searches named, it makes only theirs. It prints tables of all that is there.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).parent))
from comparison import DEVICES, MODELS, SEARCHES, compare
from latency import ZOO, datasets, option

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.calibrate.estimators import MSE
from quantpipe.calibrate.measure import measure
from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.data.subset import First
from quantpipe.graph.execute import Session, available_cores, run_batches
from quantpipe.hardware.load import load_hardware
from quantpipe.hardware.schemas import resolve_schema
from quantpipe.intake.load import load_graph
from quantpipe.metrics.reference import reference_of
from quantpipe.pipeline.stages import annotate
from quantpipe.plan import Planner
from quantpipe.scoring.candidate import CandidateRecipe, EvaluatorKind
from quantpipe.scoring.workers import Process, Serial
from quantpipe.simulate.simulator import Simulator
from quantpipe.types import ChoiceSpace, Point

CALIBRATION = 16


def recipe(name: str, samples: int) -> CandidateRecipe:
    """hardware=ort_cpu with every default; the samples are the first of the validation data."""
    dataset = replace(datasets()[name], samples={"calibrate": CALIBRATION, "search": CALIBRATION, "evaluate": None})
    made: list[Any] = []

    def example(raw: Any) -> Any:
        made.append(dataset.splits(raw.inputs, None, 0))
        return next(iter(made[0].calibrate.batches(4))).inputs

    graph = load_graph(ZOO / "models" / f"{name}.onnx", example)
    spec = load_hardware(option("hardware/ort_cpu"))
    schema = resolve_schema(spec, option("schema/asymmetric"), {})
    topology, space = annotate(graph, spec, schema, AnnotateOptions())
    profile = measure(graph, topology.measured, made[0].calibrate, 1024)
    table = ThresholdTable(graph, topology, schema, profile, estimator=MSE(), weight_method="mse")
    few = First(made[0].evaluate, samples)
    reference = reference_of(Session(graph.model), few, graph.batch_size)
    for option_number in range(max(len(c.options) for c in space)):  # ranges are made once in every search
        table.strategy(space.decode(tuple(min(option_number, len(c.options) - 1) for c in space)))
    return CandidateRecipe(graph, topology, spec, schema, space, table, few, reference, "kl", "bits", "qdq")


@dataclass
class Clock:
    """Seconds of candidates, each beside a pass of the float model."""

    recipe: CandidateRecipe
    float_seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._session = Session(self.recipe.graph.model)
        self.float_pass()
        self.float_seconds.clear()

    def float_pass(self) -> None:
        r, before = self.recipe, time.perf_counter()
        for _ in run_batches(self._session, r.samples, r.graph.batch_size, self._session.outputs[:1]):
            pass
        self.float_seconds.append(time.perf_counter() - before)

    def time(self, call: Any, *arguments: Any) -> float:
        self.float_pass()
        before = time.perf_counter()
        call(*arguments)
        return time.perf_counter() - before


def probes(space: ChoiceSpace, count: int) -> Iterator[Point]:
    """Evenly spread single changes, in the order of the space."""
    for choice in np.linspace(0, len(space) - 1, count).astype(int).tolist():
        if len(space.choices[choice].options) > 1:
            yield tuple(int(i == choice) for i in range(len(space)))


def steps(space: ChoiceSpace, count: int, rng: np.random.Generator) -> Iterator[Point]:
    """A greedy walk: every second lowering is kept."""
    point = list(space.start)
    order = [i for i in rng.permutation(len(space)).tolist() if len(space.choices[i].options) > 1]
    for number, choice in enumerate(order[:count]):
        attempt = [*point]
        attempt[choice] += 1
        yield tuple(attempt)
        if number % 2 == 0:
            point = attempt


def whole(r: CandidateRecipe) -> Any:
    """One graph for the whole model, nothing kept: what sections are measured against."""
    planner, simulator = Planner(r.graph, r.topology, r.spec, r.schema), Simulator(r.graph, r.topology)

    def run(point: Point) -> None:
        session, parameters = simulator.prepare(planner.plan(r.table.strategy(r.space.decode(point))))
        for _ in run_batches(session, r.samples, r.graph.batch_size, session.outputs[:1], extra=parameters):
            pass

    return run


def cost(name: str, samples: int, candidates: int) -> None:
    r = recipe(name, samples)
    clock, rows = Clock(r), []
    rng = np.random.default_rng(0)
    random = [tuple(int(rng.integers(len(c.options))) for c in r.space) for _ in range(5)]
    plain = whole(r)
    times = [clock.time(plain, p) for p in [r.space.start, *random]]
    rows.append(("simulated as one graph", times[0], times[1:], [], []))
    scores = []
    for kind in (EvaluatorKind.SIMULATED, EvaluatorKind.INTEGER):
        made = replace(r, kind=kind).make()
        found: list[Any] = []

        def ask(point: Point, made: Any = made, found: list[Any] = found) -> None:
            found.extend(made([point]))

        first = clock.time(ask, r.space.start)
        every = [clock.time(ask, p) for p in random]
        probed = [clock.time(ask, p) for p in probes(r.space, candidates)]
        walked = [clock.time(ask, p) for p in steps(r.space, candidates, np.random.default_rng(1))]
        rows.append((str(kind), first, every, probed, walked))
        scores.append(found)
    unit = median(clock.float_seconds)
    print(f"# Cost of a candidate: {name}, {len(r.samples)} samples, {available_cores()} cores\n")
    print(f"onnxruntime {ort.__version__}, Python {platform.python_version()}, {len(r.space)} choices; ", end="")
    print(f"a float pass takes {unit:.3f} s (median of {len(clock.float_seconds)}). Unit: float passes.\n")
    print("| evaluator | first | every choice differs | probe, mean | greedy step, median | greedy step, mean ", end="")
    print("| greedy steps per second |\n|---|---|---|---|---|---|---|")
    for title, first, every, probed, walked in rows:
        cells = [first / unit, median(every) / unit]
        cells += [mean(probed) / unit, median(walked) / unit, mean(walked) / unit, 1 / mean(walked)] if walked else []
        print(f"| {title} | " + " | ".join([f"{c:.2f}" for c in cells] + ["–"] * (6 - len(cells))) + " |")
    print(f"\nScores of both evaluators equal: {scores[0] == scores[1]} ({len(scores[0])} points).")


def workers(name: str, samples: int, candidates: int) -> None:
    r = recipe(name, samples)
    rng = np.random.default_rng(0)
    batches = [[tuple(int(rng.integers(len(c.options))) for c in r.space) for _ in range(candidates)] for _ in range(3)]
    print(f"# Worker processes: {name}, {samples} samples, {candidates} random points, {available_cores()} cores\n")
    print("| executor | start and first batch, s | later batches, points per second |\n|---|---|---|")
    scores = []
    for title, executor in (
        ("serial", Serial()),
        *((f"process, {n} workers", Process(n, start_seconds=0.0)) for n in (2, 4)),
    ):
        opened = executor.open(replace(r, kind=EvaluatorKind.INTEGER))
        times = []
        for batch in batches:
            before = time.perf_counter()
            scores.append(list(opened(batch)))
            times.append(time.perf_counter() - before)
        opened.close()
        print(f"| {title} | {times[0]:.2f} | {candidates * (len(times) - 1) / sum(times[1:]):.2f} |")
    same = all(scores[i] == scores[i % len(batches)] for i in range(len(scores)))
    print(f"\nScores equal: {same}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    for name in ("cost", "workers"):
        timed = parts.add_parser(name)
        timed.add_argument("--model", default="imagenet_efficientnet_lite0")
        timed.add_argument("--samples", type=int, default=128)
        timed.add_argument("--candidates", type=int, default=16)
    compared = parts.add_parser("compare")
    compared.add_argument("folder", type=Path)
    compared.add_argument("--models", nargs="+", choices=MODELS, default=())
    compared.add_argument("--devices", nargs="+", choices=DEVICES, default=())
    compared.add_argument("--searches", nargs="+", choices=SEARCHES, default=())
    compared.add_argument("--plot", type=Path)
    options = parser.parse_args()
    if options.part == "compare":
        compare(options.folder, ZOO, options.models, options.devices, searches=options.searches, plot=options.plot)
        return
    (cost if options.part == "cost" else workers)(options.model, options.samples, options.candidates)


if __name__ == "__main__":
    main()
