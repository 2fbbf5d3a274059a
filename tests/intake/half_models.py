"""Models in float16 or bfloat16, whole or in part, made of float32 ones the way converters make them."""

from __future__ import annotations

from collections.abc import Callable, Collection

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, HALF, BRAIN = int(TensorProto.FLOAT), int(TensorProto.FLOAT16), int(TensorProto.BFLOAT16)
SINGLE_ONLY = {"Resize": (1, 2), "Upsample": (1,)}
"""Op -> ports that take float32 whatever the data are."""


def rounded(array: np.ndarray, kind: int) -> np.ndarray:
    """The values in a half-precision type."""
    return array.astype(np.float16 if kind == HALF else ml_dtypes.bfloat16)


def to_half(
    model: onnx.ModelProto,
    kind: int = HALF,
    *,
    ends: bool = True,
    single: Collection[str] | Callable[[onnx.NodeProto], bool] = (),
) -> onnx.ModelProto:
    """The model in half precision.

    `ends=False` keeps inputs and outputs float32, with Casts behind and before them. Nodes of the op types in `single`
    (or that it says yes to) stay in float32, with Casts around them.
    """
    stays = single if callable(single) else lambda node: node.op_type in single
    found = onnx.ModelProto()
    found.CopyFrom(onnx.shape_inference.infer_shapes(model))
    graph = found.graph
    real = {v.name for v in [*graph.input, *graph.output, *graph.value_info] if v.type.tensor_type.elem_type == FLOAT}
    for tensor in graph.initializer:
        if tensor.data_type == FLOAT:
            real.add(tensor.name)
            tensor.CopyFrom(_tensor(tensor, kind))
    nodes: list[onnx.NodeProto] = []
    renamed: dict[str, str] = {}

    def cast(source: str, target: str, to: int) -> None:
        nodes.append(helper.make_node("Cast", [source], [target], name=f"{target}_cast", to=to))

    for port in graph.input:
        if port.name in real and not ends:
            renamed[port.name] = f"{port.name}_half"
            cast(port.name, f"{port.name}_half", kind)
    leaving = {o.name: f"{o.name}_half" for o in graph.output if o.name in real and not ends}
    renamed |= leaving
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t") and attribute.t.data_type == FLOAT:
                attribute.t.CopyFrom(_tensor(attribute.t, kind))
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == FLOAT:
                attribute.i = kind
        names = [renamed.get(n, n) for n in node.input]
        outputs = [renamed.get(n, n) for n in node.output]
        alone = stays(node)
        ports = range(len(names)) if alone else SINGLE_ONLY.get(node.op_type, ())
        for port in ports:
            if port < len(names) and node.input[port] in real:
                target = f"{node.name or node.output[0]}_in{port}"
                cast(names[port], target, FLOAT)
                names[port] = target
        made = [f"{n}_single" if alone and o in real else n for n, o in zip(outputs, node.output, strict=True)]
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:], copy.output[:] = names, made
        nodes.append(copy)
        for source, target in zip(made, outputs, strict=True):
            if source != target:
                cast(source, target, kind)
    for name, half in leaving.items():
        cast(half, name, FLOAT)
    for port in [*graph.input, *graph.output] if ends else []:
        if port.name in real:
            port.type.tensor_type.elem_type = kind
    del graph.value_info[:], graph.node[:]
    graph.node.extend(nodes)
    return found


def _tensor(tensor: onnx.TensorProto, kind: int) -> onnx.TensorProto:
    array = rounded(numpy_helper.to_array(tensor), kind)
    return helper.make_tensor(tensor.name, kind, array.shape, array.tobytes(), raw=True)
