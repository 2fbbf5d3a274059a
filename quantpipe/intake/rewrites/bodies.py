"""Bodies of If, Loop and Scan, written out in the graph around them, so that their ops are quantized where they are.

Both branches of an If compute, and a Where selects the results of one. A Loop or a Scan with a fixed number of steps
becomes its steps. Every step and branch has nodes and tensors of its own, hence its own scales; weights stay shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from quantpipe.graph.edit import attribute, constant, is_op, new_constant, new_node, take_place
from quantpipe.graph.symbolic_axes import Axes
from quantpipe.types import BodyForms

IF, LOOP, SCAN = "If", "Loop", "Scan"
MOST_STEPS, MOST_NODES = 128, 5000
"""Limits of the steps of one loop, and of the nodes that it becomes."""

SAFE = frozenset({
    *("Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sub", "Mul", "Max", "Min", "Sum", "Mean", "Where"),
    *("Relu", "LeakyRelu", "PRelu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Elu", "Selu", "Celu"),
    *("ThresholdedRelu", "Softplus", "Softsign", "Mish", "Gelu", "Swish", "Erf"),
    *("Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Sin", "Cos", "Softmax", "LogSoftmax"),
    *("BatchNormalization", "LayerNormalization", "RMSNormalization", "InstanceNormalization", "LRN"),
    *("GlobalAveragePool", "GlobalMaxPool", "AveragePool", "MaxPool", "Flatten", "Transpose", "Identity"),
    *("DepthToSpace", "SpaceToDepth", "Concat", "Not", "And", "Or", "Constant"),
    *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
})  # fmt: skip
"""Ops of a branch that give finite numbers for any values, also where the model does not take the branch."""

SAFE_IF_KNOWN = frozenset({
    *("Reshape", "Squeeze", "Unsqueeze", "Slice", "Gather", "Pad", "Expand", "Tile", "Split", "Resize"),
    *("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"),
})  # fmt: skip
"""Likewise, if all their inputs after the first are constants."""


def wanted(node: ir.Node, forms: BodyForms) -> bool:
    """Return whether the bodies of a node are to be written out, if that is possible."""
    if not is_op(node, *forms.holders):
        return False
    return any(inner.op_type in forms.ops for body in bodies_of(node) for inner in body.all_nodes())


def bodies_of(node: ir.Node) -> list[ir.Graph]:
    """Return the graphs that a node holds."""
    return [a.value for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]


@dataclass
class Inliner:
    """Put bodies before the node that holds them, and their results where its results were."""

    graph: ir.Graph
    node: ir.Node
    placed: set[int] = field(default_factory=set)

    @property
    def name(self) -> str:
        """Return the name of the node."""
        return self.node.name or self.node.op_type

    def own_weights(self, body: ir.Graph) -> None:
        """Move the constants of a body, and of bodies in it, out of it under free names, so that steps share them."""
        taken = {v.name for n in self.graph for v in n.outputs} | {v.name for v in self.graph.inputs}
        for graph in (body, *(inner for node in body.all_nodes() for inner in bodies_of(node))):
            for value in list(graph.initializers.values()):
                graph.initializers.pop(value.name or "")
                while value.name in taken or value.name in self.graph.initializers:
                    value.name = f"{self.name}/{value.name}"
                self.graph.register_initializer(value)

    def inlined(self, body: ir.Graph, given: Sequence[ir.Value], where: str) -> list[ir.Value]:
        """Copy the nodes of a body to the graph, with `given` as its inputs, and return its results.

        `where` is put before the names of nodes and tensors.
        """
        copy = body.clone(allow_outer_scope_values=True)
        results = list(copy.outputs)
        copy.outputs.clear()
        for port, value in zip(copy.inputs, given, strict=True):
            port.replace_all_uses_with(value)
            results = [value if result is port else result for result in results]
        for inner in list(copy):
            copy.remove(inner)
            inner.name = f"{where}/{inner.name or inner.op_type}"
            for value in inner.outputs:
                value.name = f"{where}/{value.name}" if value.name else None
            self.graph.insert_before(self.node, inner)
        return results

    def op(self, op: str, *inputs: ir.Value, name: str, **attributes: Any) -> ir.Value:
        """Insert a node before the holder, and return its output, which has the node's name."""
        full = f"{self.name}/{name}"
        value = new_node(self.graph, self.node, op, inputs, name=full, attributes=attributes)
        value.name = f"{full}_out"
        return value

    def number(self, name: str, values: Any) -> ir.Value:
        """Return a new constant of int64."""
        return new_constant(self.graph, f"{self.name}/{name}", np.asarray(values, np.int64))

    def put(self, results: Sequence[ir.Value]) -> None:
        """Put the results where the node's are, and remove it."""
        for place, (old, new) in enumerate(zip(self.node.outputs, results, strict=True)):
            if not old.name or not (old.uses() or old.is_graph_output()):
                continue
            if not self._is_free(new):
                new = self.op("Identity", new, name=f"result{place}")
            self.placed.add(id(new))
            take_place(old, new)
        self.graph.remove(self.node, safe=True)

    def _is_free(self, value: ir.Value) -> bool:
        """Whether a value was made for this node alone, so that it can take the name of one of its results."""
        maker = value.producer()
        own = maker is not None and (maker.name or "").startswith(f"{self.name}/")
        return own and id(value) not in self.placed and not value.is_graph_output()


