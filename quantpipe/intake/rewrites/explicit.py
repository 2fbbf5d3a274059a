"""Write out every attribute of convolutions: some compilers of devices read no defaults.

A kernel of `[3, 3]` with stride 1 is legal without attributes in ONNX. Here it has kernel_shape, strides, pads,
dilations and group.
"""

from __future__ import annotations

import onnx_ir as ir

from quantpipe.graph.same_pads import leading_pads, same_total

WEIGHTS = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3, "ConvTranspose": 1}
"""Convolution -> the place of its weight among the inputs."""
SAME_SHAPE = frozenset({"DequantizeLinear", "QuantizeLinear", "Identity", "Cast"})
"""Ops between a constant and a convolution whose result has the shape of their first input."""
PADDED = ("", "NOTSET")
"""Values of auto_pad by which `pads` decides."""


def write_out(model: ir.Model) -> None:
    """Give every convolution of the main graph its attributes, in place.

    Pads replace auto_pad where they follow from it alone, or where the sizes of the input are fixed.
    """
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
        if padding is not None and node.op_type != "ConvTranspose" and (pads := _pads(node, axes)) is not None:
            del node.attributes["auto_pad"]
            node.attributes["pads"] = ir.AttrInt64s("pads", pads)


def _pads(node: ir.Node, axes: int) -> list[int] | None:
    """Return the pads that auto_pad means; None where they depend on sizes that are free."""
    mode = node.attributes["auto_pad"].as_string()
    if mode in PADDED:
        return list(node.attributes["pads"].as_ints())
    if mode == "VALID":
        return [0] * (2 * axes)
    kernel, strides, dilations = (node.attributes[name].as_ints() for name in ("kernel_shape", "strides", "dilations"))
    data = node.inputs[0]
    sizes: list[object] = [None] * axes if data is None or data.shape is None else list(data.shape[2:])
    totals: list[int] = []
    for size, taps, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        span = (taps - 1) * dilation + 1
        if stride > 1 and not isinstance(size, int):
            return None
        totals.append(same_total(size, stride, span) if isinstance(size, int) else span - 1)
    first = leading_pads(totals, mode)
    return [*first, *(total - pad for total, pad in zip(totals, first, strict=True))]


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
