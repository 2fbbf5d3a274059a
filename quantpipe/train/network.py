"""A clean float graph as torch functions, which gradients pass.

Takes a `Graph`; runs all of it, or some of its nodes from inner tensors, and offers every value to hooks. The table
of ops (`torch_ops`) computes each node. The network has no parameters: hooks provide what is learned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import onnx_ir as ir
import torch
from torch import Tensor

from quantpipe.graph.view import Graph, Node
from quantpipe.intake.cleanup import LEAST_OPSET
from quantpipe.train.float_op import Call, FloatOp, Numbers
from quantpipe.train.torch_ops import FLOAT_ROWS

STANDARD = ("", "ai.onnx")
HELD = frozenset(
    (ir.DataType.DOUBLE, ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.BOOL,
     ir.DataType.INT64, ir.DataType.INT32, ir.DataType.INT16, ir.DataType.INT8, ir.DataType.UINT32, ir.DataType.UINT16,
     ir.DataType.UINT8)
)  # fmt: skip
"""Types of constants that a network can hold."""


class NotTrainable(Exception):
    """A node that torch cannot compute here: its text names the node, its op, and the reason."""


class Hooks(Protocol):
    """Replace values of a run."""

    def made(self, tensor: str, value: Tensor) -> Tensor:
        """Return the value of a tensor that the run needs and was given, or that a node made; called once for each."""

    def read(self, node: Node, port: int, value: Tensor) -> Tensor:
        """Return the value that a node reads at a port that is no constant."""

    def constant(self, node: Node, port: int, value: Tensor) -> Tensor:
        """Return the value that a node reads at a port that is a floating constant."""

    def call(self, node: Node, operands: list[Tensor | None]) -> Tensor | None:
        """Return the result of a node, or None to have the table compute it."""


class _Unchanged:
    """Leave every value as it is."""

    def made(self, tensor: str, value: Tensor) -> Tensor:
        return value

    def read(self, node: Node, port: int, value: Tensor) -> Tensor:
        return value

    def constant(self, node: Node, port: int, value: Tensor) -> Tensor:
        return value

    def call(self, node: Node, operands: list[Tensor | None]) -> Tensor | None:
        return None


@dataclass(frozen=True, eq=False)
class _Step:
    """Hold the row of a node, and the constants that the row reads as numbers, by port."""

    row: FloatOp
    known: Mapping[int, Numbers]


@dataclass(frozen=True, eq=False)
class FloatNetwork:
    """Compute a graph with torch in float32, or in float64 where the given values are float64.

    Integers of any width are int64. A network has no parameters of its own.
    """

    graph: Graph
    device: torch.device
    _steps: dict[str, _Step] = field(default_factory=dict, repr=False)
    _constants: dict[tuple[str, torch.dtype], Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, graph: Graph, device: torch.device, nodes: Collection[str] | None = None) -> FloatNetwork:
        """Return the network of a graph, whose nodes (or only some of them, by name) can all be computed.

        Raises NotTrainable for the first node without a row in the table, or with a form that its row does not support.
        """
        network = cls(graph, device)
        for node in graph.nodes:
            if nodes is None or node.name in nodes:
                network._step(node)
        return network

    def run(
        self,
        values: Mapping[str, Tensor],
        wanted: Collection[str],
        hooks: Hooks | None = None,
        nodes: Sequence[Node] | None = None,
    ) -> dict[str, Tensor]:
        """Return wanted tensors, computed in order by the needed nodes among `nodes` (default: all).

        `values` are graph inputs or inner tensors `[N, ...]`; the nodes before a given tensor do not run. A value is
        freed after its last reader. Raises NotTrainable as `of` does, and ValueError for a tensor that is neither given
        nor made.
        """
        hooks, dtype = hooks or _Unchanged(), _dtype_of(values)
        chosen = self._needed(values, wanted, self.graph.nodes if nodes is None else nodes)
        left = Counter([t for node in chosen for t in node.inputs if t] + list(wanted))
        held = {t: hooks.made(t, self._entering(v, dtype)) for t, v in values.items() if left[t]}
        for node in chosen:
            results = self._computed(node, held, hooks, dtype)
            for tensor in node.inputs:
                left[tensor] -= 1
                if not left[tensor]:
                    held.pop(tensor, None)
            for tensor, value in zip(node.outputs, results, strict=False):
                if tensor and tensor not in held:
                    value = hooks.made(tensor, value)
                    if left[tensor]:
                        held[tensor] = value
        return {t: held[t] if t in held else self._constant(t, dtype) for t in wanted}

    def _computed(self, node: Node, held: Mapping[str, Tensor], hooks: Hooks, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return the results of a node on the values that the hooks give it."""
        step = self._step(node)
        operands: list[Tensor | None] = []
        changed = set()
        for port, tensor in enumerate(node.inputs):
            if not tensor:
                operands.append(None)
            elif self.graph.is_constant(tensor):
                constant = self._constant(tensor, dtype)
                offered = hooks.constant(node, port, constant) if constant.is_floating_point() else constant
                changed |= set() if offered is constant else {port}
                operands.append(offered)
            else:
                operands.append(hooks.read(node, port, held[tensor]))
        result = hooks.call(node, operands)
        if result is None:
            known = {port: numbers for port, numbers in step.known.items() if port not in changed}
            return self._results(node, Call(node, operands, dtype, known))
        return (result,)

    def compute(self, node: Node, operands: Sequence[Tensor | None]) -> Tensor:
        """Return the first result of a node from its operands, as the table computes it."""
        first = next(operand for operand in operands if operand is not None)
        return self._results(node, Call(node, operands, first.dtype, self._step(node).known))[0]

    def _results(self, node: Node, call: Call) -> tuple[Tensor, ...]:
        result = self._step(node).row.compute(call)
        return result if isinstance(result, tuple) else (result,)

    def _needed(self, values: Mapping[str, Tensor], wanted: Collection[str], nodes: Sequence[Node]) -> list[Node]:
        """Return the nodes that make the wanted tensors from the given ones, in order."""
        missing = {t for t in wanted if t not in values and not self.graph.is_constant(t)}
        chosen = []
        for node in reversed(nodes):
            if missing.intersection(node.outputs):
                chosen.append(node)
                missing.difference_update(node.outputs)
                missing.update(t for t in node.inputs if t and t not in values and not self.graph.is_constant(t))
        if missing:
            raise ValueError(f"neither given nor made by the nodes to run: {', '.join(sorted(missing))}")
        return chosen[::-1]

    def _step(self, node: Node) -> _Step:
        """Return the row of a node and its numbers, found once."""
        if node.name not in self._steps:
            reason = self._reason(node)
            if reason is not None:
                domain = f"{node.domain}." if node.domain not in STANDARD else ""
                raise NotTrainable(f"node {node.name} ({domain}{node.op_type}) cannot be trained: {reason}")
            row = FLOAT_ROWS[node.op]
            ports = [p for p in sorted(row.numbers) if p < len(node.inputs) and self.graph.is_constant(node.inputs[p])]
            known = {p: tuple(self.graph.constant(node.inputs[p]).ravel().tolist()) for p in ports}
            self._steps[node.name] = _Step(row, known)
        return self._steps[node.name]

    def _reason(self, node: Node) -> str | None:
        """Return why a node cannot be computed, or None where it can."""
        if node.has_body:
            return "it holds graphs of its own"
        if node.op not in FLOAT_ROWS or node.domain not in STANDARD:
            return "torch has no form of this op here"
        if self.graph.opset < LEAST_OPSET:
            return f"its opset is {self.graph.opset}, and the table follows opset {LEAST_OPSET} and later"
        for tensor in node.inputs:
            if self.graph.is_constant(tensor):
                kind = self.graph.constant_tensor(tensor).dtype
                if kind not in HELD:
                    return f"its constant {tensor} is of type {kind.name}"
        return FLOAT_ROWS[node.op].reason(node)

    def _constant(self, tensor: str, dtype: torch.dtype) -> Tensor:
        """Return a constant on the device, converted once for each floating type."""
        key = (tensor, dtype)
        if key not in self._constants:
            array = self.graph.constant(tensor)
            kind = {"b": "bool", "i": "int64", "u": "int64"}.get(array.dtype.kind, "float64")
            self._constants[key] = self._entering(torch.tensor(array.astype(kind)), dtype)
        return self._constants[key]

    def _entering(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a value on the device, with floats as `dtype` and integers as int64."""
        kind = dtype if value.is_floating_point() else torch.bool if value.dtype is torch.bool else torch.int64
        return value.to(self.device, kind)


def _dtype_of(values: Mapping[str, Tensor]) -> torch.dtype:
    return torch.float64 if any(v.dtype is torch.float64 for v in values.values()) else torch.float32
