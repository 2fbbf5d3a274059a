"""Weights in blocks: what they lose and cost beside onnxruntime's MatMulNBits quantizer, and beside scales per channel.

Two parts. A sentence encoder (QUANTPIPE_ENCODER: a folder with `embed_ts.onnx`, `full.cal.npz` and `full.val.npz`,
benchmarks/README.md) with weights alone in integers, in blocks of 32, run by plain onnxruntime sessions. And
EfficientNet-Lite0 (QUANTPIPE_ZOO) on `npu_w4_blocks`, whose blocks have integer multipliers, beside the same device
with one scale per channel.

    QUANTPIPE_ENCODER=FOLDER python benchmarks/blocks.py --part encoder > benchmarks/results/blocks.md
    python benchmarks/blocks.py --part net > benchmarks/results/blocks_net.md
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer
from recovery import ZOO, dataset
from tables import Feeds, session

import quantpipe
from quantpipe.app import compose
from quantpipe.types import TensorInfo

Array = np.ndarray[Any, Any]
ENCODER = "embed_ts.onnx"
NET = "imagenet_efficientnet_lite0"
IMAGES = 96
"""Evaluated, as the integer form of a device that is not here runs slowly on a CPU."""

OURS: Mapping[str, dict[str, Any]] = {
    "4 bits": {},
    "4 bits, zero points": {"weights": {"symmetric": False}, "schema": "asymmetric"},
    "8 bits": {"weights": {"bits": 8}},
}
THEIRS = {
    "4 bits": (4, True, 1),
    "4 bits, zero points": (4, False, 1),
    "4 bits, zero points, activations rounded to int8 (its default)": (4, False, 4),
    "8 bits": (8, True, 1),
}
"""Bits, whether symmetric, and the accuracy level."""
TURNS, RUNS = 9, 21


def sqnr(wanted: Array, found: Array) -> float:
    """In dB, over all elements."""
    noise = np.square((found - wanted).astype(np.float64)).sum()
    return float(10 * np.log10(np.square(wanted.astype(np.float64)).sum() / noise))


def theirs(model: onnx.ModelProto, bits: int, symmetric: bool, level: int) -> onnx.ModelProto:
    """Return what onnxruntime's own quantizer makes of the float model, rounding to the nearest."""
    config = DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=symmetric, accuracy_level=level, bits=bits)
    tool = MatMulNBitsQuantizer(copy.deepcopy(model), algo_config=config)
    tool.process()
    return tool.model.model


@dataclass(frozen=True)
class Made:
    """A file with what its row says of it beside what is measured at the end."""

    name: str
    path: Path
    differing: str = ""
    passes: str = ""


def encoder(folder: Path, kept: Path) -> None:
    """One row for each file: bytes, SQNR of both outputs, latency of a sentence, and what recovery took."""
    calibrate, evaluate = (dict(np.load(folder / f"full.{split}.npz")) for split in ("cal", "val"))
    files = list(made(folder, kept, calibrate, evaluate))
    sessions = {f.name: session(str(f.path)) for f in files}
    names = {i.name for i in sessions["float model"].get_inputs()}
    feeds: Feeds = {k: v for k, v in evaluate.items() if k in names}
    found = {name: running.run(None, feeds) for name, running in sessions.items()}
    wanted, sentence = found["float model"], {k: v[:1] for k, v in feeds.items()}
    took: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(TURNS):
        for name, running in sessions.items():
            took[name].append(middle(running, sentence))
    print(f"## A sentence encoder (all-MiniLM-L6-v2)\n\n{len(wanted[0])} sentences of 32 tokens that were not seen.")
    print(f"Latency: one sentence, one thread, {TURNS} turns of {RUNS} runs in which all files take part one after the")
    print("other: median of the turns' medians, and the least and the greatest of them. `differing`: elements of the")
    print("outputs beyond the bounds of float32's rounding between simulated and realized model. Passes: seconds of")
    print("recovery over one pass of the float model over the 96 calibration samples.\n")
    print("| weights | file | SQNR, embedding | SQNR, tokens | latency, ms | differing | recovery, passes |")
    print("|---|---|---|---|---|---|---|")
    for file in files:
        lost = " | ".join(
            "–" if np.array_equal(a, b) else f"{sqnr(a, b):.1f} dB"
            for a, b in zip(wanted, found[file.name], strict=True)
        )
        times = took[file.name]
        latency = f"{statistics.median(times):.1f} ({min(times):.1f} – {max(times):.1f})"
        size = f"{file.path.stat().st_size / 1e6:.1f} MB"
        print(f"| {file.name} | {size} | {lost} | {latency} | {file.differing} | {file.passes} |", flush=True)


def middle(running: ort.InferenceSession, feeds: Feeds) -> float:
    """Return the median of some runs, in milliseconds."""
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        running.run(None, feeds)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:]) * 1e3


