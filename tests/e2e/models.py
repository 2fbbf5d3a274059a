"""Small model and data files that end-to-end tests are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quantpipe.data.sources.digits import digits_arrays
from tests.e2e.program import ROOT

DIGITS = ROOT / "quantpipe" / "assets" / "digits.onnx"
SCALED = ("dataset=npz", "dataset.preprocess.scale=1/16")


def npz(path: Path, **changes: Any) -> str:
    """The digits as a file, with some of `images` and `labels` exchanged (None: left out); gives dataset.path=…"""
    images, labels = digits_arrays()
    arrays = {"images": images[:400], "labels": labels[:400], **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return f"dataset.path={path}"


def with_op(path: Path, domain: str, op: str) -> str:
    """The digits model with one more op behind its logits; gives model.path=…"""
    model = onnx.load(DIGITS)
    model.graph.node.append(helper.make_node(op, ["logits"], ["odd"], name="odd", domain=domain))
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("odd", TensorProto.FLOAT, ["N", 10]))
    return save(model, path)


def with_batch(path: Path, size: int) -> str:
    """The digits model with a fixed batch axis."""
    model = onnx.load(DIGITS)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = size
    return save(model, path)


def with_second_output(path: Path) -> str:
    """The digits model that also gives what it pooled."""
    model = onnx.load(DIGITS)
    model.graph.output.append(helper.make_tensor_value_info("pool.out", TensorProto.FLOAT, ["N", 64, 1, 1]))
    return save(model, path)


def autoencoder(path: Path) -> str:
    """16 -> 8 -> 16, Relu in between: a model whose output is no class."""
    rng = np.random.default_rng(0)
    weights = {
        "down": rng.standard_normal((16, 8)),
        "down_bias": rng.standard_normal(8),
        "up": rng.standard_normal((8, 16)),
        "up_bias": rng.standard_normal(16),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "down", "down_bias"], ["h"], name="encode"),
            helper.make_node("Relu", ["h"], ["r"], name="relu"),
            helper.make_node("Gemm", ["r", "up", "up_bias"], ["y"], name="decode"),
        ],
        "autoencoder",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 16])],
        [numpy_helper.from_array((0.3 * value).astype(np.float32), name) for name, value in weights.items()],
    )
    return save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def save(model: onnx.ModelProto, path: Path) -> str:
    onnx.save(model, path)
    return f"model.path={path}"
