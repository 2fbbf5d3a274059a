"""What onnxruntime makes of a QDQ model when it loads it: which nodes it fuses into integer kernels, and which stay in
float between DequantizeLinear and QuantizeLinear.

Takes a model, gives names of its nodes. What is asked is a session with default options, as users have it; layouts
(blocked weights, channels last) are left as they are, since they rename nodes and change no kernel's type.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime as ort

from quantpipe.errors import ModelError
from quantpipe.graph.io import model_bytes
from quantpipe.graph.outside import is_heavy

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
PRODUCTS, DATA_ZERO = frozenset({"QLinearConv", "QGemm", "QLinearMatMul"}), 2
"""Ops, and the port of the zero point of their data."""


@dataclass(frozen=True)
class Fused:
    """Names of nodes: `real`, those that compute with the results of a DequantizeLinear; `signed`, products of int8
    data, which onnxruntime's kernels on x86 are not made for."""

    real: frozenset[str] = frozenset()
    signed: frozenset[str] = frozenset()


def fused(model: ir.Model, nodes: Collection[str], *, int8_kernels: bool = False) -> Fused:
    """What is left of `nodes` once the runtime has optimized the model.

    `int8_kernels`: with the session option that fuses int8 Q/DQ where it stands (`session.qdqisint8allowed`). Nothing
    for a model whose weights are too many to be written out once more.
    """
    if is_heavy(model):
        return Fused()
    graph = _optimized(model_bytes(model), int8_kernels)
    signed = {t.name for t in graph.initializer if t.data_type == onnx.TensorProto.INT8}
    real: set[str] = set()
    computed: set[str] = set()
    products: set[str] = set()
    for node in graph.node:  # in the order in which they run
        if node.op_type == DEQUANTIZE:
            real.update(node.output)
        elif node.op_type != QUANTIZE and real.intersection(node.input):
            real.update(node.output)
            computed |= {node.name, *node.output}
        elif node.op_type in PRODUCTS and node.input[DATA_ZERO] in signed:
            products.add(node.name)
    # Some ops are written out as several; then the result still has its name.
    made = {n.name or "": {n.name, n.outputs[0].name} for n in model.graph if n.name in nodes}
    left = frozenset(name for name, names in made.items() if computed & names)
    return Fused(left, frozenset(products & set(made)) if on_x86() else frozenset())


def on_x86() -> bool:
    """Whether this machine's CPU is one of those."""
    return platform.machine().lower() in ("x86_64", "amd64", "i686")


def _optimized(data: bytes, int8_kernels: bool) -> onnx.GraphProto:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    if int8_kernels:
        options.add_session_config_entry("session.qdqisint8allowed", "1")
    with tempfile.TemporaryDirectory(prefix="quantpipe-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "optimized.onnx"
        options.optimized_model_filepath = str(path)
        try:
            ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises its own family of types
            raise ModelError(
                f"onnxruntime cannot load it: {' '.join(str(error).split())[:400]}", stage="run", where="realized model"
            ) from error
        return onnx.load(path).graph