def made(folder: Path, kept: Path, calibrate: Feeds, evaluate: Feeds) -> Iterator[Made]:
    """Yield the files that are compared; what `kept` holds already is not made again."""
    model = onnx.load(folder / ENCODER)
    used = {i.name for i in model.graph.input}
    yield Made("float model", folder / ENCODER)
    for name, tool in THEIRS.items():
        path = kept / f"{name}.onnx"
        if not path.is_file():
            onnx.save(theirs(model, *tool), path)
        yield Made(f"onnxruntime, {name}", path)
    for name, change in OURS.items():
        for recover in ("none", "default"):
            run = kept / f"{name}, recover={recover}"
            if not (run / "passes.txt").is_file():
                hardware = compose.option("hardware", "ort_matmul_nbits")
                one = float_pass(folder / ENCODER, {k: v for k, v in calibrate.items() if k in used})
                result = quantpipe.quantize(
                    folder / ENCODER,
                    quantpipe.SampleSets(calibrate=calibrate, evaluate=evaluate),
                    hardware | {"weights": hardware["weights"] | change.get("weights", {})},
                    schema=change.get("schema", "auto"),
                    recover=recover,
                    folder=run,
                )
                (run / "passes.txt").write_text(passes_of(result.report, one))
            agreement = json.loads((run / "evaluate" / "report.json").read_text())["agreement"]
            yield Made(
                f"quantpipe, {name}" + (", recover=default" if recover == "default" else ""),
                run / "realize" / "model.onnx",
                f"{agreement['differing']} of {agreement['elements']:,}",
                (run / "passes.txt").read_text(),
            )


def passes_of(report: Mapping[str, Any], one: float) -> str:
    """Seconds of recovery's steps, with their measurements, over those of a float pass."""
    seconds = sum(step["seconds"] for step in report.get("recover") or ())
    return f"{seconds:.0f} s, {seconds / one:.0f}" if seconds else ""


def float_pass(model: Path, feeds: Feeds, size: int = 8) -> float:
    """Seconds of the float model over samples, batch by batch, all cores."""
    running = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    count = len(next(iter(feeds.values())))
    running.run(None, {k: v[:size] for k, v in feeds.items()})
    began = time.perf_counter()
    for first in range(0, count, size):
        running.run(None, {k: v[first : first + size] for k, v in feeds.items()})
    return time.perf_counter() - began


def net() -> None:
    """The same device with and without blocks, each with recovery."""
    made = dataset(NET)
    float_model = ZOO / "models" / f"{NET}.onnx"
    graph_input = onnx.load(float_model).graph.input[0]
    shape = tuple(d.dim_value or None for d in graph_input.type.tensor_type.shape.dim)
    splits = made.splits([TensorInfo(graph_input.name, shape, "float32")], 1000, 0)

    def arrays(samples: Any, most: int) -> tuple[Array, Array]:
        batches = list(samples.batches(32))
        images = np.concatenate([b.inputs[graph_input.name] for b in batches])[:most]
        return images, np.concatenate([b.labels for b in batches])[:most]

    fitted = np.concatenate([arrays(splits.calibrate, 96)[0], arrays(splits.search, 32)[0]])
    evaluate = arrays(splits.evaluate, IMAGES)
    one = float_pass(float_model, {graph_input.name: fitted})
    print(f"## EfficientNet-Lite0 on npu_w4_blocks\n\n{len(fitted)} calibration images, {IMAGES} that are evaluated.\n")
    print("| weights of 4 bits | top-1, float | top-1 | SQNR | KL, before → after | differing | recovery, passes |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        for name, block in (("a scale per channel", None), ("blocks of 32 channels, multipliers of 4 bits", True)):
            hardware = compose.option("hardware", "npu_w4_blocks")
            if not block:
                hardware = hardware | {"weights": hardware["weights"] | {"block": None}}
            result = quantpipe.quantize(
                float_model,
                quantpipe.SampleSets(calibrate=fitted, evaluate=evaluate),
                hardware,
                recover="default",
                folder=Path(place) / name.split()[0],
            )
            report = result.report
            metrics, steps = report["metrics"], report["recover"]
            kl = f"{steps[0]['kl_before']:.3f} → {min(s['kl_after'] or s['kl_before'] for s in steps):.3f}"
            agreement = report["agreement"]
            print(
                f"| {name} | {metrics['float']['top1']:.3f} | {metrics['realized']['top1']:.3f} | "
                f"{metrics['realized']['sqnr_db']:.1f} dB | {kl} | {agreement['differing']} of "
                f"{agreement['elements']:,} | {passes_of(report, one)} |",
                flush=True,
            )


def main() -> None:
    """Print one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["encoder", "net"], required=True)
    parser.add_argument("--keep", type=Path, help="the encoder's files and runs stay here, and are not made again")
    given = parser.parse_args()
    keep = " --keep FOLDER" if given.keep is not None else ""
    print("# Weights in blocks\n")
    print(f"`python benchmarks/blocks.py --part {given.part}{keep}`, onnxruntime {ort.__version__}.\n")
    if given.part == "net":
        net()
        return
    folder = os.environ.get("QUANTPIPE_ENCODER")
    if folder is None:
        parser.error("QUANTPIPE_ENCODER names no folder with a sentence encoder")
    with tempfile.TemporaryDirectory() as place:
        kept = given.keep or Path(place)
        kept.mkdir(parents=True, exist_ok=True)
        encoder(Path(folder), kept)


if __name__ == "__main__":
    main()
