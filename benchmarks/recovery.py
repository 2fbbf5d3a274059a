"""Accuracy recovery on the models of the zoo: top-1 and KL before and after, seconds, float passes, peak memory.

Each line is a process of its own, so that its peak memory is its own. The search split, which judges the steps, is a
seeded quarter of the calibration set (at most 128 images); `--calibration N` images, at most, are taken from the rest.
Top-1 on the validation images, which play no part before, with its 95 % interval (Wilson), and image by image against
the float model: how many were lost and won, and the probability of so uneven a split if both were as good (exact sign
test). With several `--seeds` a line for each, and their means.

    python benchmarks/recovery.py [--models NAME ...] [--settings NAME ...] [--calibration N ...] [--steps NAME ...]
        [--seeds N ...] > benchmarks/results/recovery.md
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import platform
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import yaml
from numpy.typing import NDArray

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.calibrate.estimators import MSE
from quantpipe.calibrate.measure import measure
from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.data.sources.image_folder import ImageFolderDataset
from quantpipe.data.sources.npz import NpzDataset
from quantpipe.graph.execute import Session, pairs_saturate
from quantpipe.graph.view import Graph
from quantpipe.hardware.load import load_hardware
from quantpipe.hardware.schemas import resolve_schema
from quantpipe.intake.load import load_graph
from quantpipe.metrics.reference import outputs_of
from quantpipe.pipeline.stages import (
    Holdout,
    RecoverySettings,
    SearchedStrategy,
    annotate,
    float_pass,
    realize,
    recover,
)
from quantpipe.plan import NO_OVERRIDES, Problem
from quantpipe.recover import RecoverOptions, rescale_channels
from quantpipe.types import HardwareSpec, Profile, Schema, Strategy, Topology

ROOT = Path(__file__).resolve().parents[1]
ZOO = Path(os.environ.get("QUANTPIPE_ZOO", ROOT.parent / "shared" / "zoo"))
CIFAR = {"scale": "1/255", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "layout": "NCHW"}
IMAGENET = {"scale": 1, "mean": 127, "std": 128, "layout": "NCHW"}
MODELS = ("cifar10_resnet20", "imagenet_efficientnet_lite0")
MODELS_CALIBRATION = {"cifar10_resnet20": 512, "imagenet_efficientnet_lite0": 128}
"""Images in each calibration set."""


@dataclass(frozen=True)
class Setting:
    """A device, a schema, the output form, and bits; `image_bits`: those of the model's input, where it has others."""

    hardware: str
    schema: str
    backend: str
    weight_bits: int = 8
    activation_bits: int = 8
    per_tensor: bool = False
    image_bits: int = 0


SETTINGS = {
    "W8A8 per tensor, powers of two (vta)": Setting("vta", "symmetric_with_power2_scale", "integer"),
    "W8A8 per tensor, symmetric (ort_cpu)": Setting("ort_cpu", "symmetric", "qdq", per_tensor=True),
    "W8A8 per channel (ort_cpu)": Setting("ort_cpu", "asymmetric", "qdq"),
    "W4A8, weights per channel (int4_weights)": Setting("int4_weights", "asymmetric", "qdq", weight_bits=4),
    "W4A4, weights per channel (int4_weights)": Setting("int4_weights", "asymmetric", "qdq", 4, 4),
    "W4A4, 8 bits for the image (int4_weights)": Setting("int4_weights", "asymmetric", "qdq", 4, 4, image_bits=8),
}
MEMORY_MB = 512


def option(name: str) -> Any:
    """One option of a configuration group."""
    return yaml.safe_load((ROOT / "conf" / f"{name}.yaml").read_text())


def sizes(model: str, calibration: int) -> dict[str, int | None]:
    """Images per split."""
    there = MODELS_CALIBRATION[model]
    taken = min(calibration, there)
    judges = min(128, there - taken) or taken // 4
    return {"calibrate": min(taken, there - judges), "search": judges, "evaluate": None}


def dataset(model: str, calibration: int = 128) -> Any:
    data, samples = ZOO / "data", sizes(model, calibration)
    if model == "cifar10_resnet20":
        return NpzDataset(
            calibrate={"path": str(data / "cifar10_calib.npz")},
            evaluate={"path": str(data / "cifar10_val.npz")},
            samples=samples,
            preprocess=CIFAR,
        )
    return ImageFolderDataset(
        calibrate={"path": str(data / "imagenet/calib")},
        evaluate={"path": str(data / "imagenet/val")},
        labels=str(data / "imagenet/labels.csv"),
        samples=samples,
        preprocess=IMAGENET,
    )


