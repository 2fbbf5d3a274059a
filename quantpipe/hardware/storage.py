"""Choose the type in which each tensor is stored.

First the bits are chosen, then the narrowest kernels that hold them (the order of HAGO: bits, data type, threshold). A
kernel's signature names the types that it reads and writes. Each stored tensor gets the narrowest type that holds its
bits and on which the adjacent signatures agree. So a kernel whose operands have 8 bits runs as the device's int8
kernel, if it has one, and the next kernel, with 12 bits, as the int16 one. Signed types stay signed, so the integers do
not depend on the choice, only their storage and multiplication.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quantpipe.oprules import OP_RULES
from quantpipe.types import Accumulator, DType, Form, HardwareSpec, Kernel, OpSignature, Topology

Types = Mapping[str, DType]
Bits = Mapping[str, int]
Signatures = Mapping[str, tuple[OpSignature, ...]]
"""Kernel node -> every signature that takes it."""


@dataclass(frozen=True)
class _Row:
    """One way to run a kernel: the types of its tensors. `written`: those that its result may have."""

    read: Types
    output: str | None
    written: tuple[DType, ...]

    def holds(self, types: Types) -> bool:
        """Return whether every tensor fits in, whatever room is left."""
        fits = all(types[t].bits <= d.bits for t, d in self.read.items())
        return fits and (self.output is None or any(types[self.output].bits <= d.bits for d in self.written))

    def is_of(self, types: Types) -> bool:
        """Return whether the tensors have these very types."""
        same = all(types[t] is d for t, d in self.read.items())
        return same and (self.output is None or types[self.output] in self.written)

    def widened(self, types: Types) -> dict[str, DType]:
        """Return the types of this row; its result keeps its own if it may be written so, else the next wider one."""
        found = dict(self.read)
        if self.output is not None and types[self.output] not in self.written:
            found[self.output] = min((d for d in self.written if d.bits >= types[self.output].bits), key=_bits)
        return found


class StorageTypes:
    """Know the types that the tensors of some kernels may have.

    `own`: stored tensor or weight -> the type that it has without more being known; it is what every tensor has where
    the signatures leave no choice.
    """

    def __init__(self, kernels: Sequence[Kernel], signatures: Signatures, own: Types) -> None:
        self._own = dict(own)
        self._options: dict[str, tuple[DType, ...]] = {t: (d,) for t, d in self._own.items()}
        self._rows: dict[str, tuple[_Row, ...]] = {}
        if not signatures:
            return
        rows = {k.node: _rows(k, signatures.get(k.node, ()), self._own) for k in kernels}
        if any(len(found) > 1 for found in rows.values()):
            self._settle(rows)

    def options(self, tensor: str) -> tuple[DType, ...]:
        """Return the types that a tensor may have, the narrowest first."""
        return self._options.get(tensor, ())

    def at(self, bits: Bits) -> dict[str, DType]:
        """Return a mapping: tensor -> the narrowest type that holds its bits and that all kernels around it take."""
        if not self._rows:
            return self._own
        found = {t: narrowest(options, bits.get(t, self._own[t].bits)) for t, options in self._options.items()}
        changed = True
        while changed:  # types only become wider, so it ends
            changed = False
            for rows in self._rows.values():
                if any(row.is_of(found) for row in rows):
                    continue
                wider = [row.widened(found) for row in rows if row.holds(found)]
                if not wider:
                    return self._own
                raised: dict[str, DType] = min(wider, key=_width)
                found |= raised
                changed = True
        return found

    def width(self, tensor: str, bits: int, types: Types) -> int:
        """Return as how wide an operand counts where it is multiplied.

        That is its bits, unless its kernel has it in a wider type than they need.
        """
        stored = types[tensor]
        return bits if stored is narrowest(self.options(tensor), bits) else stored.bits

    def _settle(self, rows: Mapping[str, tuple[_Row, ...]]) -> None:
        """Remove options that no neighbour shares, until all agree."""
        self._options = _offered(rows, self._own)
        left, before = dict(rows), -1
        while before != (before := sum(map(len, left.values())) + sum(map(len, self._options.values()))):
            for node, found in left.items():
                legal = tuple(row for row in found if self._allowed(row))
                left[node] = legal
                for tensor in {t for row in found for t in _tensors(row)}:
                    kept = {d for row in legal for d in _types(row, tensor)}
                    self._options[tensor] = tuple(d for d in self._options[tensor] if d in kept)
        if all(left.values()) and all(self._options.values()):
            self._rows = {node: found for node, found in left.items() if found}
        else:
            self._options = {t: (d,) for t, d in self._own.items()}

    def _allowed(self, row: _Row) -> bool:
        read = all(d in self._options[t] for t, d in row.read.items())
        return read and (row.output is None or any(d in self._options[row.output] for d in row.written))


def weight_only_types(spec: HardwareSpec, op: str) -> tuple[DType, ...]:
    """Return the types of weights by which a device multiplies floats in an op, the narrowest first."""
    found = {s.inputs[-1] for s in spec.ops.get(op, ()) if s.is_weight_only}
    return tuple(sorted(found, key=_bits))


def signature_of(kernel: Kernel, signatures: Sequence[OpSignature], types: Types) -> OpSignature | None:
    """Return the signature that runs a kernel, from those that take its node, in the order of the hardware file.

    It is the first signature with exactly the kernel's types, else the first one; None without signatures.
    """
    read = [(o.port, o.tensor) for o in kernel.operands if o.form is Form.QUANTIZED and not o.rescaled]
    weight = OP_RULES[kernel.op].weight
    if kernel.weight is not None and weight is not None:
        read.append((weight, kernel.weight))
    for signature in signatures:
        written = kernel.form is not Form.QUANTIZED or types[kernel.output] in signature.outputs
        if written and all(signature.input(port) is types[tensor] for port, tensor in read):
            return signature
    return signatures[0] if signatures else None


def accumulators_of(topology: Topology, spec: HardwareSpec, node: str) -> tuple[Accumulator, ...]:
    """Return the accumulators that a kernel's signatures allow: the device's own if they name no other."""
    own = (s.accumulator or spec.accumulator for s in topology.signatures.get(node, ()))
    return tuple(dict.fromkeys(own)) or (spec.accumulator,)


def widest_accumulator(topology: Topology, spec: HardwareSpec, node: str) -> Accumulator:
    """Return the accumulator that holds the largest sums of those that a kernel may have."""
    return max(accumulators_of(topology, spec, node), key=lambda a: a.width)


def storage_types(topology: Topology) -> StorageTypes:
    """Return the storage types that a topology's tensors may have."""
    own = {t: g.dtype for g in topology.groups for t in g.tensors} | {w.tensor: w.dtype for w in topology.weights}
    return StorageTypes(topology.kernels, topology.signatures, own)


