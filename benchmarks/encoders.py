"""Encoders of other libraries and exporters on a device without real numbers: what stays in float, and what is lost.

A folder holds ONNX files; their inputs are made here: token ids below 100, a mask over two thirds of each row or more,
pictures and features of normal noise. Each file is a row per device: nodes that compute real numbers, the outputs
beside the float model's, elements that differ between the simulated and the realized model.

    python benchmarks/encoders.py FOLDER > benchmarks/results/encoders.md

The rows that are committed are small nets with drawn weights (two layers of 32 features), made by torch 2.13 with
transformers 5.24 (traced, and by torch.export), and by jax2onnx from flax.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import quantpipe
from quantpipe.errors import QuantpipeError

DEVICES = ("npu_w8a16", "qnn_htp")
SAMPLES, BATCH_AXIS = 128, 0


def inputs(model: onnx.ModelProto) -> dict[str, Any]:
    """Return arrays for the inputs of an encoder."""
    rng, found = np.random.default_rng(0), {}
    constants = {t.name for t in model.graph.initializer}
    for port in (p for p in model.graph.input if p.name not in constants):
        shape = [SAMPLES, *(d.dim_value or 16 for d in port.type.tensor_type.shape.dim[1:])]
        if port.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            found[port.name] = rng.normal(size=shape).astype(np.float32)
        elif "mask" in port.name:
            lengths = rng.integers(shape[1] * 2 // 3, shape[1] + 1, size=(SAMPLES, 1))
            found[port.name] = (np.arange(shape[1]) < lengths).astype(np.int64)
        else:
            found[port.name] = rng.integers(3, 100, size=shape)
    return found


def row(path: Path, device: str) -> str:
    """Return one encoder on one device, as a row of the table."""
    arrays = inputs(onnx.load(path, load_external_data=False))
    shapes = {name: [1, *values.shape[1:]] for name, values in arrays.items()}
    fit = quantpipe.check(path, device, shapes=shapes)
    real = [f"{count} {op}" for op, count in Counter(node.op for node in fit.refused).items()]
    options = {"recover": "none", "precision": "none", "evaluate": {"agreement_samples": 8, "latency_runs": 1}}
    report = quantpipe.quantize(path, arrays, device, **options).report
    own, agreement = report["metrics"]["realized"], report["agreement"]
    kept = f"{len(fit.refused)}" + (f" ({', '.join(real)})" if real else "")
    equal = f"{agreement['differing']} of {agreement['elements']:,} | {agreement['behind_float']:,}"
    return f"{fit.integer_nodes} | {kept} | {own['cosine']:.4f} | {own['sqnr_db']:.1f} dB | {equal}"


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore", quantpipe.QuantpipeWarning)
    print("# Encoders of other exporters, in integers\n")
    print(f"`python benchmarks/encoders.py FOLDER`, onnxruntime {ort.__version__}; precision=none, no recovery.\n")
    print("| encoder | device | integer nodes | float nodes | cosine | SQNR | differing | behind float |")
    print("|---|---|---|---|---|---|---|---|")
    for path in sorted(Path(sys.argv[1]).glob("*.onnx")):
        for device in DEVICES:
            try:
                found = row(path, device)
            except QuantpipeError as error:
                found = f"– | – | – | – | {str(error).splitlines()[0][:120]} | –"
            print(f"| {path.stem} | {device} | {found} |", flush=True)


if __name__ == "__main__":
    main()