def select_branches(graph: ir.Graph, node: ir.Node) -> list[tuple[ir.Value, ir.Value]]:
    """Compute both branches of an If, in place, and select the results of one by a Where.

    The result has the pairs of results, whose shapes must be equal; it is empty if the If stays.
    """
    branches = [node.attributes[name].value for name in ("then_branch", "else_branch")]
    flag = node.inputs[0]
    if flag is None or not all(_is_safe(inner) for body in branches for inner in body):
        return []
    if not all(isinstance(v.type, ir.TensorType) for body in branches for v in body.outputs if v.type is not None):
        return []
    inliner = Inliner(graph, node)
    for body in branches:
        inliner.own_weights(body)
    then, other = (
        inliner.inlined(b, [], f"{inliner.name}/{w}") for b, w in zip(branches, ("then", "else"), strict=True)
    )
    flag = inliner.op("Reshape", flag, inliner.number("scalar", []), name="flag")
    pairs = list(zip(then, other, strict=True))
    inliner.put([inliner.op("Where", flag, a, b, name=f"select{n}") for n, (a, b) in enumerate(pairs)])
    return pairs


def _is_safe(node: ir.Node) -> bool:
    """Whether an op of a branch computes on any values; integers are excluded from division by not being listed."""
    if node.domain not in ("", "ai.onnx"):
        return False
    known = all(v is None or constant(v) is not None for v in node.inputs[1:])
    return node.op_type in SAFE or (node.op_type in SAFE_IF_KNOWN and known)


def unroll(graph: ir.Graph, node: ir.Node, axes: Mapping[str, Axes]) -> None:
    """Write a Loop or a Scan with a fixed number of steps as its steps, in place; another one stays.

    `axes`: tensor -> its axes, where they are known.
    """
    body = node.attributes["body"].value
    count = _trips(node, body) if is_op(node, LOOP) else _scanned(node, axes)
    if count is None or not 1 <= count <= MOST_STEPS or count * len(list(body.all_nodes())) > MOST_NODES:
        return
    inliner = Inliner(graph, node)
    inliner.own_weights(body)
    inliner.put((_loop_steps if is_op(node, LOOP) else _scan_steps)(inliner, body, count))


def _trips(node: ir.Node, body: ir.Graph) -> int | None:
    """The number of steps of a Loop; None if it is not known, or if the body may end the loop earlier."""
    most, starts, goes_on = constant(node.inputs[0]), node.inputs[1], body.outputs[0]
    while (maker := goes_on.producer()) is not None and is_op(maker, "Identity") and maker.inputs[0] is not None:
        goes_on = maker.inputs[0]
    if not (starts is None or _is_true(starts)) or not (goes_on is body.inputs[1] or _is_true(goes_on)):
        return None
    return int(most.reshape(-1)[0]) if most is not None and most.size == 1 else None