def _rows(kernel: Kernel, signatures: Sequence[OpSignature], own: Types) -> tuple[_Row, ...]:
    """Return the signatures as types of this kernel's tensors, of the same signs as it has.

    A kernel whose present types no signature names has one row, these types: nothing is known of how it came to them.
    An operand that is rescaled in front comes to the type of the result, so its own is free.
    """
    stored = [o for o in kernel.operands if o.form is Form.QUANTIZED and not o.rescaled]
    read = {o.tensor: o.port for o in stored if o.tensor in own}
    weight = OP_RULES[kernel.op].weight
    if kernel.weight is not None and weight is not None:
        read[kernel.weight] = weight
    output = kernel.output if kernel.form is Form.QUANTIZED and kernel.output in own else None
    found: dict[tuple[object, ...], _Row] = {}
    for signature in signatures:
        types = {t: signature.input(port) for t, port in read.items()}
        written = tuple(d for d in signature.outputs if output is not None and _alike(d, own[output]))
        alike = all(_alike(d, own[t]) for t, d in types.items())
        if alike and (output is None or written):
            found.setdefault((*types.items(), *written), _Row(types, output, written))
    rows = tuple(found.values())
    if any(row.is_of(own) for row in rows):
        return rows
    return (_Row({t: own[t] for t in read}, output, () if output is None else (own[output],)),)


def _offered(rows: Mapping[str, tuple[_Row, ...]], own: Types) -> dict[str, tuple[DType, ...]]:
    """Return tensor -> the types that each adjacent kernel names, the narrowest first."""
    found: dict[str, set[DType]] = {}
    for kernel in rows.values():
        for tensor in {t for row in kernel for t in _tensors(row)}:
            named = {d for row in kernel for d in _types(row, tensor)}
            found[tensor] = found.get(tensor, named) & named
    return {t: tuple(sorted(found.get(t, {d}), key=_bits)) for t, d in own.items()}


def _tensors(row: _Row) -> list[str]:
    return [*row.read, *([row.output] if row.output is not None else [])]


def _types(row: _Row, tensor: str) -> tuple[DType, ...]:
    read = (row.read[tensor],) if tensor in row.read else ()
    return read or (row.written if tensor == row.output else ())


def _alike(dtype: DType, own: DType) -> bool:
    return not dtype.is_float and dtype.signed == own.signed and dtype.bits <= 16


def narrowest(options: Sequence[DType], bits: int) -> DType:
    """Return the first of some types, in order of width, that holds so many bits; the widest where none does."""
    return next((d for d in options if d.bits >= bits), options[-1])


def _width(types: Types) -> int:
    return sum(d.bits for d in types.values())


def _bits(dtype: DType) -> int:
    return dtype.bits
