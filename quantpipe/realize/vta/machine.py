"""Execute VTA instructions in NumPy: scratchpads of their sizes, int32 that wraps, three queues that wait by tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import Array
from quantpipe.errors import HardwareError
from quantpipe.realize.vta.isa import (
    ACCUMULATORS,
    BLOCK,
    DEPTH,
    ELEMENT_BYTES,
    INPUTS,
    UOPS,
    WEIGHTS,
    Alu,
    Instruction,
    Memory,
    Op,
)

QUEUES = ("load", "compute", "store")


class Machine:
    """A core with its scratchpads and a memory of bytes.

    Queues run as far ahead as their tokens let them, loads first, so that a missing dependence gives other results.
    """

    def __init__(self, memory: NDArray[np.uint8], *, multiplies: bool = False) -> None:
        """`multiplies`: whether the ALU has MUL."""
        self.memory, self._multiplies = memory, multiplies
        self.uops = np.zeros((UOPS, 3), np.int64)
        self.inputs = np.zeros((INPUTS, BLOCK), np.int8)
        self.weights = np.zeros((WEIGHTS, BLOCK, BLOCK), np.int8)
        self.accumulators = np.zeros((ACCUMULATORS, BLOCK), np.int32)

    def run(self, program: Sequence[Instruction]) -> None:
        """Run a program to its end.

        Raises HardwareError where it reads or writes beyond a buffer, uses an op that the core lacks, or waits forever.
        """
        queues = {name: deque(i for i in program if i.queue == name) for name in QUEUES}
        tokens = dict.fromkeys(
            [("load", "compute"), ("compute", "load"), ("compute", "store"), ("store", "compute")], 0
        )
        while any(queues.values()):
            ready = next((q for q in QUEUES if queues[q] and _may(queues[q][0], q, tokens)), None)
            if ready is None:
                waiting = {q: queues[q][0].op.name for q in QUEUES if queues[q]}
                raise HardwareError(
                    f"the queues wait for each other for ever: {waiting}", stage="evaluate", where="vta"
                )
            one = queues[ready].popleft()
            for flag, source, target in _flags(ready):
                if flag.startswith("pop") and one[flag]:
                    tokens[source, target] -= 1
            self._execute(one)
            for flag, source, target in _flags(ready):
                if flag.startswith("push") and one[flag]:
                    tokens[source, target] += 1
        left = {f"{a} to {b}": n for (a, b), n in tokens.items() if n}
        if left:
            raise HardwareError(f"tokens are left after the program: {left}", stage="evaluate", where="vta")

    def _execute(self, one: Instruction) -> None:
        if one.op is Op.LOAD:
            self._load(one)
        elif one.op is Op.STORE:
            self._store(one)
        elif one.op is Op.GEMM:
            self._gemm(one)
        elif one.op is Op.ALU:
            self._alu(one)

    # --- memory -------------------------------------------------------------------------------------------------------

    def _load(self, one: Instruction) -> None:
        memory = Memory(one["memory"])
        size = ELEMENT_BYTES[memory]
        rows, columns = one["y_size"], one["x_size"]
        places = one["dram"] + np.arange(rows)[:, None] * one["x_stride"] + np.arange(columns)
        if places.size and (int(places.max()) + 1) * size > len(self.memory):
            raise HardwareError("LOAD reads beyond the memory", stage="evaluate", where="vta")
        values = self.memory[: len(self.memory) // size * size].reshape(-1, size)[places]
        pads = [(one["y_pad_0"], one["y_pad_1"]), (one["x_pad_0"], one["x_pad_1"])]
        whole = np.pad(values, (*pads, (0, 0)))
        if whole.shape[:2] != values.shape[:2] and memory is not Memory.INP:
            raise HardwareError("LOAD pads another memory than the inputs", stage="evaluate", where="vta")
        flat = np.ascontiguousarray(whole).reshape(-1, size)
        first, stop = one["sram"], one["sram"] + len(flat)
        if stop > DEPTH[memory]:
            raise HardwareError(
                f"LOAD writes {memory.name} up to {stop} of {DEPTH[memory]}", stage="evaluate", where="vta"
            )
        if memory is Memory.UOP:
            words = flat.view("<u4")[:, 0].astype(np.int64)
            self.uops[first:stop] = np.stack([words & 2047, (words >> 11) & 2047, words >> 22], axis=1)
        elif memory is Memory.WGT:
            self.weights[first:stop] = flat.view(np.int8).reshape(-1, BLOCK, BLOCK)
        elif memory is Memory.INP:
            self.inputs[first:stop] = flat.view(np.int8)
        else:
            self.accumulators[first:stop] = flat.view("<i4")

    def _store(self, one: Instruction) -> None:
        rows, columns = one["y_size"], one["x_size"]
        first, stop = one["sram"], one["sram"] + rows * columns
        if stop > ACCUMULATORS:
            raise HardwareError(f"STORE reads up to {stop} of {ACCUMULATORS}", stage="evaluate", where="vta")
        places = one["dram"] + np.arange(rows)[:, None] * one["x_stride"] + np.arange(columns)
        narrow = self.accumulators[first:stop].astype(np.int8)  # the low 8 bits
        view = self.memory[: len(self.memory) // BLOCK * BLOCK].reshape(-1, BLOCK)
        view[places.reshape(-1)] = narrow.view(np.uint8)

    # --- arithmetic ---------------------------------------------------------------------------------------------------

    def _places(self, one: Instruction) -> tuple[Array, Array, Array]:
        """Return (micro-operations, accumulators `[uops, steps]`, sources `[uops, steps]`) of a loop."""
        uops = self.uops[one["uop_begin"] : one["uop_end"]]
        out, inner = np.meshgrid(np.arange(one["iter_out"]), np.arange(one["iter_in"]), indexing="ij")
        dst = (out * one["dst_out"] + inner * one["dst_in"]).reshape(-1)
        src = (out * one["src_out"] + inner * one["src_in"]).reshape(-1)
        return uops, uops[:, :1] + dst, uops[:, 1:2] + src

    def _gemm(self, one: Instruction) -> None:
        uops, dst, src = self._places(one)
        _within(dst, ACCUMULATORS, "GEMM accumulator")
        if one["reset"]:
            self.accumulators[dst.reshape(-1)] = 0
            return
        _within(src, INPUTS, "GEMM input")
        if one["wgt_out"] or one["wgt_in"]:
            raise HardwareError("GEMM walks over weights, which is not executed", stage="evaluate", where="vta")
        products = self.inputs[src].astype(np.float32) @ self.weights[uops[:, 2]].astype(np.float32).swapaxes(1, 2)
        order = np.argsort(uops[:, 0], kind="stable")
        starts = np.flatnonzero(np.diff(uops[order, 0], prepend=-1))
        sums = np.add.reduceat(products[order].astype(np.int64), starts, axis=0)
        for places, values in zip(dst[order[starts]], sums, strict=True):
            if len(np.unique(places)) == len(places):
                self.accumulators[places] = (self.accumulators[places] + values).astype(np.int32)
            else:  # steps of one loop that add to one accumulator
                total = self.accumulators.astype(np.int64)
                np.add.at(total, places, values)
                self.accumulators = total.astype(np.int32)

    def _alu(self, one: Instruction) -> None:
        op = Alu(one["alu_opcode"])
        if op is Alu.MUL and not self._multiplies:
            raise HardwareError("this core's ALU does not multiply", stage="evaluate", where="vta")
        uops, dst, src = self._places(one)
        _within(dst, ACCUMULATORS, "ALU accumulator")
        for number in range(len(uops)):
            places = dst[number]
            if one["reset"]:
                self.accumulators[places] = 0
                continue
            a = self.accumulators[places].astype(np.int64)
            b: Any = one["imm"]
            if not one["use_imm"]:
                _within(src, ACCUMULATORS, "ALU source")
                b = self.accumulators[src[number]].astype(np.int64)
            self.accumulators[places] = _of(op, a, b).astype(np.int32)


def _of(op: Alu, a: NDArray[np.int64], b: Any) -> NDArray[np.int64]:
    """Return the ALU's result on int32 numbers, before it wraps."""
    if op is Alu.MIN:
        return np.asarray(np.minimum(a, b), np.int64)
    if op is Alu.MAX:
        return np.asarray(np.maximum(a, b), np.int64)
    if op is Alu.ADD:
        return np.asarray(a + b, np.int64)
    if op is Alu.MUL:
        return np.asarray(a * b, np.int64)
    shift = np.asarray(b)
    return np.asarray(np.where(shift >= 0, a >> np.maximum(shift, 0), a << np.maximum(-shift, 0)), np.int64)


def _within(places: Array, depth: int, what: str) -> None:
    if places.size and (places.min() < 0 or places.max() >= depth):
        raise HardwareError(f"{what} {int(places.max())} is beyond {depth}", stage="evaluate", where="vta")


def _flags(queue: str) -> list[tuple[str, str, str]]:
    """Return (flag, from, to) of the tokens that a queue takes and gives."""
    before = {"compute": "load", "store": "compute"}.get(queue)
    after = {"load": "compute", "compute": "store"}.get(queue)
    found = []
    if before is not None:
        found += [("pop_prev", before, queue), ("push_prev", queue, before)]
    if after is not None:
        found += [("pop_next", after, queue), ("push_next", queue, after)]
    return found


def _may(one: Instruction, queue: str, tokens: dict[tuple[str, str], int]) -> bool:
    return all(
        not (flag.startswith("pop") and one[flag]) or tokens[source, target] for flag, source, target in _flags(queue)
    )
