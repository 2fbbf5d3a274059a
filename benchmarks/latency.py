"""Latency of the realized model against the float model and against onnxruntime's own quantizer, batch 1.

All three sessions run in turn, so that the machine's drift hits them alike; the table gives medians and the median of
the pairwise ratios. Accuracy is measured on the same validation images.

    python benchmarks/latency.py [--threads N] [--runs N]
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import onnx
import onnxruntime as ort
import yaml
from machine import processor
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.calibrate.estimators import MSE
from quantpipe.calibrate.measure import measure
from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.data.sources.image_folder import ImageFolderDataset
from quantpipe.data.sources.npz import NpzDataset
from quantpipe.graph.io import model_bytes
from quantpipe.hardware.load import load_hardware
from quantpipe.hardware.schemas import resolve_schema
from quantpipe.intake.load import load_graph
from quantpipe.pipeline.stages import annotate, realize
from quantpipe.plan import Planner

ROOT = Path(__file__).resolve().parents[1]
ZOO = Path(os.environ.get("QUANTPIPE_ZOO", ROOT.parent / "shared" / "zoo"))
CIFAR = {"scale": "1/255", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "layout": "NCHW"}
IMAGENET = {"scale": 1, "mean": 127, "std": 128, "layout": "NCHW"}


def option(name: str) -> Any:
    """One option of a configuration group."""
    return yaml.safe_load((ROOT / "conf" / f"{name}.yaml").read_text())


def datasets() -> dict[str, Any]:
    samples = {"calibrate": 128, "search": 16, "evaluate": None}
    data = ZOO / "data"
    return {
        "cifar10_resnet20": NpzDataset(
            calibrate={"path": str(data / "cifar10_calib.npz")},
            evaluate={"path": str(data / "cifar10_val.npz")},
            samples=samples,
            preprocess=CIFAR,
        ),
        "imagenet_efficientnet_lite0": ImageFolderDataset(
            calibrate={"path": str(data / "imagenet/calib")},
            evaluate={"path": str(data / "imagenet/val")},
            labels=str(data / "imagenet/labels.csv"),
            samples=samples,
            preprocess=IMAGENET,
        ),
    }


def ours(name: str, dataset: Any) -> tuple[Any, Any, bytes]:
    """(graph, splits, realized model) of hardware=ort_cpu with every default."""
    made = []

    def example(raw: Any) -> Any:
        made.append(dataset.splits(raw.inputs, None, 0))
        return next(iter(made[0].calibrate.batches(4))).inputs

    graph = load_graph(ZOO / "models" / f"{name}.onnx", example)
    spec = load_hardware(option("hardware/ort_cpu"))
    schema = resolve_schema(spec, option("schema/asymmetric"), {})
    topology, space = annotate(graph, spec, schema, AnnotateOptions())
    profile = measure(graph, topology.measured, made[0].calibrate, 1024)
    table = ThresholdTable(graph, topology, schema, profile, estimator=MSE(), weight_method="mse")
    plan = Planner(graph, topology, spec, schema).plan(table.strategy(space.decode(space.start)))
    return graph, made[0], model_bytes(realize(graph, topology, plan, "qdq", here=True).model)


class Reader(CalibrationDataReader):
    """Feeds the same calibration images to onnxruntime's quantizer."""

    def __init__(self, samples: Any) -> None:
        self._batches = samples.batches(8)

    def get_next(self) -> Any:
        batch = next(self._batches, None)
        return None if batch is None else batch.inputs


def theirs(name: str, samples: Any) -> bytes:
    """onnxruntime.quantization with uint8 activations, int8 per-channel weights, min-max: its fastest form on this
    CPU."""
    with tempfile.TemporaryDirectory() as folder:
        prepared, target = Path(folder) / "prepared.onnx", Path(folder) / "int8.onnx"
        quant_pre_process(str(ZOO / "models" / f"{name}.onnx"), str(prepared))
        quantize_static(
            str(prepared),
            str(target),
            Reader(samples),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
        )
        return onnx.load(target).SerializeToString()


def session(model: bytes, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def interleaved(sessions: list[ort.InferenceSession], feeds: dict[str, Any], runs: int) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in sessions]
    for turn in range(runs + 5):
        for found, one in zip(times, sessions, strict=True):
            before = time.perf_counter()
            one.run(None, feeds)
            if turn >= 5:
                found.append(time.perf_counter() - before)
    return times


def accuracy(one: ort.InferenceSession, samples: Any) -> float:
    right = sum(int((one.run(None, b.inputs)[0].argmax(1) == b.labels).sum()) for b in samples.batches(16))
    return right / len(samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=300)
    options = parser.parse_args()
    print("# Latency at batch 1\n")
    print(f"onnxruntime {ort.__version__}, Python {platform.python_version()}, {options.threads} thread(s),")
    print(f"{processor()},")
    print(f"{options.runs} interleaved runs, medians; ratio: median of pairwise ratios to the float model.\n")
    print("| model | form | ms | ratio to float | top-1 | KiB |\n|---|---|---|---|---|---|")
    for name, dataset in datasets().items():
        graph, splits, realized = ours(name, dataset)
        forms = {
            "float": model_bytes(graph.model),
            "quantpipe, hardware=ort_cpu": realized,
            "onnxruntime.quantization, uint8 min-max": theirs(name, splits.calibrate),
        }
        sessions = [session(m, options.threads) for m in forms.values()]
        feeds = next(iter(splits.evaluate.batches(1))).inputs
        times = interleaved(sessions, feeds, options.runs)
        for (form, model), found, one in zip(forms.items(), times, sessions, strict=True):
            ratio = median(b / a for a, b in zip(times[0], found, strict=True))
            top1 = accuracy(one, splits.evaluate)
            print(
                f"| {name} | {form} | {1e3 * median(found):.3f} | {ratio:.3f} | {top1:.4f} | {len(model) / 1024:.0f} |"
            )


if __name__ == "__main__":
    main()
