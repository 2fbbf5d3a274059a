"""Accuracy recovery on the models of the zoo: top-1 and KL before and after, seconds, float passes, peak memory.

Each line is a process of its own, so that its peak memory is its own. Samples: 128 images for calibration; the search
split (which judges the steps) is taken from the rest of the calibration set where there is a rest, else the first 96
images calibrate and the last 32 judge. Top-1 on the validation images, which play no part before.

    python benchmarks/recovery.py [--models NAME ...] [--settings NAME ...] > benchmarks/results/recovery.md
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import yaml

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.calibrate.estimators import MSE
from quantpipe.calibrate.table import ThresholdTable
from quantpipe.data.image_folder import ImageFolderDataset
from quantpipe.data.npz import NpzDataset
from quantpipe.evaluate.reference import outputs_of
from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import load_graph
from quantpipe.hardware.load import load_hardware
from quantpipe.hardware.schemas import resolve_schema
from quantpipe.plan import NO_OVERRIDES
from quantpipe.recover import RecoverOptions
from quantpipe.stages import annotate, calibrate, float_pass, plan_of, realize, recover

ROOT = Path(__file__).resolve().parents[1]
ZOO = Path(os.environ.get("QUANTPIPE_ZOO", ROOT.parent / "shared" / "zoo"))
CIFAR = {"scale": "1/255", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "layout": "NCHW"}
IMAGENET = {"scale": 1, "mean": 127, "std": 128, "layout": "NCHW"}
MODELS = ("cifar10_resnet20", "imagenet_efficientnet_lite0")
SETTINGS = {
    "W8A8 per tensor, powers of two (vta)": ("vta", "symmetric_with_power2_scale", "integer", 8),
    "W4A8, weights per channel (ort_cpu)": ("ort_cpu", "asymmetric", "qdq", 4),
}
MEMORY_MB = 512


def option(name: str) -> Any:
    """One option of a configuration group."""
    return yaml.safe_load((ROOT / "conf" / f"{name}.yaml").read_text())


def dataset(model: str) -> Any:
    data = ZOO / "data"
    if model == "cifar10_resnet20":
        return NpzDataset(
            calibrate={"path": str(data / "cifar10_calib.npz")},
            evaluate={"path": str(data / "cifar10_val.npz")},
            samples={"calibrate": 128, "search": 128, "evaluate": None},
            preprocess=CIFAR,
        )
    return ImageFolderDataset(
        calibrate={"path": str(data / "imagenet/calib")},
        evaluate={"path": str(data / "imagenet/val")},
        labels=str(data / "imagenet/labels.csv"),
        samples={"calibrate": 96, "search": 32, "evaluate": None},
        preprocess=IMAGENET,
    )


def right(model: Any, samples: Any, size: int) -> int:
    """How many validation images are classified right."""
    labels = np.concatenate([b.labels for b in samples.batches(size)])
    return int((outputs_of(Session(model), samples, size).argmax(axis=1) == labels).sum())


def one(model: str, setting: str) -> dict[str, Any]:
    """One line of the table."""
    made: list[Any] = []

    def example(raw: Any) -> Any:
        made.append(dataset(model).splits(raw.inputs, None, 0))
        return next(iter(made[0].calibrate.batches(4))).inputs

    graph = load_graph(ZOO / "models" / f"{model}.onnx", example)
    splits = made[0]
    hardware, schema_name, backend, bits = SETTINGS[setting]
    data = option(f"hardware/{hardware}")
    data["weights"]["bits"] = bits
    spec = load_hardware(data)
    schema = resolve_schema(spec, option(f"schema/{schema_name}"), {})
    topology, space = annotate(graph, spec, schema, AnnotateOptions())
    profile = calibrate(graph, topology, splits.calibrate, MEMORY_MB, lambda *_: None)
    table = ThresholdTable(graph, topology, schema, profile, MSE(), "mse")
    strategy = table.strategy(space.decode(space.start))
    before_rss = peak_mb()
    started = time.perf_counter()
    options = RecoverOptions(**option("recover/default"))
    climbed = recover(
        graph,
        topology,
        spec,
        schema,
        strategy,
        splits.calibrate,
        splits.search,
        options,
        MEMORY_MB,
        0,
        lambda *_: None,
    )
    seconds = time.perf_counter() - started
    after_rss = peak_mb()
    float_seconds = float_pass(graph, splits.calibrate)
    found = {"float": right(graph.model, splits.evaluate, graph.batch_size)}
    for name, overrides in (("before", NO_OVERRIDES), ("after", climbed.overrides)):
        plan = plan_of(graph, topology, spec, schema, strategy, overrides)
        found[name] = right(realize(graph, topology, plan, backend).model, splits.evaluate, graph.batch_size)
    return {
        "samples": [len(splits.calibrate), len(splits.search), len(splits.evaluate)],
        "right": found,
        "steps": list(climbed.steps),
        "seconds": seconds,
        "float_seconds": float_seconds,
        "rss": [before_rss, after_rss],
    }


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def show(model: str, setting: str, line: dict[str, Any]) -> str:
    calibrated, judged, count = line["samples"]
    top1 = [f"{n / count:.4f} ({n})" for n in line["right"].values()]
    kl = " → ".join([f"{line['steps'][0]['kl_before']:.4f}", *(_step(s) for s in line["steps"])])
    passes = line["seconds"] / line["float_seconds"]
    cost = f"{line['seconds']:.1f} | {passes:.0f} | {line['rss'][0]:.0f} → {line['rss'][1]:.0f}"
    return f"| {model} | {setting} | {calibrated}/{judged} | {' | '.join(top1)} of {count} | {kl} | {cost} |"


def _step(step: dict[str, Any]) -> str:
    return f"{step['kl_after']:.4f} ({step['step']}, {step['seconds']:.1f} s{'' if step['kept'] else ', not kept'})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.models[0], options.settings[0])))
        return
    print("# Accuracy recovery, recover=default\n")
    print(f"onnxruntime {ort.__version__}, Python {platform.python_version()}, {os.cpu_count()} CPUs, ", end="")
    print(f"calibrate.memory_mb={MEMORY_MB}, threshold=mse, seed 0. Samples: calibration/search split.")
    print(
        "KL on the search split; seconds of all steps with their measurements; float passes: seconds over one pass of"
    )
    print("the float model over the calibration images; peak RSS of the process before recovery and after it.\n")
    print("| model | setting | samples | float top-1 | before | after | KL | s | float passes | peak RSS, MiB |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for model in options.models:
        for setting in options.settings:
            command = [sys.executable, __file__, "--one", "--models", model, "--settings", setting]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            print(show(model, setting, json.loads(done.stdout)), flush=True)


if __name__ == "__main__":
    main()
