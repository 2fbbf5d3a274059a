"""Quantized ONNX files as NNCF writes them, for `command=explain explain.file=FILE`.

It runs where nncf, onnx and onnxruntime are installed; quantpipe need not be. The samples are those of the file that is
given, `images` in an .npz; activations are calibrated on the first of them.

    python benchmarks/foreign_nncf.py MODEL.onnx SAMPLES.npz FOLDER [--preset performance|mixed]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import nncf
import numpy as np
import onnx


def main() -> None:
    """Write FOLDER/nncf.onnx."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("samples", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--preset", choices=["performance", "mixed"], default="performance")
    parser.add_argument("--samples-used", type=int, default=64)
    given = parser.parse_args()
    model = onnx.load(given.model)
    name = model.graph.input[0].name
    images = np.load(given.samples)["images"][: given.samples_used].astype(np.float32)
    data = nncf.Dataset([{name: image[None]} for image in images])
    preset = nncf.QuantizationPreset(given.preset)
    made = nncf.quantize(model, data, preset=preset, subset_size=len(images))
    given.folder.mkdir(parents=True, exist_ok=True)
    onnx.save(made, given.folder / f"nncf_{given.preset}.onnx")


if __name__ == "__main__":
    main()
