"""Write out every attribute of convolutions: some compilers of devices read no defaults.

A kernel of `[3, 3]` with stride 1 is legal without attributes in ONNX. Here it has kernel_shape, strides, pads,
dilations and group.
"""

from __future__ import annotations

import onnx_ir as ir

WEIGHTS = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3, "ConvTranspose": 1}
"""Convolution -> the place of its weight among the inputs."""
SAME_SHAPE = frozenset({"DequantizeLinear", "QuantizeLinear", "Identity", "Cast"})
"""Ops between a constant and a convolution whose result has the shape of their first input."""
PADDED = ("", "NOTSET")
"""Values of auto_pad by which `pads` decides."""


def write_out(model: ir.Model) -> None:
    """Give every convolution of the main graph its attributes, in place; values that follow from auto_pad stay so."""
    for node in model.graph:
        if node.op_type not in WEIGHTS or node.domain not in ("", "ai.onnx"):
            continue
        shape = _shape(node.inputs[WEIGHTS[node.op_type]])
        if shape is None:
            continue
        axes = len(shape) - 2
        wanted: dict[str, int | list[int]] = {
            "kernel_shape": list(shape[2:]),
            "strides": [1] * axes,
            "dilations": [1] * axes,
            "group": 1,
        }
        padding = node.attributes.get("auto_pad")
        shaped = "output_shape" in node.attributes
        if not shaped and (padding is None or padding.as_string() in PADDED):
            wanted["pads"] = [0] * (2 * axes)
        for name, value in wanted.items():
            if name not in node.attributes:
                node.attributes[name] = (
                    ir.AttrInt64(name, value) if isinstance(value, int) else ir.AttrInt64s(name, value)
                )


def _shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the shape of a weight, by its constant where only ops that keep its shape follow; None if unknown."""
    known = value
    while known is not None and known.const_value is None:
        node = known.producer()
        if node is None or node.op_type not in SAME_SHAPE:
            break
        known = node.inputs[0]
    if known is not None and known.const_value is not None:
        return tuple(known.const_value.shape.numpy())
    for source in (known, value):
        if source is not None and source.shape is not None and source.shape.is_static():
            return tuple(source.shape.numpy())
    return None
