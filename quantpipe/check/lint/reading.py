"""Reading an integer model: QDQ, QOperator and plain integer graphs come out as the same list of ops on stored tensors.

Nothing is cleaned or guessed. A tensor is stored when the file declares it, and undeclared facts (the scales of a graph
of ConvInteger, for example) are absent.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.graph.op_tables import (
    BYTE_OPS,
    CAST,
    CONVERSIONS,
    DEQUANTIZE,
    DYNAMIC,
    INTEGER_OPS,
    LONG,
    PACKED_WEIGHTS,
    QUANTIZE,
    REALS,
    RESHAPE,
    SHORT,
    WIDE,
    Ports,
)
from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import Family, OpRule, rule_of
from quantpipe.types import DType


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """Hold a tensor in integers. `scale` and `zero` may be missing in the file; `values` of a constant."""

    tensor: str
    dtype: str
    scale: NDArray[np.float64] | None = field(default=None, repr=False)
    zero: NDArray[np.int64] | None = field(default=None, repr=False)
    values: NDArray[Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class QuantizedOp:
    """Describe one op on stored tensors.

    `node` has the ports of the float op, and the constant that a weight is made from in the weight's place, so that
    OP_RULES can read it. `output`: None where the result is a float or an accumulator.
    """

    node: Node
    operands: tuple[StoredTensor, ...]
    weight: StoredTensor | None = None
    bias: StoredTensor | None = None
    output: StoredTensor | None = None


@dataclass(frozen=True, eq=False)
class Reading:
    """Hold what a quantized model's ops are, in graph order.

    `real` are the float nodes, without conversions and arithmetic on constants; `dynamic` are the nodes that find
    ranges at run time. `weight_only` are the members of `real` whose weights are integers while their data are not.
    """

    graph: Graph
    ops: tuple[QuantizedOp, ...]
    real: tuple[Node, ...]
    dynamic: tuple[Node, ...] = ()
    weight_only: tuple[Node, ...] = ()


def read(graph: Graph) -> Reading:
    """Return the ops of an integer model and its float nodes."""
    return _Reader(graph).read()


class _Reader:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._grids: dict[str, StoredTensor] = {}
        """Integer tensor -> what is known of it."""
        self._fixed = _from_constants(graph)

    def read(self) -> Reading:
        ops, real, fused = [], [], set()
        for node in self._graph.nodes:
            if node.outputs[0] in self._fixed and node.op not in CONVERSIONS:
                continue
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
        left = tuple(n for n in real if n.name not in fused)
        dynamic = tuple(n for n in self._graph.nodes if n.op in DYNAMIC)
        return Reading(self._graph, tuple(ops), left, dynamic, tuple(n for n in left if self._weight_only(n)))

    # --- conversions ------------------------------------------------------------------------------------------------

    def _note_conversion(self, node: Node) -> None:
        if node.op == QUANTIZE:
            self._keep(self._stored(node, node.outputs[0], 1, 2))
        elif node.op == DEQUANTIZE:
            self._keep(self._stored(node, node.inputs[0], 1, 2))

    def _keep(self, stored: StoredTensor) -> StoredTensor:
        return self._grids.setdefault(stored.tensor, stored)

    def _stored(self, node: Node, tensor: str, scale: int | None, zero: int | None) -> StoredTensor:
        steps, offset = self._number(node, scale), self._number(node, zero)
        constant = self._packed(tensor)
        return StoredTensor(
            tensor,
            self._dtype(constant),
            None if steps is None else steps.astype(np.float64).reshape(-1),
            np.zeros(1, np.int64) if offset is None else offset.astype(np.int64).reshape(-1),
            self._values(constant),
        )

    def _values(self, tensor: str) -> NDArray[Any] | None:
        """Return the integers of a constant, even if the file quantizes it itself; their order does not matter."""
        if tensor in self._fixed:
            return self._quantized(self._graph.producers[tensor])
        if not self._graph.is_constant(tensor):
            return None
        values = self._graph.constant(tensor)
        return values.astype(np.int8) if self._dtype(tensor) in SHORT else values

    def _quantized(self, node: Node) -> NDArray[Any]:
        """Return the result of QuantizeLinear on a constant; nothing where it works in blocks, or on computed data."""
        real, steps, offset = (self._number(node, port) for port in range(3))
        dtype = self._dtype(node.outputs[0])
        if node.op != QUANTIZE or real is None or steps is None or steps.ndim > 1 or dtype not in set(DType):
            return np.zeros(0, np.int8)
        kind, zero = DType(dtype), np.zeros(steps.shape, np.int64) if offset is None else offset.astype(np.int64)
        axis = int(node.attr("axis", 1)) if steps.size > 1 else None
        steps, zero = (steps, zero) if axis is not None else (steps.reshape(()), zero.reshape(()))
        return intmath.quantize(real, steps, zero, qmin=kind.qmin, qmax=kind.qmax, dtype=kind, axis=axis)

    def _packed(self, tensor: str) -> str:
        """Return the constant that a tensor is reshaped or, from 4 bits, cast from; or the tensor itself."""
        while (producer := self._graph.producers.get(tensor)) is not None:
            packed = producer.op == CAST and self._dtype(producer.inputs[0]) in SHORT
            if not packed and not (producer.op == RESHAPE and tensor in self._fixed):
                break
            tensor = producer.inputs[0]
        return tensor

    def _origin(self, tensor: str) -> str:
        """Return the constant that a tensor is made from, where it is made from constants alone."""
        while tensor in self._fixed:
            tensor = self._graph.producers[tensor].inputs[0]
        return tensor

    def _number(self, node: Node, port: int | None) -> NDArray[Any] | None:
        tensor = node.inputs[port] if port is not None and port < len(node.inputs) else ""
        return self._graph.constant(tensor) if tensor and self._graph.is_constant(tensor) else None

    def _dtype(self, tensor: str) -> str:
        return str(self._graph.dtypes.get(tensor, DType.FLOAT32))

    def _is_real(self, node: Node) -> bool:
        return any(self._dtype(t) in REALS for t in node.outputs if t)

    def _weight_only(self, node: Node) -> bool:
        rule = rule_of(node)
        if rule is None or rule.weight is None:
            return node.op in PACKED_WEIGHTS
        return rule.weight < len(node.inputs) and self._weight_behind(node, rule) is not None

    def _only_reads_integers(self, op: QuantizedOp) -> bool:
        """Return whether an op dequantizes its operands and goes on in float.

        Only sums of products with weights are integers then.
        """
        return self._is_real(op.node) and op.weight is None

    # --- ops --------------------------------------------------------------------------------------------------------

    def _integer(self, node: Node) -> QuantizedOp:
        """Return an op that is integer by its name."""
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
            inputs.append(self._origin(found.tensor))
        if form.bias is not None and form.bias < len(node.inputs) and node.inputs[form.bias]:
            tensor = node.inputs[form.bias]
            bias = StoredTensor(tensor, self._dtype(tensor))
            inputs.append(tensor)
        plain = Node(node.name, form.op, "", tuple(inputs), node.outputs, node.attributes)
        if form.scale is not None and form.scale < len(node.inputs) and node.inputs[form.scale]:
            self._keep(self._stored(node, node.outputs[0], form.scale, form.zero))
        return QuantizedOp(plain, operands, weight, bias)

    def _operand(self, node: Node, ports: Ports) -> StoredTensor:
        tensor = node.inputs[ports.data]
        found = self._keep(self._stored(node, tensor, ports.scale, ports.zero))
        return replace(found, dtype=self._whole(tensor))

    def _whole(self, tensor: str) -> str:
        """Return the type of a tensor, or of the 16-bit one whose byte it is.

        No kernel multiplies 16-bit integers, so their products are made of bytes.
        """
        origin = tensor
        while self._dtype(origin) not in LONG:
            producer = self._graph.producers.get(origin)
            if producer is None or producer.op not in BYTE_OPS:
                return self._dtype(tensor)
            origin = producer.inputs[0]
        return self._dtype(origin)

    def _plain(self, node: Node) -> QuantizedOp | None:
        """Return an op of OP_RULES after DequantizeLinear, or on integers themselves."""
        rule = rule_of(node)
        if rule is None:
            return None
        operands = tuple(s for p in rule.data_ports(node) if (s := self._data_behind(node.inputs[p])) is not None)
        if len(operands) < len(rule.data_ports(node)):
            return None
        weight = self._weight_behind(node, rule)
        if rule.weight is not None and weight is None:
            return None
        if weight is not None and weight.values is None:
            operands, weight = (*operands, weight), None
        if weight is not None:
            inputs = [self._origin(t) if port == rule.weight else t for port, t in enumerate(node.inputs)]
            node = replace(node, inputs=tuple(inputs))
        bias = None
        if rule.bias is not None and rule.bias < len(node.inputs) and node.inputs[rule.bias]:
            tensor = node.inputs[rule.bias]
            bias = self._behind(tensor) or StoredTensor(tensor, self._dtype(tensor))
        if rule.family in (Family.MOVE, Family.CLAMP) and self._dtype(node.outputs[0]) not in REALS:
            self._keep(replace(operands[0], tensor=node.outputs[0], values=None))
        return QuantizedOp(node, operands, weight, bias)

    def _behind(self, tensor: str) -> StoredTensor | None:
        """Return the stored tensor that a tensor is, or is dequantized from."""
        if tensor in self._grids:
            return self._grids[tensor]
        producer = self._graph.producers.get(tensor)
        return self._grids.get(producer.inputs[0]) if producer is not None and producer.op == DEQUANTIZE else None

    def _data_behind(self, tensor: str) -> StoredTensor | None:
        """Return the same for an activation; a dequantized accumulator is a float."""
        found = self._behind(tensor)
        accumulator = found is not None and found.tensor != tensor and found.dtype in WIDE and found.values is None
        return None if accumulator else found

    def _weight_behind(self, node: Node, rule: OpRule) -> StoredTensor | None:
        """Return the stored tensor that an op's weight is dequantized from; exporters may transpose it in between."""
        if rule.weight is None:
            return None
        tensor = node.inputs[rule.weight]
        while (found := self._behind(tensor)) is None and tensor in self._fixed:
            tensor = self._graph.producers[tensor].inputs[0]
        return found

    def _result(self, node: Node) -> tuple[set[str], StoredTensor | None]:
        """Return (the clamps between an op and its QuantizeLinear, how the result is stored)."""
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
            if rule is None or rule.family is not Family.CLAMP or self._dtype(tensor) not in REALS:
                return set(), None
            clamps.add(reader.name)
            tensor = reader.outputs[0]


def _from_constants(graph: Graph) -> frozenset[str]:
    """Return tensors that nodes make from constants alone: the runtime computes them once, at load."""
    found: set[str] = set()
    for node in graph.nodes:
        read = [t for t in (*node.inputs, *node.captured) if t]
        if read and all(graph.is_constant(t) or t in found for t in read):
            found.update(t for t in node.outputs if t)
    return frozenset(found)


def _triples(node: Node) -> tuple[Ports, ...]:
    return tuple(Ports(p, p + 1, p + 2) for p in range(2, len(node.inputs), 3))
