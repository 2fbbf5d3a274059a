"""Programs in the making: instructions with their tokens, and the memory that they load from."""

from __future__ import annotations

from dataclasses import dataclass, field

from quantpipe.realize.vta.isa import ELEMENT_BYTES, Instruction, Memory, Op, Uop

ALIGN = 256


class Image:
    """Hold the memory of constants: regions of bytes, one after the other, aligned to the largest element."""

    def __init__(self, base: int = 0) -> None:
        """`base`: the bytes of the tensors, which lie before them."""
        self._parts: list[bytes] = []
        self.size = self.base = base + -base % ALIGN
        self._known: dict[bytes, int] = {}

    def put(self, data: bytes) -> int:
        """Return the address of some constants; equal ones are kept once."""
        if data not in self._known:
            padded = data + bytes(-len(data) % ALIGN)
            self._known[data] = self.size
            self._parts.append(padded)
            self.size += len(padded)
        return self._known[data]

    def element(self, memory: Memory, data: bytes) -> int:
        """Return the address of some constants in elements of a buffer."""
        return self.put(data) // ELEMENT_BYTES[memory]

    @property
    def content(self) -> bytes:
        """Return all of it."""
        return b"".join(self._parts)


@dataclass
class VtaProgram:
    """Collect the instructions of one layer, and set the tokens by which the queues wait for each other."""

    image: Image
    instructions: list[Instruction] = field(default_factory=list)
    _uops: tuple[Uop, ...] = ()
    _wait_for_store: bool = False
    _first_load: bool = True
    _pending: list[Instruction] = field(default_factory=list)

    def load(self, memory: Memory, sram: int, dram: int, size: tuple[int, int], **more: int) -> None:
        """Emit a LOAD of some rows and columns; `more`: stride and pads."""
        rows, columns = size
        fields = {"memory": int(memory), "sram": sram, "dram": dram, "y_size": rows, "x_size": columns}
        one = Instruction(Op.LOAD, {**fields, "x_stride": columns, **more})
        if one.queue == "load":
            if not self._pending and not self._first_load:  # what is overwritten has been read
                self._last_computed().fields["push_prev"] = 1
                one.fields["pop_next"] = 1
            self._first_load = False
            self._pending.append(one)
            self.instructions.append(one)
        else:
            self._compute(one)

    def gemm(self, uops: list[Uop], loop: dict[str, int], *, reset: bool = False) -> None:
        """Emit a GEMM over micro-operations, after the loads that it reads."""
        one = Instruction(Op.GEMM, {"reset": int(reset), **self._held(uops), **loop})
        if self._pending:
            self._pending[-1].fields["push_next"] = 1
            one.fields["pop_prev"] = 1
            self._pending = []
        self._compute(one)

    def alu(self, opcode: int, uops: list[Uop], loop: dict[str, int], imm: int | None = None) -> None:
        """Emit an ALU operation, with an immediate or a second accumulator."""
        fields = {"alu_opcode": opcode, **self._held(uops), **loop}
        fields |= {} if imm is None else {"use_imm": 1, "imm": imm}
        self._compute(Instruction(Op.ALU, fields))

    def store(self, parts: list[tuple[int, int, int, int, int]]) -> None:
        """Emit STOREs of (sram, dram, rows, columns, stride) after all computations."""
        self._last_computed().fields["push_next"] = 1
        for n, (sram, dram, rows, columns, stride) in enumerate(parts):
            fields = {"memory": int(Memory.OUT), "sram": sram, "dram": dram, "y_size": rows, "x_size": columns}
            one = Instruction(Op.STORE, {**fields, "x_stride": stride})
            one.fields |= {"pop_prev": 1} if n == 0 else {}
            one.fields |= {"push_prev": 1} if n == len(parts) - 1 else {}
            self.instructions.append(one)
        self._wait_for_store = True

    def finish(self) -> list[Instruction]:
        """Return the whole program, its last instruction included."""
        self._compute(Instruction(Op.FINISH))
        return self.instructions

    def _last_computed(self) -> Instruction:
        return next(i for i in reversed(self.instructions) if i.queue == "compute")

    def _held(self, uops: list[Uop]) -> dict[str, int]:
        """Have micro-operations in their buffer."""
        wanted = tuple(uops)
        if wanted != self._uops:
            data = b"".join(u.encoded for u in wanted)
            self.load(Memory.UOP, 0, self.image.element(Memory.UOP, data), (1, len(wanted)))
            self._uops = wanted
        return {"uop_begin": 0, "uop_end": len(wanted)}

    def _compute(self, one: Instruction) -> None:
        if self._wait_for_store:
            one.fields["pop_next"] = 1
            self._wait_for_store = False
        self.instructions.append(one)
