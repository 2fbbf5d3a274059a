"""Float islands of transformers on onnxruntime's CPU provider: which of the ways that the device has is the fastest.

    QUANTPIPE_ENCODER=FOLDER python benchmarks/islands.py > benchmarks/results/islands.md    # else digits_vit alone

Each row is the realized model of a whole run, timed in turns with the one of `hardware=ort_cpu` as it is, one thread;
the ratio is the median of the turns. What is as fast or faster in float is declared so in conf/hardware/ort_cpu.yaml.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import quantpipe
from quantpipe.app import compose
from quantpipe.data import DigitsDataset

TURNS = 60
BOTH = [{"in": ["uint8"], "out": ["uint8"]}, {"in": ["float32"], "out": ["float32"]}]


def devices() -> dict[str, dict[str, Any]]:
    """Return the device as it is, and with one op done in the other way."""
    shipped = dict(compose.option("hardware", "ort_cpu"))
    product = [
        row
        for row in shipped["ops"]["MatMul"]
        if row.get("when") != {"operands": "activations"} or row["in"] != ["float32"]
    ]
    changed = {
        "as shipped": {},
        "Gelu in integers": {"Gelu": BOTH},
        "additions in float": {"Add": BOTH[1:]},
        "products of two activations in integers": {"MatMul": product},
    }
    return {name: {**shipped, "ops": {**shipped["ops"], **ops}} for name, ops in changed.items()}


def session(path: Path) -> ort.InferenceSession:
    """Open a model with one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def part(title: str, model: Path, samples: Any, feeds: Mapping[str, Mapping[str, Any]]) -> None:
    """Print one model: a row per device, times per batch."""
    sessions, quality = {"float model": session(model)}, {"float model": "–"}
    for name, device in devices().items():
        options: dict[str, Any] = {"recover": "none", "precision": "none"}
        with tempfile.TemporaryDirectory() as folder:
            found = quantpipe.quantize(
                model, samples, device, folder=folder, evaluate={"agreement_samples": 4, "latency_runs": 1}, **options
            )
            sessions[name] = session(found.model_path)
            quality[name] = f"{found.report['metrics']['realized']['sqnr_db']:.1f} dB"
    print(f"\n## {title}\n")
    heads = [text for name in feeds for text in (f"{name}, ms", "ratio")]
    print(f"| | SQNR | {' | '.join(heads)} |\n|---|---|{'---|' * len(heads)}")
    cells: dict[str, list[str]] = {name: [] for name in sessions}
    for feed in feeds.values():
        took: dict[str, list[float]] = {name: [] for name in sessions}
        for _ in range(TURNS):
            for name, opened in sessions.items():
                start = time.perf_counter()
                opened.run(None, dict(feed))
                took[name].append(time.perf_counter() - start)
        for name, found in took.items():
            ratio = float(np.median(np.array(found) / np.array(took["as shipped"])))
            cells[name] += [f"{np.percentile(found, 20) * 1e3:.3f}", f"{ratio:.2f}"]
    for name, row in cells.items():
        print(f"| {name} | {quality[name]} | {' | '.join(row)} |", flush=True)


def main() -> None:
    """Print both models."""
    warnings.simplefilter("ignore", quantpipe.QuantpipeWarning)
    print("# Float islands of transformers on onnxruntime\n")
    print(f"`python benchmarks/islands.py`, onnxruntime {ort.__version__}, one thread, precision=none, no recovery.")
    digits = DigitsDataset()
    images = np.random.default_rng(0).random((32, 1, 8, 8)).astype(np.float32)
    feeds = {f"batch {n}": {"image": images[:n]} for n in (1, 32)}
    part("The digits vision transformer", Path(str(files("quantpipe.assets") / "digits_vit.onnx")), digits, feeds)
    folder = os.environ.get("QUANTPIPE_ENCODER")
    if folder is None:
        return
    sets = [{k: v[:32] for k, v in np.load(Path(folder) / f"full.{s}.npz").items()} for s in ("cal", "val")]
    feeds = {f"batch {n}": {k: v[:n] for k, v in sets[1].items()} for n in (1, 8)}
    samples = quantpipe.SampleSets(calibrate=sets[0], evaluate=sets[1])
    part("A sentence encoder, 32 tokens", Path(folder) / "embed_ts.onnx", samples, feeds)


if __name__ == "__main__":
    main()
