"""Tell what onnxruntime makes of a QDQ model when it loads it.

The result is the set of nodes that it fuses into integer kernels, and of nodes that stay in float between
DequantizeLinear and QuantizeLinear. The session has default options, as users have it. Layout changes (blocked weights,
channels last) are off, since they rename nodes and do not change a kernel's type.
"""

from __future__ import annotations

import platform
from collections.abc import Collection
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from quantpipe.graph.execute import optimized
from quantpipe.graph.external_weights import is_heavy
from quantpipe.graph.io import model_bytes
from quantpipe.graph.op_tables import DEQUANTIZE, INTEGER_OPS, QUANTIZE, SHAPES

PRODUCTS = {op: form.data[0].zero for op, form in INTEGER_OPS.items() if form.weight is not None}
"""Op -> the port of the zero point of its data."""


@dataclass(frozen=True)
class FusedNodes:
    """Hold the names of the nodes that do not run in a fast integer kernel.

    `real`: those that compute with the results of a DequantizeLinear. `signed`: products of int8 data, for which
    onnxruntime's kernels on x86 are not made.
    """

    real: frozenset[str] = frozenset()
    signed: frozenset[str] = frozenset()


def fused(model: ir.Model, nodes: Collection[str], *, int8_kernels: bool = False) -> FusedNodes:
    """Return the members of `nodes` that remain once the runtime has optimized the model.

    `int8_kernels`: with the session option that fuses int8 Q/DQ where it stands (`session.qdqisint8allowed`). Nothing
    for a model whose weights are too many to be written out once more.
    """
    if is_heavy(model):
        return FusedNodes()
    graph = optimized(model_bytes(model), int8_kernels)
    signed = {t.name for t in graph.initializer if t.data_type == onnx.TensorProto.INT8}
    real: set[str] = set()
    computed: set[str] = set()
    products: set[str] = set()
    for node in graph.node:  # in the order in which they run
        if node.op_type == DEQUANTIZE:
            real.update(node.output)
        elif node.op_type not in (QUANTIZE, *SHAPES) and real.intersection(node.input):
            real.update(node.output)
            computed |= {node.name, *node.output}
        elif (port := PRODUCTS.get(node.op_type)) is not None and signed.intersection(node.input[port : port + 1]):
            products.add(node.name)
    # Some ops are written out as several; then the result still has its name.
    made = {n.name or "": {n.name, n.outputs[0].name} for n in model.graph if n.name in nodes}
    left = frozenset(name for name, names in made.items() if computed & names)
    return FusedNodes(left, frozenset(products & set(made)) if on_x86() else frozenset())


def on_x86() -> bool:
    """Return whether this machine's CPU is an x86 one."""
    return platform.machine().lower() in ("x86_64", "amd64", "i686")
