"""Calibration of efficientnet_lite0, side by side with onnxruntime.quantization: memory, seconds, float passes.

Each line is a process of its own, whose peak memory the operating system tells when it has ended. All of them read the
same image files with the same code. Memory is given above that of the plainest process there is: onnxruntime alone,
one session of the model, the same images in batches of 8. Seconds are those of calibration alone (onnxruntime: of
`collect_data` and `compute_data`), float passes are seconds in units of one pass of that session over the same images,
decoding included, timed in the same process just before. 512 samples are the 128 calibration images and 384 of the
validation images: what is measured here is cost, not accuracy. onnxruntime's Entropy and Percentile collect every
activation; they are run only where `--limit-gb` leaves room (measured: 70 MB an image), which the table says.

    python benchmarks/calibration.py [--samples N ...] [--ways NAME ...] > benchmarks/results/calibration.md
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ZOO = Path(os.environ.get("QUANTPIPE_ZOO", ROOT.parent / "shared" / "zoo"))
MODEL = ZOO / "models" / "imagenet_efficientnet_lite0.onnx"
BATCH = 8
BITS = range(2, 9)
COLLECTED_GB = 0.07
"""What onnxruntime's collecting calibrators keep of one image of this model (measured at 32 and 128 images)."""


def files(count: int) -> list[Path]:
    """The calibration images, then the validation images."""
    found = [p for part in ("calib", "val") for p in sorted((ZOO / "data" / "imagenet" / part).rglob("*.jpg"))]
    assert len(found) >= count
    return found[:count]


def batches(paths: list[Path], size: int) -> Iterator[Any]:
    """Images as the model takes them, `[N, 3, 224, 224]` float32."""
    import numpy as np
    from PIL import Image

    for start in range(0, len(paths), size):
        pictures = [np.asarray(Image.open(p).convert("RGB")) for p in paths[start : start + size]]
        yield np.ascontiguousarray((np.stack(pictures).transpose(0, 3, 1, 2).astype(np.float32) - 127) / 128)


class Images:
    """The same as samples of quantpipe."""

    labelled = False

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self.digest = f"{len(paths)} images"

    def __len__(self) -> int:
        return len(self._paths)

    def batches(self, size: int) -> Iterator[Any]:
        import numpy as np

        from quantpipe.types import Batch

        done = 0
        for array in batches(self._paths, size):
            yield Batch({"input": array}, None, np.arange(done, done + len(array)))
            done += len(array)


