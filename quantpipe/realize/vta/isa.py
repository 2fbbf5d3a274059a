"""VTA's instructions and the sizes of its shipped configuration, as its headers define them; 128 bits, little endian.

Source: apache/tvm-vta, include/vta/hw_spec.h and hw_spec_const.h, config/fsim_sample.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from quantpipe.errors import HardwareError

BLOCK = 16
"""Channels of a vector; a weight tile is BLOCK x BLOCK."""
UOPS, INPUTS, WEIGHTS, ACCUMULATORS = 1 << 13, 1 << 11, 1 << 10, 1 << 11
"""Elements of the buffers: micro-operations, vectors of 16 int8, tiles of 16 x 16 int8, vectors of 16 int32."""
MOST_PAD = 15
BYTES = 16
"""Of an instruction."""


class Op(IntEnum):
    """Name the kind of an instruction."""

    LOAD = 0
    STORE = 1
    GEMM = 2
    FINISH = 3
    ALU = 4


class Memory(IntEnum):
    """Name a buffer."""

    UOP = 0
    WGT = 1
    INP = 2
    ACC = 3
    OUT = 4


ELEMENT_BYTES: Mapping[Memory, int] = {
    Memory.UOP: 4,
    Memory.WGT: 256,
    Memory.INP: 16,
    Memory.ACC: 64,
    Memory.OUT: 16,
}
DEPTH: Mapping[Memory, int] = {
    Memory.UOP: UOPS,
    Memory.WGT: WEIGHTS,
    Memory.INP: INPUTS,
    Memory.ACC: ACCUMULATORS,
    Memory.OUT: ACCUMULATORS,
}


class Alu(IntEnum):
    """Name what the ALU does; cores of the first hardware version have no MUL."""

    MIN = 0
    MAX = 1
    ADD = 2
    SHR = 3
    MUL = 4


_HEAD = (("opcode", 3), ("pop_prev", 1), ("pop_next", 1), ("push_prev", 1), ("push_next", 1))
_MOVE = (
    *(("memory", 3), ("sram", 16), ("dram", 32), ("unused", 6)),
    *(("y_size", 16), ("x_size", 16), ("x_stride", 16)),
    *(("y_pad_0", 4), ("y_pad_1", 4), ("x_pad_0", 4), ("x_pad_1", 4)),
)
_LOOP = (
    *(("reset", 1), ("uop_begin", 13), ("uop_end", 14), ("iter_out", 14), ("iter_in", 14), ("unused", 1)),
    *(("dst_out", 11), ("dst_in", 11), ("src_out", 11), ("src_in", 11)),
)
LAYOUT: Mapping[Op, tuple[tuple[str, int], ...]] = {
    Op.LOAD: (*_HEAD, *_MOVE),
    Op.STORE: (*_HEAD, *_MOVE),
    Op.GEMM: (*_HEAD, *_LOOP, ("wgt_out", 10), ("wgt_in", 10)),
    Op.ALU: (*_HEAD, *_LOOP, ("alu_opcode", 3), ("use_imm", 1), ("imm", 16)),
    Op.FINISH: (*_HEAD, ("unused", 121)),
}
"""Kind -> (field, bits), from bit 0 on."""
SIGNED = ("imm",)
UOP_LAYOUT = (("dst", 11), ("src", 11), ("wgt", 10))


@dataclass
class Instruction:
    """Hold one instruction; fields that are not given are 0."""

    op: Op
    fields: dict[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> int:
        return self.fields.get(name, 0)

    @property
    def encoded(self) -> bytes:
        """Return its 16 bytes; HardwareError where a field does not hold its value."""
        return _packed(LAYOUT[self.op], {"opcode": int(self.op), **self.fields}, f"{self.op.name}")

    @property
    def queue(self) -> str:
        """Return the queue that runs it: load, compute or store."""
        if self.op is Op.STORE:
            return "store"
        return "load" if self.op is Op.LOAD and self["memory"] in (Memory.WGT, Memory.INP) else "compute"


@dataclass(frozen=True)
class Uop:
    """Hold one micro-operation: indices of an accumulator, of an input (or a second accumulator), and of a tile."""

    dst: int
    src: int = 0
    wgt: int = 0

    @property
    def encoded(self) -> bytes:
        """Return its 4 bytes."""
        return _packed(UOP_LAYOUT, {"dst": self.dst, "src": self.src, "wgt": self.wgt}, "micro-operation")


def _packed(layout: tuple[tuple[str, int], ...], values: Mapping[str, int], what: str) -> bytes:
    word, at = 0, 0
    for name, bits in layout:
        value = values.get(name, 0)
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if name in SIGNED else (0, (1 << bits) - 1)
        if not low <= value <= high:
            raise HardwareError(f"{what}.{name} is {value}; its {bits} bits hold {low} to {high}", where="vta")
        word |= (value & ((1 << bits) - 1)) << at
        at += bits
    return word.to_bytes((at + 7) // 8, "little")


def decoded(data: bytes) -> Iterator[Instruction]:
    """Yield the instructions of a stream."""
    for start in range(0, len(data), BYTES):
        word = int.from_bytes(data[start : start + BYTES], "little")
        op, at, fields = Op(word & 7), 0, dict[str, int]()
        for name, bits in LAYOUT[op]:
            value = (word >> at) & ((1 << bits) - 1)
            if name in SIGNED and value >> (bits - 1):
                value -= 1 << bits
            at += bits
            if value and name not in ("opcode", "unused"):
                fields[name] = value
        yield Instruction(op, fields)
