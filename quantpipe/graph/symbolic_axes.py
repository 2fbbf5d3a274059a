"""The axes of every tensor of a model, by names of sizes where they are free: onnxruntime's symbolic inference."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from quantpipe.graph.external_weights import without_weights

log = logging.getLogger(__name__)

Axes = Sequence[int | str | None]
"""Sizes of a tensor's axes: numbers, names of sizes, or nothing where nothing is known."""

MOST = 2**31 - 1
LEAST_OPSET = 7  # of the tool
MANY = 4096
"""Elements beyond which a constant decides no axis; inference would write its bytes for every node that reads it."""


def axes_of(model: ir.Model) -> Mapping[str, Axes]:
    """Return a mapping: tensor -> its axes; an empty one where they cannot be inferred.

    Where two free axes meet in an element-wise op, the tool takes them for equal, though one of them may be 1 at run
    time. For a computed size (the part of a table of positions that a sequence needs) its result is accepted. Where it
    would merge two axes that the model's inputs declare under different names, they stay distinct.
    """
    proto = _light(model)
    try:
        found = _inferred(proto)
    except Exception as error:  # the tool knows not every op, and says so in many ways
        log.debug("axes are not inferred: %s", error)
        return {}
    declared = {v.name: [_size(d) for d in v.type.tensor_type.shape.dim] for v in proto.graph.input}
    inputs = {v.name: [_size(d) for d in v.type.tensor_type.shape.dim] for v in found.graph.input}
    if any(a is not None and a != b for name in declared for a, b in zip(declared[name], inputs[name], strict=False)):
        return {}
    return _declared(found)


def _light(model: ir.Model) -> onnx.ModelProto:
    """Return the model with its large constants as inputs."""
    held = {name: value.const_value for name, value in model.graph.initializers.items()}
    large = [name for name, tensor in held.items() if tensor is not None and tensor.size > MANY]
    return without_weights(model, large)[0]


def _inferred(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the axes of every tensor; an exception of any class where an op is unknown.

    These are the steps of the tool's own `infer_shapes`, which in this case writes the model into the working folder.
    """
    from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference, get_opset

    if (get_opset(proto) or 0) < LEAST_OPSET:
        raise ValueError(f"the tool needs opset {LEAST_OPSET}")
    tool, known = SymbolicShapeInference(MOST, auto_merge=True, guess_output_rank=False, verbose=0), False
    tool._preprocess(proto)
    while tool.run_:
        known = tool._infer_impl()
    tool._update_output_from_vi()
    if not known:
        raise ValueError("an op has no known shape")
    found: onnx.ModelProto = tool.out_mp_
    return found


def plain_axes_and_types_of(model: ir.Model) -> tuple[Mapping[str, Axes], Mapping[str, ir.DataType]]:
    """Return the axes and the types by onnx's own inference, which knows ops too new for onnxruntime's tool as well."""
    proto = _light(model)
    found = onnx.shape_inference.infer_shapes(proto)
    values = (*found.graph.input, *found.graph.value_info, *found.graph.output)
    return _declared(found), {v.name: ir.DataType(v.type.tensor_type.elem_type) for v in values}


def axes_of_inputs(model: ir.Model) -> Mapping[str, Axes]:
    """Return the axes that follow from the model's inputs alone, also through sizes that it computes with."""
    proto = _light(model)
    del proto.graph.value_info[:]
    return _declared(onnx.shape_inference.infer_shapes(proto, data_prop=True))


def _declared(proto: onnx.ModelProto) -> Mapping[str, Axes]:
    values = (*proto.graph.input, *proto.graph.value_info, *proto.graph.output)
    return {v.name: [_size(d) for d in v.type.tensor_type.shape.dim] for v in values if _has_shape(v)}


def _has_shape(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape"))


def _size(axis: onnx.TensorShapeProto.Dimension) -> int | str | None:
    return axis.dim_value if axis.HasField("dim_value") else axis.dim_param or None