def _is_true(value: ir.Value) -> bool:
    """Whether a value is a constant that is true, also as a node."""
    known = ir.convenience.get_const_tensor(value)
    return known is not None and known.size > 0 and bool(np.all(known.numpy()))


def _loop_steps(inliner: Inliner, body: ir.Graph, count: int) -> list[ir.Value]:
    states = [value for value in inliner.node.inputs[2:] if value is not None]
    going = new_constant(inliner.graph, f"{inliner.name}/going", np.asarray(True))
    shown: list[list[ir.Value]] = []
    for step in range(count):
        given = [inliner.number(f"step{step}", step), going, *states]
        made = inliner.inlined(body, given, f"{inliner.name}/{step}")[1:]
        states = made[: len(states)]
        shown.append(made[len(states) :])
    return [*states, *_stacked(inliner, shown, _Ways((0,) * len(shown[0]), (False,) * len(shown[0])))]


def _scanned(node: ir.Node, axes: Mapping[str, Axes]) -> int | None:
    """The number of steps of a Scan; None if it is not known."""
    inputs = node.inputs[len(node.inputs) - int(attribute(node, "num_scan_inputs")) :]
    found = (
        axes[value.name or ""][axis]
        for value, axis in zip(inputs, _ways(node, "input", len(inputs)).axes, strict=True)
        if value is not None and value.name in axes
    )
    return next((size for size in found if isinstance(size, int)), None)


@dataclass(frozen=True)
class _Ways:
    """Hold the axis and the direction of each scanned input, or of each shown output."""

    axes: tuple[int, ...]
    backward: tuple[bool, ...]


def _ways(node: ir.Node, which: str, count: int) -> _Ways:
    axes = attribute(node, f"scan_{which}_axes", None) or (0,) * count
    backward = attribute(node, f"scan_{which}_directions", None) or (0,) * count
    return _Ways(tuple(int(a) for a in axes), tuple(bool(b) for b in backward))


def _scan_steps(inliner: Inliner, body: ir.Graph, count: int) -> list[ir.Value]:
    node = inliner.node
    scanned = int(attribute(node, "num_scan_inputs"))
    inputs = [value for value in node.inputs if value is not None]
    states, rows = inputs[: len(inputs) - scanned], inputs[len(inputs) - scanned :]
    ways = _ways(node, "input", scanned)
    shown: list[list[ir.Value]] = []
    for step in range(count):
        parts = []
        for place, (value, axis, back) in enumerate(zip(rows, ways.axes, ways.backward, strict=True)):
            at, where = (count - 1 - step if back else step), f"{step}/in{place}"
            axes = inliner.number(f"axis{axis}", [axis])
            ends = (inliner.number(f"{where}/{name}", [n]) for name, n in (("start", at), ("end", at + 1)))
            part = inliner.op("Slice", value, *ends, axes, name=f"{where}/part")
            parts.append(inliner.op("Squeeze", part, axes, name=where))
        made = inliner.inlined(body, [*states, *parts], f"{inliner.name}/{step}")
        states = made[: len(states)]
        shown.append(made[len(states) :])
    return [*states, *_stacked(inliner, shown, _ways(node, "output", len(shown[0])))]


def _stacked(inliner: Inliner, shown: Sequence[Sequence[ir.Value]], ways: _Ways) -> list[ir.Value]:
    """What the steps show, each output stacked along its axis."""
    found = []
    for place, (axis, back) in enumerate(zip(ways.axes, ways.backward, strict=True)):
        axes = inliner.number(f"out{place}/axis", [axis])
        rows = [inliner.op("Unsqueeze", s[place], axes, name=f"{n}/out{place}") for n, s in enumerate(shown)]
        found.append(inliner.op("Concat", *(rows[::-1] if back else rows), name=f"out{place}", axis=axis))
    return found