def float_seconds(paths: list[Path]) -> float:
    """One pass of a plain session, after a short one that warms up."""
    import onnxruntime as ort

    session = ort.InferenceSession(str(MODEL), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    for some in (paths[: 2 * BATCH], paths):
        started = time.perf_counter()
        for array in batches(some, BATCH):
            session.run(None, {name: array})
    return time.perf_counter() - started


def plain(paths: list[Path]) -> dict[str, float]:
    """The float run itself."""
    seconds = float_seconds(paths)
    return {"seconds": seconds, "float": seconds}


def ours(paths: list[Path], extremes_only: bool) -> dict[str, float]:
    """quantpipe: all statistics (or extremes) of all tensors that hardware=ort_cpu quantizes."""
    import yaml

    from quantpipe.annotate.conditions import AnnotateOptions
    from quantpipe.calibrate.measure import Detail, measure
    from quantpipe.hardware.load import load_hardware
    from quantpipe.hardware.schemas import resolve_schema
    from quantpipe.intake.load import load_graph
    from quantpipe.pipeline.stages import annotate

    def option(name: str) -> Any:
        return yaml.safe_load((ROOT / "conf" / f"{name}.yaml").read_text())

    images = Images(paths)
    graph = load_graph(MODEL, lambda raw: {raw.inputs[0].name: next(batches(paths, 4))})
    assert [i.name for i in graph.inputs] == ["input"]
    spec = load_hardware(option("hardware/ort_cpu"))
    schema = resolve_schema(spec, option("schema/asymmetric"), {})
    topology, _ = annotate(graph, spec, schema, AnnotateOptions())
    seconds = float_seconds(paths)
    profile = measure(graph, topology.measured, images, 1024, detail=Detail(extremes_only=extremes_only))
    found = {"seconds": profile.seconds, "float": seconds, "tensors": float(len(profile.tensors))}
    return found if extremes_only else found | {"thresholds": thresholds(profile, schema.activations)}


def thresholds(profile: Any, schema: Any) -> float:
    """Seconds for the ranges of every tensor at 2 to 8 bits by five estimators, from the statistics."""
    from quantpipe.calibrate.estimators import KL, MSE, MaxRange, Percentile, Power2Range

    started = time.perf_counter()
    for estimator in (MaxRange(), Power2Range(), Percentile(), MSE(), KL()):
        for stats in profile.tensors.values():
            for bits in BITS:
                estimator(stats, bits, schema)
    return time.perf_counter() - started


def theirs(paths: list[Path], method: str) -> dict[str, float]:
    """onnxruntime.quantization with its defaults, reading 8 images at a time."""
    import tempfile

    from onnxruntime.quantization import CalibrationDataReader
    from onnxruntime.quantization.calibrate import CalibrationMethod, create_calibrator
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._batches = batches(paths, BATCH)

        def get_next(self) -> Any:
            array = next(self._batches, None)
            return None if array is None else {"input": array}

    with tempfile.TemporaryDirectory() as folder:
        prepared = str(Path(folder) / "prepared.onnx")
        quant_pre_process(str(MODEL), prepared)
        passes = float_seconds(paths)
        started = time.perf_counter()
        calibrator = create_calibrator(
            prepared,
            augmented_model_path=str(Path(folder) / "augmented.onnx"),
            calibrate_method=getattr(CalibrationMethod, method),
        )
        calibrator.collect_data(Reader())
        found = calibrator.compute_data()
        return {"seconds": time.perf_counter() - started, "float": passes, "tensors": float(len(list(found.keys())))}


WAYS = {
    "float": plain,
    "full": lambda paths: ours(paths, False),
    "extremes": lambda paths: ours(paths, True),
    "MinMax": lambda paths: theirs(paths, "MinMax"),
    "Percentile": lambda paths: theirs(paths, "Percentile"),
    "Entropy": lambda paths: theirs(paths, "Entropy"),
}
NAMES = {
    "float": "float run alone",
    "full": "quantpipe, all statistics",
    "extremes": "quantpipe, extremes",
    "MinMax": "onnxruntime MinMax",
    "Percentile": "onnxruntime Percentile",
    "Entropy": "onnxruntime Entropy",
}


def run(way: str, count: int) -> dict[str, float]:
    """One line in a child; its peak memory as the operating system counts it, MiB."""
    command = [sys.executable, __file__, "--child", way, "--samples", str(count)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{way} at {count} samples: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(way: str, count: int, found: dict[str, float], base: float) -> str:
    more = f"{found['rss'] - base:.0f}" if way != "float" else ""
    passes = f"{found['seconds'] / found['float']:.2f}" if way != "float" else "1"
    later = f"{found['thresholds']:.2f}" if "thresholds" in found else ""
    tensors = f"{found['tensors']:.0f}" if "tensors" in found else ""
    cells = [str(count), NAMES[way], tensors, f"{found['rss']:.0f}", more, f"{found['seconds']:.2f}", passes, later]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, nargs="+", default=[32, 128, 512])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--limit-gb", type=float, default=12.0)
    parser.add_argument("--child", choices=WAYS)
    options = parser.parse_args()
    if options.child:
        found = WAYS[options.child](files(options.samples[0]))
        print(json.dumps({**found, "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
        return
    import onnxruntime as ort

    print("# Calibration: efficientnet_lite0\n")
    print(f"onnxruntime {ort.__version__}, Python {platform.python_version()}, {os.cpu_count()} CPUs. See ", end="")
    print("benchmarks/calibration.py for what each column is. Thresholds: five estimators, 2 to 8 bits, all tensors.\n")
    print("| samples | way | tensors | peak RSS, MiB | above the float run | seconds | float passes | thresholds, s |")
    print("|---|---|---|---|---|---|---|---|")
    for count in options.samples:
        base = run("float", count)
        print(row("float", count, base, base["rss"]))
        for way in options.ways:
            if way == "float":
                continue
            if way in ("Percentile", "Entropy") and count * COLLECTED_GB > options.limit_gb:
                need = f"not run: would need about {count * COLLECTED_GB:.0f} GB"
                print(f"| {count} | {NAMES[way]} | | {need} | | | | |")
                continue
            print(row(way, count, run(way, count), base["rss"]), flush=True)


if __name__ == "__main__":
    main()
