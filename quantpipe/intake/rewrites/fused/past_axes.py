"""The axes of caches that a file leaves open, although the attention that reads them fixes them.

onnxruntime-genai's builder names all axes of a past and a present. Then no empty cache has the heads and the features
that the attention needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from quantpipe.graph.edit import constant, is_op
from quantpipe.graph.symbolic_axes import plain_axes_and_types_of
from quantpipe.intake.rewrites.fused.body import FusedBody
from quantpipe.intake.rewrites.fused.heads import width

HEADS, FEATURES, AXES = 1, 3, 4


def _of_groups(body: FusedBody) -> tuple[int, int | None]:
    heads, kv_heads = (int(body.attr(name, 0)) for name in ("num_heads", "kv_num_heads"))
    query = body.input(0)
    features = width(body, query) or _of_weights(query)
    every = heads if body.input(1) is not None else heads + 2 * kv_heads
    return kv_heads, features // every if features and every else None


def _of_weights(value: ir.Value | None) -> int | None:
    """Return the features that a dense layer gives, by its weights or its bias."""
    maker = value.producer() if value is not None else None
    held = constant(maker.inputs[1]) if is_op(maker, "MatMul", "Add") and maker is not None else None
    return held.shape[-1] if held is not None and held.ndim else None


_SIZES: Mapping[tuple[str, str], tuple[tuple[int, ...], Callable[[FusedBody], tuple[int, int | None]]]] = {
    ("com.microsoft", "GroupQueryAttention"): ((3, 4), _of_groups),
}
"""Op -> the ports of its past, whose present is at the outputs 1 and 2, and what gives heads and features of a head."""


def settle_pasts(model: ir.Model) -> None:
    """Declare, in place, heads and features of the pasts and presents that leave them open."""
    nodes = [node for node in model.graph if _open_ports(node)]
    if not nodes:
        return
    known, types = plain_axes_and_types_of(model)
    opset = int(model.graph.opset_imports.get("", 1))
    for node in nodes:
        body = FusedBody(model.graph, node, opset, axes=known.get, types=types.get)
        heads, features = _SIZES[node.domain, node.op_type][1](body)
        for value in _open_ports(node):
            _settle(value, {HEADS: heads, FEATURES: features})


def _open_ports(node: ir.Node) -> list[ir.Value]:
    """Return the inputs and outputs of a model that are a node's past and present, and leave an axis open."""
    if (node.domain, node.op_type) not in _SIZES:
        return []
    ports, _ = _SIZES[node.domain, node.op_type]
    pasts = [node.inputs[p] for p in ports if p < len(node.inputs)]
    found = [v for v in pasts if v is not None and v.is_graph_input()]
    found += [v for v in node.outputs[1:3] if v.is_graph_output()]
    return [v for v in found if _is_open(v.shape)]


def _is_open(axes: ir.Shape | None) -> bool:
    return axes is not None and len(axes) == AXES and not all(isinstance(axes[n], int) for n in (HEADS, FEATURES))


def _settle(value: ir.Value, sizes: Mapping[int, int | None]) -> None:
    assert value.shape is not None  # noqa: S101  (_open_ports has looked)
    axes = list(value.shape)
    value.shape = ir.Shape([sizes.get(n) or size if not isinstance(size, int) else size for n, size in enumerate(axes)])
