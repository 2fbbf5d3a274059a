"""An average whose pads count, times the share of its windows inside the map, is an average that counts no pads.

TensorFlow Lite has pads of its own only where they are SAME; a file with others has these two ops, and often a Pad.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.graph.edit import attribute, constant, is_op, new_node, only_user, operand, take_place


def inner_windows(graph: ir.Graph, node: ir.Node) -> None:
    """Replace the average that ends in this Mul by a constant of its result's map."""
    if not is_op(node, "Mul") or len(node.inputs) != 2:
        return
    port = next((p for p in (0, 1) if constant(node.inputs[p]) is not None), None)
    value = None if port is None else node.inputs[1 - port]
    average = value.producer() if value is not None else None
    if port is None or value is None or average is None or not _is_plain(average):
        return
    if only_user(value, graph) is not node:
        return
    source, pads, removed = average.inputs[0], list(attribute(average, "pads", [0] * 4)), [node, average]
    if any(pads) and not attribute(average, "count_include_pad", 0):
        return
    pad = source.producer() if source is not None else None
    if pad is not None and (outer := _zeros_around(pad)) is not None and only_user(pad.outputs[0], graph) is average:
        source, pads, removed = pad.inputs[0], [a + b for a, b in zip(pads, outer, strict=True)], [*removed, pad]
    kernel, strides = (list(attribute(average, name, [1, 1])) for name in ("kernel_shape", "strides"))
    share, size = constant(node.inputs[port]), _map(source)
    if source is None or share is None or size is None or not any(pads):
        return
    if any(p >= k for p, k in zip(pads, kernel * 2, strict=True)):  # a window that lies outside altogether
        return
    inside = [
        _elements(n, k, s, (before, behind))
        for n, k, s, before, behind in zip(size, kernel, strides, pads[:2], pads[2:], strict=True)
    ]
    wanted = kernel[0] * kernel[1] / np.multiply.outer(*inside)
    if (
        share.ndim > 4
        or share.shape[-2:] != wanted.shape
        or share.size != wanted.size
        or not np.allclose(share, wanted, rtol=1e-6)
    ):
        return
    how = {"kernel_shape": kernel, "strides": strides, "pads": pads, "count_include_pad": 0}
    take_place(node.outputs[0], new_node(graph, node, "AveragePool", [source], name=average.name, attributes=how))
    graph.remove(removed, safe=True)


def _is_plain(node: ir.Node) -> bool:
    """Return whether a node averages windows of two axes whose pads are given."""
    if not is_op(node, "AveragePool") or len(attribute(node, "kernel_shape", [])) != 2:
        return False
    rounded = attribute(node, "ceil_mode", 0) or any(d != 1 for d in attribute(node, "dilations", []))
    return not rounded and attribute(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID")


def _zeros_around(node: ir.Node) -> list[int] | None:
    """Return the pads of a Pad that puts zeros around the last two of four axes."""
    pads = constant(operand(node, 1))
    if not is_op(node, "Pad") or attribute(node, "mode", "constant") != "constant" or pads is None or pads.size != 8:
        return None
    fill = operand(node, 2)
    plain = (fill is None or np.all(constant(fill) == 0)) and operand(node, 3) is None
    first, last = pads[:4].tolist(), pads[4:].tolist()
    return [*first[2:], *last[2:]] if plain and not any((*first[:2], *last[:2])) and min(first + last) >= 0 else None


def _map(value: ir.Value | None) -> list[int] | None:
    shape = None if value is None or value.shape is None else list(value.shape)
    if shape is None or len(shape) != 4 or not all(isinstance(n, int) for n in shape[2:]):
        return None
    return [int(n) for n in shape[2:] if isinstance(n, int)]


def _elements(size: int, window: int, stride: int, pads: tuple[int, int]) -> NDArray[np.int64]:
    """Return how many elements of the map each window has along an axis."""
    first = np.arange(0, size + sum(pads) - window + 1, stride) - pads[0]
    return np.asarray(np.minimum(first + window, size) - np.maximum(first, 0), np.int64)
