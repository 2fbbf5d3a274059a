"""Follow one value of the digits model from pixel to logit, by hand and in onnxruntime (docs/architecture.md).

python benchmarks/one_value.py RUN      # the folder of a finished run with the defaults
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper
from sklearn.datasets import load_digits

run, channel, row, column = sys.argv[1], 3, 3, 3
plan = json.loads(Path(run, "realize", "plan.json").read_text())
model = onnx.load(Path(run, "realize", "model.onnx"))
stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
q_in, q_out, kernel = plan["quantizers"]["image"], plan["quantizers"]["stem.out"], plan["kernels"]["stem.conv"]

image = (load_digits().images[0] / 16).astype(np.float32)
q_x = np.clip(np.rint(image / np.float32(q_in["scale"])) + q_in["zero_point"], *q_in["range"]).astype(int)
window = q_x[row - 1 : row + 2, column - 1 : column + 2]
q_w = stored["stem.bn_out_weight_q"][channel, 0].astype(int)
acc = int(((window - q_in["zero_point"]) * q_w).sum()) + kernel["bias"][channel]
product = np.float32(acc) * np.float32(kernel["requantize"]["multiplier"][channel])
q_y = int(np.clip(np.rint(product) + kernel["requantize"]["zero_point"], *kernel["requantize"]["range"]))
print("by hand", acc, product, q_y, q_y * q_out["scale"])

model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in ("stem.out_q", "pool.out_q"))
session = ort.InferenceSession(model.SerializeToString())
logits, stem, pool = session.run(None, {"image": image[None, None]})
dense, z = plan["kernels"]["classifier"], plan["quantizers"]["pool.out"]["zero_point"]
acc = (pool.reshape(-1).astype(int) - z) @ stored["classifier.weight_q"].astype(int).T + dense["bias"]
print(
    "onnxruntime",
    stem[0, channel, row, column],
    "logit",
    logits[0, 0],
    "by hand",
    acc[0] * dense["accumulator_scale"][0],
)
