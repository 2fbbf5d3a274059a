"""Ops that ONNX defines by a function of other ops, written out by that function.

What rules know of (a matrix product, a softmax) is then seen inside what they do not (an attention). Ops that a rule or
a rewrite takes as a whole stay, unless onnxruntime has no kernel for them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import onnx
import onnx.inliner
import onnx_ir as ir

from quantpipe.graph.external_weights import with_weights, without_weights
from quantpipe.graph.op_tables import WRITTEN_OUT
from quantpipe.intake.untouched import untouched

MOST_DEPTH = 4
"""Functions within functions."""


def functions_written_out(model: ir.Model) -> ir.Model:
    """Return the model with the ops of `WRITTEN_OUT` replaced by their bodies; itself if it has no such op."""
    return written_out(model, WRITTEN_OUT)


def all_written_out(model: ir.Model) -> ir.Model:
    """Return the model with every op replaced by its function body, if it has one; else the model itself."""
    return written_out(model, {node.op_type for node in model.graph if not node.domain and _has_body(node, model)})


def written_out(model: ir.Model, ops: Collection[str]) -> ir.Model:
    """Return a model in which these function ops of ONNX are replaced by their bodies.

    Nodes of a body are named after the replaced node. The model itself is returned where no such op is found; it is
    never changed.
    """
    for _ in range(MOST_DEPTH):
        found = sorted({n.op_type for n in model.graph if n.op_type in ops and not n.domain and _has_body(n, model)})
        if not found:
            break
        proto, held = without_weights(model, untouched(model))
        typed = onnx.shape_inference.infer_shapes(proto)
        _declare_constants(typed)
        _set_defaults(typed, found)
        inlined = onnx.inliner.inline_selected_functions(typed, [("", op) for op in found], False, True)
        _name_bodies(inlined, proto)
        del inlined.graph.value_info[:]
        model = with_weights(inlined, held)
    return model


def _has_body(node: ir.Node, model: ir.Model) -> bool:
    version = model.graph.opset_imports.get("", 1)
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, version, "")
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _declare_constants(proto: onnx.ModelProto) -> None:
    """Declare the types of initializers, in place: the inliner looks for them among the types of other values."""
    known = {v.name for v in (*proto.graph.input, *proto.graph.value_info)}
    for tensor in proto.graph.initializer:
        if tensor.name not in known:
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            proto.graph.value_info.append(value)


def _set_defaults(proto: onnx.ModelProto, ops: Collection[str]) -> None:
    """Set the attributes that nodes leave at their defaults, in place: a body that names them finds no others."""
    version = next((entry.version for entry in proto.opset_import if not entry.domain), 1)
    for node in proto.graph.node:
        if node.op_type in ops and not node.domain:
            given = {attribute.name for attribute in node.attribute}
            known = onnx.defs.get_schema(node.op_type, version, "").attributes.values()
            node.attribute.extend(a.default_value for a in known if a.name not in given and a.default_value.name)


def _name_bodies(inlined: onnx.ModelProto, original: onnx.ModelProto) -> None:
    """Name the nodes of a body after the node that it replaces, in place; they precede its outputs."""
    owners = {output: node.name for node in original.graph.node for output in node.output if output}
    taken = {node.name for node in original.graph.node}
    pending: list[onnx.NodeProto] = []
    for node in inlined.graph.node:
        if not node.name:
            pending.append(node)
        owner = next((owners[output] for output in node.output if output in owners), None)
        if owner is None:
            continue
        for number, inner in enumerate(pending):
            name = f"{owner}/{inner.op_type}_{number}"
            inner.name = name if name not in taken else f"{name}_body"
            taken.add(inner.name)
        pending = []
