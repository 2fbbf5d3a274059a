"""Reading an integer model: QDQ, QOperator and plain integer graphs come out as the same list of ops on stored tensors.

Nothing is cleaned or guessed: a tensor is stored when the file says so, and what the file does not say (the scales of a
graph of ConvInteger, say) is absent.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.graph.view import Graph, Node
from quantpipe.lint.forms import BYTE_OPS, CAST, CONVERSIONS, DEQUANTIZE, INTEGER_OPS, LONG, QUANTIZE, SHORT
from quantpipe.lint.forms import Stored as Ports
from quantpipe.oprules import Family, rule_of

REAL = "float32"


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor held in integers. `scale` and `zero` are None where the file does not say; `values` of a constant."""

    tensor: str
    dtype: str
    scale: NDArray[np.float64] | None = field(default=None, repr=False)
    zero: NDArray[np.int64] | None = field(default=None, repr=False)
    values: NDArray[Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class QuantizedOp:
    """One op on stored tensors. `node` has the ports of the float op, so that OP_RULES can read it. `output` is None
    where the result leaves as real numbers or as an accumulator."""

    node: Node
    operands: tuple[Stored, ...]
    weight: Stored | None = None
    bias: Stored | None = None
    output: Stored | None = None


@dataclass(frozen=True, eq=False)
class Reading:
    """All ops in graph order; `real` are the nodes that compute with real numbers, conversions not among them."""

    graph: Graph
    ops: tuple[QuantizedOp, ...]
    real: tuple[Node, ...]


def read(graph: Graph) -> Reading:
    """The ops of an integer model and its float nodes."""
    return _Reader(graph).read()


class _Reader:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._grids: dict[str, Stored] = {}
        """Integer tensor -> what is known of it."""

    def read(self) -> Reading:
        ops, real, fused = [], [], set()
        for node in self._graph.nodes:
            if node.op in CONVERSIONS:
                self._note_conversion(node)
                continue
            if node.name in fused:
                continue
            found = self._integer(node) if node.op in INTEGER_OPS else self._plain(node)
            clamps, output = self._result(node) if found is not None else (set(), None)
            if found is not None and not (output is None and self._only_reads_integers(found)):
                fused |= clamps
                ops.append(replace(found, output=output))
            elif self._is_real(node):
                real.append(node)
        return Reading(self._graph, tuple(ops), tuple(n for n in real if n.name not in fused))

    # --- conversions ------------------------------------------------------------------------------------------------

    def _note_conversion(self, node: Node) -> None:
        if node.op == QUANTIZE:
            self._keep(self._stored(node, node.outputs[0], 1, 2))
        elif node.op == DEQUANTIZE:
            self._keep(self._stored(node, node.inputs[0], 1, 2))

    def _keep(self, stored: Stored) -> Stored:
        return self._grids.setdefault(stored.tensor, stored)

    def _stored(self, node: Node, tensor: str, scale: int | None, zero: int | None) -> Stored:
        steps, offset = self._number(node, scale), self._number(node, zero)
        constant = self._packed(tensor)
        return Stored(
            tensor,
            self._dtype(constant),
            None if steps is None else steps.astype(np.float64).reshape(-1),
            np.zeros(1, np.int64) if offset is None else offset.astype(np.int64).reshape(-1),
            self._values(constant),
        )

    def _values(self, tensor: str) -> NDArray[Any] | None:
        if not self._graph.is_constant(tensor):
            return None
        values = self._graph.constant(tensor)
        return values.astype(np.int8) if self._dtype(tensor) in SHORT else values

    def _packed(self, tensor: str) -> str:
        """The 4-bit constant that a tensor is cast from, or the tensor itself."""
        producer = self._graph.producers.get(tensor)
        packed = producer is not None and producer.op == CAST and self._dtype(producer.inputs[0]) in SHORT
        return producer.inputs[0] if producer is not None and packed else tensor

    def _number(self, node: Node, port: int | None) -> NDArray[Any] | None:
        tensor = node.inputs[port] if port is not None and port < len(node.inputs) else ""
        return self._graph.constant(tensor) if tensor and self._graph.is_constant(tensor) else None

    def _dtype(self, tensor: str) -> str:
        return str(self._graph.dtypes.get(tensor, REAL))

    def _is_real(self, node: Node) -> bool:
        return any(self._dtype(t) == REAL for t in node.outputs if t)

    def _only_reads_integers(self, op: QuantizedOp) -> bool:
        """Whether an op dequantizes its operands and goes on in float: only sums of products are integers then."""
        rule = rule_of(op.node)
        accumulates = rule is not None and rule.family is Family.ACCUMULATE
        return self._is_real(op.node) and not accumulates

    # --- ops --------------------------------------------------------------------------------------------------------

    def _integer(self, node: Node) -> QuantizedOp:
        """An op that is integer by its name."""
        form = INTEGER_OPS[node.op]
        ports = _triples(node) if form.repeats else form.data
        operands = tuple(self._operand(node, p) for p in ports)
        weight = bias = None
        inputs = [o.tensor for o in operands]
        if form.weight is not None:
            found = self._operand(node, form.weight)
            # Two activations multiplied are two operands, whatever the op calls them.
            if found.values is None:
                operands = (*operands, found)
            else:
                weight = found
            inputs.append(found.tensor)
        if form.bias is not None and form.bias < len(node.inputs) and node.inputs[form.bias]:
            tensor = node.inputs[form.bias]
            bias = Stored(tensor, self._dtype(tensor))
            inputs.append(tensor)
        plain = Node(node.name, form.op, "", tuple(inputs), node.outputs, node.attributes)
        if form.scale is not None and form.scale < len(node.inputs) and node.inputs[form.scale]:
            self._keep(self._stored(node, node.outputs[0], form.scale, form.zero))
        return QuantizedOp(plain, operands, weight, bias)

    def _operand(self, node: Node, ports: Ports) -> Stored:
        tensor = node.inputs[ports.data]
        found = self._keep(self._stored(node, tensor, ports.scale, ports.zero))
        return replace(found, dtype=self._whole(tensor))

    def _whole(self, tensor: str) -> str:
        """The type of a tensor, or of the 16-bit one whose byte it is: no kernel multiplies 16-bit integers, so their
        products are made of bytes."""
        origin = tensor
        while self._dtype(origin) not in LONG:
            producer = self._graph.producers.get(origin)
            if producer is None or producer.op not in BYTE_OPS:
                return self._dtype(tensor)
            origin = producer.inputs[0]
        return self._dtype(origin)

    def _plain(self, node: Node) -> QuantizedOp | None:
        """An op of OP_RULES behind DequantizeLinear, or on integers themselves."""
        rule = rule_of(node)
        if rule is None:
            return None
        operands = tuple(s for p in rule.data_ports(node) if (s := self._behind(node.inputs[p])) is not None)
        if len(operands) < len(rule.data_ports(node)):
            return None
        weight = self._behind(node.inputs[rule.weight]) if rule.weight is not None else None
        if rule.weight is not None and weight is None:
            return None
        if weight is not None and weight.values is None:
            operands, weight = (*operands, weight), None
        bias = None
        if rule.bias is not None and rule.bias < len(node.inputs) and node.inputs[rule.bias]:
            tensor = node.inputs[rule.bias]
            bias = self._behind(tensor) or Stored(tensor, self._dtype(tensor))
        if rule.family in (Family.MOVE, Family.CLAMP) and self._dtype(node.outputs[0]) != REAL:
            self._keep(replace(operands[0], tensor=node.outputs[0], values=None))
        return QuantizedOp(node, operands, weight, bias)

    def _behind(self, tensor: str) -> Stored | None:
        """The stored tensor that a tensor is, or is dequantized from."""
        if tensor in self._grids:
            return self._grids[tensor]
        producer = self._graph.producers.get(tensor)
        return self._grids.get(producer.inputs[0]) if producer is not None and producer.op == DEQUANTIZE else None

    def _result(self, node: Node) -> tuple[set[str], Stored | None]:
        """(the clamps between an op and its QuantizeLinear, what the result is stored as)."""
        clamps: set[str] = set()
        tensor = node.outputs[0]
        while True:
            if tensor in self._grids:
                return clamps, self._grids[tensor]
            readers = self._graph.consumers.get(tensor, ())
            if len({r.name for r, _ in readers}) != 1 or tensor in self._graph.output_names:
                return set(), None
            reader = readers[0][0]
            if reader.op == QUANTIZE:
                return clamps, self._keep(self._stored(reader, reader.outputs[0], 1, 2))
            rule = rule_of(reader)
            if rule is None or rule.family is not Family.CLAMP or self._dtype(tensor) != REAL:
                return set(), None
            clamps.add(reader.name)
            tensor = reader.outputs[0]


def _triples(node: Node) -> tuple[Ports, ...]:
    return tuple(Ports(p, p + 1, p + 2) for p in range(2, len(node.inputs), 3))
