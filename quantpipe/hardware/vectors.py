"""Count the steps of a device that adds, narrows and compares vectors of channels, one instruction a vector and cycle.

The hardware file gives the steps of each operation per vector of a result (`cost.vector_steps`); this module counts how
often a kernel needs it, from shapes alone. Ranges, and so shifts, are not known: a narrowing counts as a shift, and a
further operand of an addition as a shifted one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, prod

from quantpipe.graph.same_pads import SAME, leading_pads
from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import NARROWED, Family, rule_of
from quantpipe.types import Form, HardwareSpec, Kernel, Topology

VECTOR_STEPS = ("narrow", "whole", "zero", "copy", "join", "multiply", "bound", "tap")
"""What a device can have a step of its own for, per vector of a result.

A narrowing of a sum; a sum that leaves whole; accumulators that begin at zero; an operand that comes into accumulators;
a further one that is added; one that is multiplied; a bound; an element of a window whose greatest is taken.
"""

Needs = Mapping[str, float]
"""Name of a step -> how often a vector of the result needs it."""


def vector_steps(topology: Topology, graph: Graph, spec: HardwareSpec) -> dict[str, float]:
    """Return the vector unit's steps per sample of each kernel that takes some, by node.

    It reads `cost.vector_steps` and `cost.channel_block` of the device.
    """
    steps = spec.cost.vector_steps
    if not steps:
        return {}
    families = {k.node: rule.family for k in topology.kernels if (rule := rule_of(graph.by_name[k.node])) is not None}
    sums = [k for k in topology.kernels if families.get(k.node) is Family.SUM]
    handed = {o.tensor for k in sums for o in k.operands if o.form is Form.RAW}
    found = {}
    for kernel in topology.kernels:
        needs = NEEDS.get(families.get(kernel.node, Family.DEVICE))
        if needs is None:
            continue
        node = graph.by_name[kernel.node]
        wanted = dict(needs(kernel, node, graph))
        if wanted and families[kernel.node] in NARROWED and kernel.output not in handed:
            wanted["whole" if kernel.form is Form.RAW else "narrow"] = 1
        each = sum(count * steps.get(name, 0.0) for name, count in wanted.items())
        rows = _is_rows(kernel, families[kernel.node], graph)
        found[kernel.node] = _vectors(graph.shapes[kernel.output], rows, spec.cost.channel_block) * each
    return {node: count for node, count in found.items() if count}


def _is_rows(kernel: Kernel, family: Family, graph: Graph) -> bool:
    """Return whether channels are the last axis of a result; else they are axis 1, as in a map."""
    if kernel.weight is not None:
        return len(graph.shapes[kernel.weight]) == 2
    return family is not Family.AVERAGE and len(graph.shapes[kernel.output]) != 4


def _vectors(shape: tuple[int, ...], rows: bool, block: int) -> int:
    """Return the vectors of channels of a result; with fewer than two axes, each number takes a vector."""
    if len(shape) < 2:
        return prod(shape)
    axis = len(shape) - 1 if rows else 1
    return ceil(shape[axis] / block) * prod(shape[:axis]) * prod(shape[axis + 1 :])


def _products(kernel: Kernel, node: Node, graph: Graph) -> Needs:
    return {"zero": float(kernel.bias is None)}


def _sum(kernel: Kernel, node: Node, graph: Graph) -> Needs:
    stored = sum(o.form is not Form.RAW for o in kernel.operands)
    return {"zero": stored, "copy": stored, "join": len(kernel.operands) - 1}


def _product(kernel: Kernel, node: Node, graph: Graph) -> Needs:
    return {"zero": 2, "copy": 2, "multiply": 1}


def _average(kernel: Kernel, node: Node, graph: Graph) -> Needs:
    return {"zero": 1, "copy": prod(node.attr("kernel_shape", list(graph.shapes[kernel.operands[0].tensor][2:])))}


def _clamp(kernel: Kernel, node: Node, graph: Graph) -> Needs:
    return {"zero": 1, "copy": 1, "bound": 2}


def _greatest(kernel: Kernel, node: Node, graph: Graph) -> Needs:
    """Return the taps inside the map of each window; other moves are only a matter of addresses."""
    shape, made = graph.shapes[kernel.operands[0].tensor], graph.shapes[node.outputs[0]]
    taps = node.attr("kernel_shape", None)
    if taps is None or len(shape) != 4 or node.attr("ceil_mode", 0):
        return {}
    inside = prod(_inside(node, axis, shape[2 + axis], made[2 + axis]) for axis in (0, 1))
    return {"zero": 1, "bound": 1, "tap": inside / prod(made[2:])}


def _inside(node: Node, axis: int, size: int, made: int) -> int:
    """Return how many elements of all windows along an axis are inside the map."""
    taps, ones = node.attr("kernel_shape"), [1, 1]
    stride, dilation = node.attr("strides", ones)[axis], node.attr("dilations", ones)[axis]
    begin = node.attr("pads", [0, 0, 0, 0])[axis]
    auto = node.attr("auto_pad", "NOTSET")
    if auto in SAME:
        total = max((made - 1) * stride + (taps[axis] - 1) * dilation + 1 - size, 0)
        (begin,) = leading_pads([total], auto)
    places = (n * stride - begin + tap * dilation for n in range(made) for tap in range(taps[axis]))
    return sum(0 <= place < size for place in places)


NEEDS: Mapping[Family, Callable[[Kernel, Node, Graph], Needs]] = {
    Family.ACCUMULATE: _products,
    Family.SUM: _sum,
    Family.PRODUCT: _product,
    Family.AVERAGE: _average,
    Family.CLAMP: _clamp,
    Family.MOVE: _greatest,
}
