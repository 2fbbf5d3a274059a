"""Measure the forms of one plan side by side: bytes, seconds to write, latency, elements that differ.

    python benchmarks/formats.py --zoo FOLDER --out benchmarks/results/formats.md

Each model is quantized once per device and written in every form; latencies are of one sample on one thread, medians of
what the run itself measures. ONNX forms are run by onnxruntime, C is compiled by the system's compiler with -O2,
.tflite files are run by those kernels of LiteRT that their device describes, QONNX by its package, which is not timed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import quantpipe
from quantpipe.app.files import asset
from quantpipe.realize import BACKENDS

RUNS = 30
CASES = (
    ("digits", "ort_cpu", ("qdq", "qoperator", "integer", "c")),
    ("digits", "tflite_int8", ("integer", "qdq", "c", "tflite")),
    ("digits", "tflite_xnnpack", ("integer", "tflite")),
    ("digits", "tflite_16x8", ("integer", "tflite", "c")),
    ("digits", "vta", ("integer", "qdq", "c", "qonnx")),
    ("cifar10_resnet20", "ort_cpu", ("qdq", "qoperator", "integer", "c")),
    ("cifar10_resnet20", "cmsis_nn", ("integer", "c")),
    ("cifar10_resnet20", "tflite_xnnpack", ("integer", "tflite", "c")),
    ("cifar10_resnet20", "vta", ("integer", "qonnx")),
    ("imagenet_efficientnet_lite0", "ort_cpu", ("qdq", "integer", "c")),
    ("imagenet_efficientnet_lite0", "tflite_xnnpack", ("integer", "tflite", "c")),
)
"""Model, device, forms."""
HEAD = ("model", "device", "form", "file", "bytes", "written in", "latency", "elements", "differing")


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--zoo", type=Path, help="folder with models/ and data/; without it only digits is measured")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/formats.md"))
    parser.add_argument("--samples", type=int, default=64, help="samples that every form is compared on")
    parser.add_argument("--models", nargs="*", help="only these")
    given = parser.parse_args()
    rows = [
        row
        for model, device, forms in CASES
        if (model == "digits" or given.zoo) and (not given.models or model in given.models)
        for row in measured(model, device, forms, given.zoo, given.samples)
    ]
    given.out.write_text(page(rows), encoding="utf-8")


def measured(model: str, device: str, forms: Sequence[str], zoo: Path | None, samples: int) -> Iterator[list[str]]:
    """Yield a row per form of one model on one device."""
    path, data = source(model, zoo)
    start = time.perf_counter()
    sizes = {"agreement_samples": samples, "layer_samples": 1, "latency_runs": RUNS}
    result = quantpipe.quantize(path, data, device, realize=list(forms), evaluate=sizes, verify="warn")
    whole = time.perf_counter() - start
    for row in result.report["forms"]:
        file = result.folder / "realize" / row["file"]
        ms = latency(file, data) if row["form"] in BACKENDS else row["latency_ms"]
        yield [
            model,
            device,
            row["form"] + ("" if row["exact"] else " (for other tools)"),
            row["file"],
            f"{row['bytes']:,}",
            f"{row['seconds']:.2f} s",
            "" if ms is None else f"{ms:.3g} ms",
            f"{row['elements']:,}",
            f"{row['differing']:,}" + others(row["facts"]),
        ]
    yield [model, device, "all", "", "", "", "", f"the whole run: {whole:.0f} s", ""]


def others(facts: dict[str, Any]) -> str:
    """What differs as other kernels run the same file."""
    found = [f"{key.removeprefix('differing_')}: {v:,}" for key, v in facts.items() if key.startswith("differing_")]
    return f" ({', '.join(found)})" if found else ""


def source(model: str, zoo: Path | None) -> tuple[Path, Any]:
    """The file of a model, and samples that it takes."""
    if model == "digits":
        from sklearn.datasets import load_digits

        images = load_digits().images
        return Path(asset("digits.onnx")), (images[:600, None] / 16).astype(np.float32)
    path = (zoo or Path()) / "models" / f"{model}.onnx"
    if model.startswith("cifar10"):
        with np.load((zoo or Path()) / "data" / "cifar10_val.npz") as archive:
            images = next(archive[k] for k in archive.files if archive[k].ndim == 4)[:400]
        mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
        return path, ((images / np.float32(255) - mean) / std).transpose(0, 3, 1, 2)
    noise = np.random.default_rng(0).standard_normal(
        (160, 3, 7, 7)
    )  # coarse noise: what is timed does not depend on it
    return path, np.kron(noise, np.ones((1, 1, 32, 32))).astype(np.float32)


def latency(file: Path, data: Any) -> float:
    """Milliseconds of one sample on one thread, the median."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(str(file), options)
    feeds = {session.get_inputs()[0].name: data[:1]}
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - start)
    return 1000 * float(np.median(times))


def page(rows: Sequence[Sequence[str]]) -> str:
    """The table as Markdown."""
    lines = [
        "# Forms of one plan",
        "",
        f"Made by `python benchmarks/formats.py`, quantpipe {quantpipe.__version__}, onnxruntime {ort.__version__}, "
        "one thread. *Written in* is what the run took to make a file of the plan; *differing* counts elements of all "
        "integer tensors that differ from the simulated model, in brackets as the other kernels of LiteRT run the "
        "file on its first samples. Q/DQ for other tools is run by onnxruntime in float32.",
        "",
        "| " + " | ".join(HEAD) + " |",
        "|" + "---|" * len(HEAD),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