def hits(model: Any, samples: Any, size: int) -> NDArray[np.bool_]:
    """Which validation images are classified right."""
    labels = np.concatenate([b.labels for b in samples.batches(size)])
    return outputs_of(Session(model), samples, size).argmax(axis=1) == labels


def interval(right: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z, share = 1.96, right / count
    middle, half = share + z**2 / (2 * count), z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return (middle - half) / (1 + z**2 / count), (middle + half) / (1 + z**2 / count)


def sign_test(lost: int, won: int) -> float:
    """Probability of a split of lost + won at least as uneven, if either were as likely (two-sided, exact)."""
    count = lost + won
    tail = sum(math.comb(count, k) for k in range(min(lost, won) + 1)) / 2**count
    return min(1.0, 2 * tail)


@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything in front of recovery."""

    graph: Graph
    topology: Topology
    spec: HardwareSpec
    schema: Schema
    splits: Any
    profile: Profile
    strategy: Strategy


def prepared(model: str, setting: str, calibration: int, split: int = 0) -> Prepared:
    """Load, annotate, calibrate; every option as the device has it. `split`: the seed that divides the images."""
    made: list[Any] = []

    def example(raw: Any) -> Any:
        made.append(dataset(model, calibration).splits(raw.inputs, None, split))
        return next(iter(made[0].calibrate.batches(4))).inputs

    graph = load_graph(ZOO / "models" / f"{model}.onnx", example)
    splits = made[0]
    chosen = SETTINGS[setting]
    data, schema_data = option(f"hardware/{chosen.hardware}"), option(f"schema/{chosen.schema}")
    data["weights"]["bits"] = chosen.weight_bits
    data["activations"]["bits"] = max(chosen.activation_bits, chosen.image_bits)
    if chosen.per_tensor:
        schema_data["weights"]["granularity"] = "per_tensor"
    spec = load_hardware(data)
    schema = resolve_schema(spec, schema_data, {})
    topology, space = annotate(graph, spec, schema, AnnotateOptions())
    profile = measure(graph, topology.measured, splits.calibrate, MEMORY_MB)
    table = ThresholdTable(graph, topology, schema, profile, estimator=MSE(), weight_method="mse")
    narrow = {f"bits:{g.key}" for g in topology.groups if chosen.image_bits and graph.inputs[0].name not in g.tensors}
    point = tuple(c.options.index(chosen.activation_bits) if c.key in narrow else 0 for c in space)
    return Prepared(graph, topology, spec, schema, splits, profile, table.strategy(space.decode(point)))


def one(model: str, setting: str, calibration: int, steps: list[str] | None, *, seed: int) -> dict[str, Any]:
    """One line of the table."""
    work = prepared(model, setting, calibration)
    graph, topology, spec, schema, splits = work.graph, work.topology, work.spec, work.schema, work.splits
    before_rss = peak_mb()
    started = time.perf_counter()
    options = RecoverOptions(**option("recover/default") | ({"steps": steps, "kl_target": 0} if steps else {}))
    climbed = recover(
        Problem(graph, topology, spec, schema),
        SearchedStrategy(work.strategy, profile=work.profile),
        splits.calibrate,
        Holdout(splits.search),
        settings=RecoverySettings(options, MEMORY_MB, seed, MSE()),
    )
    seconds = time.perf_counter() - started
    after_rss = peak_mb()
    float_seconds = float_pass(graph, splits.calibrate)
    found = {"float": hits(graph.model, splits.evaluate, graph.batch_size)}
    for name, overrides in (("before", NO_OVERRIDES), ("after", climbed.overrides)):
        network = rescale_channels(graph, topology, overrides.channels, overrides.rotations)
        plan = Problem(*network, spec, schema).plan(work.strategy, overrides)
        found[name] = hits(realize(*network, plan, SETTINGS[setting].backend).model, splits.evaluate, graph.batch_size)
    return {
        "samples": [len(splits.calibrate), len(splits.search), len(splits.evaluate)],
        "right": {name: int(right.sum()) for name, right in found.items()},
        "lost": int((found["float"] & ~found["after"]).sum()),
        "won": int((~found["float"] & found["after"]).sum()),
        "steps": list(climbed.steps),
        "seconds": seconds,
        "float_seconds": float_seconds,
        "rss": [before_rss, after_rss],
    }


def machine() -> str:
    """What figures depend on besides their commands."""
    kernels = "pairs of int8 products added in int16" if pairs_saturate() else "exact sums of int8 products"
    return f"onnxruntime {ort.__version__}, Python {platform.python_version()}, {os.cpu_count()} CPUs ({kernels})"


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def show(model: str, setting: str, seed: int, line: dict[str, Any]) -> str:
    calibrated, judged, count = line["samples"]
    top1 = [f"{n / count:.4f} ({n})" for n in line["right"].values()]
    low, high = interval(line["right"]["after"], count)
    top1[-1] += f" {low:.3f}..{high:.3f}"
    paired = f"-{line['lost']} +{line['won']}, p = {sign_test(line['lost'], line['won']):.2f}"
    kl = " → ".join([f"{line['steps'][0]['kl_before']:.4f}", *(_step(s) for s in line["steps"])])
    passes = line["seconds"] / line["float_seconds"]
    cost = f"{line['seconds']:.1f} | {passes:.0f} | {line['rss'][0]:.0f} → {line['rss'][1]:.0f}"
    which = f"{model} | {setting} | {calibrated}/{judged} | {seed}"
    return f"| {which} | {' | '.join(top1)} of {count} | {paired} | {kl} | {cost} |"


def means(lines: list[dict[str, Any]]) -> str:
    """Over the seeds: top-1 after recovery with its standard error, KL of what was kept, float passes."""
    top1 = np.array([line["right"]["after"] / line["samples"][2] for line in lines])
    kl = [last["kl_after" if last["kept"] else "kl_before"] for last in (line["steps"][-1] for line in lines)]
    passes = [line["seconds"] / line["float_seconds"] for line in lines]
    return (
        f"{top1.mean():.4f} ± {top1.std(ddof=1) / len(top1) ** 0.5:.4f} ({min(top1):.4f} to {max(top1):.4f}), "
        f"KL {np.mean(kl):.4f}, {np.mean(passes):.0f} float passes"
    )


def _step(step: dict[str, Any]) -> str:
    found = "–" if step["kl_after"] is None else f"{step['kl_after']:.4f}"
    return f"{found} ({step['step']}, {step['seconds']:.1f} s{'' if step['kept'] else ', not kept'})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--calibration", nargs="+", type=int, default=[128])
    parser.add_argument("--steps", nargs="+", help="instead of those of recover=default, with recover.kl_target=0")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="of the walks; the samples stay")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        which = options.models[0], options.settings[0], options.calibration[0], options.steps
        print(json.dumps(one(*which, seed=options.seeds[0])))
        return
    print(f"# Accuracy recovery, {f'steps {options.steps}' if options.steps else 'recover=default'}\n")
    print(f"{machine()},")
    print(f"calibrate.memory_mb={MEMORY_MB}, threshold=mse. Samples: calibration/search split.")
    print(
        "KL on the search split; seconds of all steps with their measurements; float passes: seconds over one pass of"
    )
    print("the float model over the calibration images; peak RSS of the process before recovery and after it.\n")
    columns = ["model", "setting", "samples", "seed", "float top-1", "before", "after", "against float", "KL", "s"]
    print(f"| {' | '.join([*columns, 'float passes', 'peak RSS, MiB'])} |")
    print("|---" * (len(columns) + 2) + "|", flush=True)
    together = []
    for model, setting, calibration in itertools.product(options.models, options.settings, options.calibration):
        lines = []
        for seed in options.seeds:
            command = [sys.executable, __file__, "--one", "--models", model, "--settings", setting]
            command += ["--calibration", str(calibration), "--seeds", str(seed)]
            command += ["--steps", *options.steps] if options.steps else []
            lines.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
            print(show(model, setting, seed, lines[-1]), flush=True)
        together.append((f"{model}, {setting}, {calibration} images", lines))
    if len(options.seeds) > 1:
        print("\nMeans over the seeds, standard errors, least to most:\n")
        for name, lines in together:
            print(f"- {name}: top-1 {means(lines)}")


if __name__ == "__main__":
    main()
