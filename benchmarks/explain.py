"""What `command=explain` costs on efficientnet_lite0, in passes of the float model over the samples of the search.

A run on a device with scales that are powers of two, without recovery, is explained for ten culprits. The pass is one
of the float model's own session over the same samples, in the same process, just before. What is measured alone
(tensors, weights, biases) starts from the last cut before it; so do the changes that could mend a culprit.

    python benchmarks/explain.py [--search N] [--hardware NAME] > benchmarks/results/explain.md
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import quantpipe
from quantpipe.data import SampleSets

ROOT = Path(__file__).resolve().parents[1]
ZOO = Path(os.environ.get("QUANTPIPE_ZOO", ROOT.parent / "shared" / "zoo"))
MODEL = ZOO / "models" / "imagenet_efficientnet_lite0.onnx"


def images(part: str, first: int, count: int) -> Any:
    """Images as the model takes them, `[N, 3, 224, 224]` float32."""
    paths = sorted((ZOO / "data" / "imagenet" / part).rglob("*.jpg"))[first : first + count]
    pictures = np.stack([np.asarray(Image.open(p).convert("RGB")) for p in paths])
    return np.ascontiguousarray((pictures.transpose(0, 3, 1, 2).astype(np.float32) - 127) / 128)


class Clock:
    """Seconds of each stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._stage, self._since = "", time.perf_counter()

    def __call__(self, event: Any) -> None:
        if event.total == 0:
            self.close()
            self._stage, self._since = event.stage, time.perf_counter()

    def close(self) -> None:
        if self._stage:
            self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + time.perf_counter() - self._since


def float_pass(samples: Any) -> float:
    """Seconds of one pass of a plain session in batches of eight, after a warm-up."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    session = ort.InferenceSession(str(MODEL), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    session.run(None, {name: samples[:8]})
    begin = time.perf_counter()
    for start in range(0, len(samples), 8):
        session.run(None, {name: samples[start : start + 8]})
    return time.perf_counter() - begin


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--search", type=int, default=128)
    parser.add_argument("--hardware", default="vta")
    given = parser.parse_args(arguments)
    search = images("val", 0, given.search)
    sets = SampleSets(calibrate=images("calib", 0, 64), search=search, evaluate=images("val", given.search, 32))
    with tempfile.TemporaryDirectory() as folder:
        quiet = {"latency_runs": 1, "warn_sqnr_db": None, "agreement_samples": 8, "layer_samples": 8}
        result = quantpipe.quantize(
            MODEL, sets, given.hardware, folder=folder, precision="none", recover="none", executor="serial",
            evaluate=quiet,
        )  # fmt: skip
        once, clock = float_pass(search), Clock()
        answer = quantpipe.explain(result.folder, sets, culprits=10, progress=clock)
        clock.close()
    alone, advice = clock.seconds["alone"], clock.seconds["advice"]
    rows = [row for row in answer["causes"] if row["kind"] in ("tensor", "weight", "bias")]
    changes = len(answer["advice"])
    print(f"# Explain efficientnet_lite0 on {given.hardware}\n")
    print(f"{len(os.sched_getaffinity(0))} cores, {platform.processor() or platform.machine()}.")
    print(
        f"Search: {given.search} images, of which {answer['samples']} for errors alone. One float pass: {once:.2f} s.\n"
    )
    print("| part | measured | seconds | float passes | for ten |\n|---|---|---|---|---|")
    for name, count, seconds in (("errors alone", len(rows), alone), ("changes", changes, advice)):
        passes = seconds / once
        print(f"| {name} | {count} | {seconds:.1f} | {passes:.1f} | {10 * passes / max(count, 1):.2f} |")
    print(f"\nErrors alone in passes by multiply-accumulates, over {answer['samples']} images: {answer['passes']:.1f}.")


if __name__ == "__main__":
    main(sys.argv[1:])
