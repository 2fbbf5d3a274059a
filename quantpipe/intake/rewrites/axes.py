"""Sizes of axes that a model computes at run time, each computed once.

Exporters write `b, t, _ = x.shape` in every block, as Shape, Gather, Unsqueeze and Concat of whatever tensor is at
hand. In small models that takes longer than the layers. Where it is known which free axes are equal, all is read from
the first tensor that has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from quantpipe.graph.edit import attribute, constant, is_op
from quantpipe.graph.external_weights import copied
from quantpipe.graph.symbolic_axes import Axes

Infer = Callable[[ir.Model], Mapping[str, Axes]]

SHAPE, GATHER = "Shape", "Gather"
OF_SIZES = ("Gather", "Unsqueeze", "Squeeze", "Concat", "Slice", "Cast", "Add", "Sub", "Mul", "Div", "Reshape")
"""Ops by which sizes are made of sizes."""
DENSE = ("MatMul", "Gemm")
"""What models have that compute sizes in every block; to infer the free axes of windows takes seconds."""
SMALL = 8
"""Elements of constants that are told apart by what they hold."""


def axes_joined(model: ir.Model, infer: Infer) -> ir.Model:
    """Return a copy of a model in which equal axis sizes are computed once; the model itself without such sizes.

    Declared names of axes are trusted. `infer` gives the axes of each tensor; tensors of the copy have the axes that it
    found.
    """
    if sum(is_op(node, SHAPE) for node in model.graph) < 2 or not any(is_op(node, *DENSE) for node in model.graph):
        return model
    copy = copied(model)
    common_passes.TopologicalSortPass()(copy)
    axes = infer(copy)
    for value in (v for node in copy.graph for v in node.outputs):
        known = axes.get(value.name or "")
        if known is not None and (value.shape is None or len(value.shape) == len(known)):
            value.shape = _both(known, value.shape)
    first: dict[object, ir.Value] = {}
    sizes: set[ir.Value] = set()
    for node in copy.graph:
        key = _computed(node, axes, sizes)
        if key is None:
            continue
        made = node.outputs[0]
        sizes.add(made)
        if first.setdefault(key, made) is not made and not made.is_graph_output():
            made.replace_all_uses_with(first[key])
    common_passes.RemoveUnusedNodesPass()(copy)
    return copy


def _both(found: Axes, declared: ir.Shape | None) -> ir.Shape:
    """Return the axes that were found, for those that are declared without a size of their own."""
    own = [None] * len(found) if declared is None else list(declared)
    return ir.Shape([b if isinstance(b, int) or a is None else a for a, b in zip(found, own, strict=True)])


def _computed(node: ir.Node, axes: Mapping[str, Axes], sizes: set[ir.Value]) -> object:
    """Return a key of the size that a node computes, equal for equal results; None for any other node."""
    if is_op(node, SHAPE):
        read = _read(node, axes)
        said = tuple(sorted((name, str(a.value)) for name, a in node.attributes.items()))
        return ("axes", tuple(read)) if read is not None and None not in read else (SHAPE, id(node.inputs[0]), said)
    if not is_op(node, *OF_SIZES) or len(node.outputs) != 1:
        return None
    given = [_known(value, sizes) for value in node.inputs]
    if None in given or not any(value in sizes for value in node.inputs):
        return None
    if is_op(node, GATHER) and (size := _taken(node, axes)) is not None:
        return ("axis", *size)
    return (node.op_type, *given, *sorted((name, str(a.value)) for name, a in node.attributes.items()))


def _known(value: ir.Value | None, sizes: set[ir.Value]) -> object:
    """Return a key of what a node reads: equal for the same sizes and for equal constants; None for anything else."""
    if value is None:
        return "nothing"
    if value in sizes:
        return id(value)
    array = constant(value)
    return (array.tobytes(), array.shape, str(array.dtype)) if array is not None and array.size <= SMALL else None


def _taken(node: ir.Node, axes: Mapping[str, Axes]) -> tuple[object, ...] | None:
    """Return the size that a Gather takes of a Shape, and how many axes the result has."""
    maker = node.inputs[0].producer() if node.inputs[0] is not None else None
    read = _read(maker, axes) if maker is not None and is_op(maker, SHAPE) else None
    index = constant(node.inputs[1])
    if read is None or index is None or index.size != 1 or not -len(read) <= int(index.reshape(())) < len(read):
        return None
    size = read[int(index.reshape(()))]
    return None if size is None else (size, index.ndim)


def _read(node: ir.Node, axes: Mapping[str, Axes]) -> Axes | None:
    """Return the result of a Shape."""
    source = node.inputs[0]
    known = axes.get(source.name or "") if source is not None else None
    if known is None:
        return None
    start, end = int(attribute(node, "start", 0)), attribute(node, "end")
    return list(known)[slice(start, None if end is None else int(end))]
