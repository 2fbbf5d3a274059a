"""Transformers wholly in integers: a real sentence encoder and the digits vision transformer, device by device.

Each row is a run of the whole line: how many nodes that compute real numbers stay in float, what the integer model's
outputs are beside the float model's on the evaluation samples, and how many elements differ between the simulated and
the realized model. The encoder (two exports of all-MiniLM-L6-v2, with masked attention and mean pooling) is read from
the folder that QUANTPIPE_ENCODER names (benchmarks/README.md); without it that part is left out.

    QUANTPIPE_ENCODER=FOLDER python benchmarks/transformers.py > benchmarks/results/transformers.md
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import quantpipe
from quantpipe.app import compose
from quantpipe.data import DigitsDataset

NORMS = dict.fromkeys(("LayerNormalization", "RMSNormalization"), "integer_sqrt")
DEVICES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "cmsis_nn": ("cmsis_nn", {}),
    "tflite_int8": ("tflite_int8", {}),
    "tables: tflite_int8 with an integer square root": (
        "tflite_int8",
        {"ops": {"LayerNormalization": [{"in": ["int8"], "out": ["int8"]}]}, "functions": NORMS},
    ),
    "shifts alone: fpga_shift": ("fpga_shift", {}),
    "w8a16: npu_w8a16": ("npu_w8a16", {}),
    "w8a16: qnn_htp": ("qnn_htp", {}),
}
ENCODERS = {"traced (embed_ts)": "embed_ts", "exported (embed_dynamo)": "embed_dynamo"}
SENTENCES = {"without padding": "full", "padded": "padded"}


def device(name: str) -> dict[str, Any]:
    """A shipped file with what a row adds to it."""
    file, more = DEVICES[name]
    found: dict[str, Any] = dict(compose.option("hardware", file))
    for section, added in more.items():
        found[section] = {**(found.get(section) or {}), **added}
    found["functions"] = {op: kind for op, kind in (found.get("functions") or {}).items() if op in declared(found)}
    return found


def declared(data: Mapping[str, Any]) -> set[str]:
    """The ops of a file, lines of several ops taken apart."""
    return {op for line in data["ops"] for op in line.split("|")}


def row(name: str, model: Path, samples: Any, shapes: Mapping[str, list[int]] | None = None, **options: Any) -> None:
    """Print one device: what of the model it runs, and what comes of it."""
    hardware = device(name)
    fit = quantpipe.check(model, hardware, **({"shapes": shapes} if shapes else {}))
    real = [f"{count} {op}" for op, count in Counter(node.op for node in fit.refused).items()]
    found = quantpipe.quantize(
        model, samples, hardware, recover="none", evaluate={"agreement_samples": 16, "latency_runs": 1}, **options
    )
    report = found.report
    own, agreement = report["metrics"], report["agreement"]
    quality = f"{own['realized']['cosine']:.4f} | {own['realized']['sqnr_db']:.1f} dB"
    if own["float"]["top1"] is not None:
        quality = f"{own['float']['top1']:.4f} | {own['realized']['top1']:.4f} | {own['realized']['sqnr_db']:.1f} dB"
    kept = f"{len(fit.refused)}" + (f" ({', '.join(real)})" if real else "")
    equal = f"{agreement['differing']} of {agreement['elements']:,} | {agreement['behind_float']:,}"
    print(f"| {name} | {fit.integer_nodes} | {kept} | {quality} | {equal} |", flush=True)


def main() -> None:
    """Print both parts."""
    print("# Transformers in integers\n")
    print(f"`python benchmarks/transformers.py`, onnxruntime {ort.__version__}, every default, no recovery.\n")
    print(
        "Float nodes are those that compute real numbers; `behind float`: elements that may differ by the rounding of"
    )
    print("float nodes before them.\n\n## The digits vision transformer\n")
    print("| device | integer nodes | float nodes | float top-1 | realized top-1 | SQNR | differing | behind float |")
    print("|---|---|---|---|---|---|---|---|")
    for name in DEVICES:
        row(name, Path(str(files("quantpipe.assets") / "digits_vit.onnx")), DigitsDataset())
    folder = os.environ.get("QUANTPIPE_ENCODER")
    if folder is None:
        print("\nNo sentence encoder: QUANTPIPE_ENCODER names none.")
        return
    for title, file in ENCODERS.items():
        for sentences, part in SENTENCES.items():
            encoder(f"A sentence encoder, {title}, {sentences}", Path(folder) / f"{file}.onnx", part)


def encoder(title: str, model: Path, part: str) -> None:
    """Print a sentence encoder on sentences without padding, or with it."""
    cal, val = (dict(np.load(model.parent / f"{part}.{split}.npz")) for split in ("cal", "val"))
    mask = val["attention_mask"]
    print(f"\n## {title}\n")
    print(f"{len(mask)} sentences of {mask.shape[1]} tokens, {1 - mask.mean():.0%} of them masked.\n")
    print("| device | integer nodes | float nodes | cosine | SQNR | differing | behind float |")
    print("|---|---|---|---|---|---|---|")
    for name in ("w8a16: npu_w8a16", "w8a16: qnn_htp"):
        sets = quantpipe.SampleSets(calibrate=cal, evaluate=val)
        row(name, model, sets, {k: [1, *v.shape[1:]] for k, v in cal.items()})


if __name__ == "__main__":
    main()
