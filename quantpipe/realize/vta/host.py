"""The host's part of a VTA model: nodes in float, moves of values, conversions between floats and integers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from quantpipe import intmath
from quantpipe.arrays import Array
from quantpipe.graph.execute import Session
from quantpipe.graph.extract import part_of
from quantpipe.graph.view import Graph, Node
from quantpipe.types import Form, Kernel, Move, QuantPlan, Rounding, Topology


class Host:
    """Hold the tensors of one sample in the forms that exist, and make others at need."""

    def __init__(self, graph: Graph, topology: Topology, plan: QuantPlan, sessions: dict[str, Session]) -> None:
        """`sessions`: sessions of nodes, kept from sample to sample."""
        self.graph, self.topology, self.plan, self._sessions = graph, topology, plan, sessions
        self.real: dict[str, Array] = {}
        self.raw: dict[str, Array] = {}
        self.integers: dict[str, Array] = {}

    def begin(self, inputs: Mapping[str, Array]) -> None:
        """Take the real inputs of a sample."""
        self.real, self.raw, self.integers = dict(inputs), {}, {}

    def stored(self, tensor: str) -> Array:
        """Return the stored integers of a tensor, made of what there is of it."""
        if tensor in self.integers:
            return self.integers[tensor]
        q = self.plan.quantizers[tensor]
        if tensor in self.plan.constants:
            found = self.plan.constants[tensor]
        elif tensor in self.raw:
            how = self.plan.narrowings[tensor]
            found = intmath.requantize_shift(
                self.raw[tensor],
                how.shift,
                how.zero_point,
                qmin=how.low,
                qmax=how.high,
                rounding=Rounding(how.rounding),
            ).astype(q.dtype.numpy)
        else:
            found = intmath.quantize(self.real[tensor], q.scale, q.zero_point, qmin=q.qmin, qmax=q.qmax, dtype=q.dtype)
        self.integers[tensor] = found
        return found

    def _real(self, tensor: str) -> Array:
        if tensor not in self.real:
            if tensor in self.raw:
                self.real[tensor] = intmath.dequantize(self.raw[tensor], self.plan.raw_scales[tensor])
            else:
                q = self.plan.quantizers[tensor]
                self.real[tensor] = intmath.dequantize(self.integers[tensor], q.scale, q.zero_point)
        return self.real[tensor]

    def float_node(self, node: Node) -> None:
        """Run a node in float."""
        reads = [t for t in dict.fromkeys((*node.inputs, *node.captured)) if t and not self.graph.is_constant(t)]
        outputs = [t for t in node.outputs if t]
        self.real |= self._run(node, {t: self._real(t) for t in reads}, outputs)

    def move(self, kernel: Kernel, numbers: Move) -> None:
        """Run a node that moves values, on q - z as floats, which hold them exactly."""
        node = self.graph.by_name[kernel.node]
        raw = kernel.form is Form.RAW
        values = {}
        for operand in kernel.operands:
            if operand.form is Form.RAW:
                values[operand.tensor] = self.raw[operand.tensor].astype(np.float32)
                continue
            zero = self.plan.quantizers[operand.tensor].zero_point
            values[operand.tensor] = self.stored(operand.tensor).astype(np.float32) - np.float32(zero)
        found = self._run(node, values, [node.outputs[0]])[node.outputs[0]].astype(np.int64)
        zero = 0 if raw else self.plan.quantizers[kernel.output].zero_point
        found = found + zero
        if numbers.low is not None or numbers.high is not None:
            found = np.clip(found, numbers.low, numbers.high)
        if raw:
            self.raw[kernel.output] = found
        else:
            self.integers[kernel.output] = found.astype(self.plan.quantizers[kernel.output].dtype.numpy)

    def _run(self, node: Node, feeds: Mapping[str, Array], outputs: list[str]) -> dict[str, Array]:
        if node.name not in self._sessions:
            part = part_of(self.graph, list(feeds), outputs)
            self._sessions[node.name] = Session(part.model, where=f"host, {node.name}")
        return self._sessions[node.name].run(feeds, outputs)
