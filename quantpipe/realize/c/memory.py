"""Place the tensors of a C model: one static block per element width, shared by tensors that do not overlap.

Takes the steps of the model with what each of them reads and writes; gives an offset per buffer. Blocks hold elements
of one width, so that no memory is ever read as another type than it was written as.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quantpipe.types import DType


@dataclass(eq=False)
class Buffer:
    """Hold one tensor of a C model.

    `name`: Its name in C. `external`: It is an argument or a constant, so that it takes no place in the blocks.
    `offset`: Its start in the block of its width, in elements. `base`: The buffer whose memory it shares, under another
    shape.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    external: bool = False
    offset: int = 0
    base: Buffer | None = None

    @property
    def root(self) -> Buffer:
        """Return the buffer that the memory belongs to."""
        return self if self.base is None else self.base.root

    def renamed(self, shape: tuple[int, ...]) -> Buffer:
        """Return the same memory under another shape."""
        return Buffer(self.name, self.dtype, shape, self.external, base=self)

    @property
    def count(self) -> int:
        """Return how many elements it has."""
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def ctype(self) -> str:
        """Return the type of its elements in C."""
        return ctype(self.dtype)

    @property
    def width(self) -> int:
        """Return the bytes of an element."""
        return byte_width(self.dtype)


def byte_width(dtype: DType) -> int:
    """Return the bytes of an element as C holds it: 4 bits take a byte."""
    return max(dtype.bits, 8) // 8


def ctype(dtype: DType) -> str:
    """Return the type of elements in C."""
    return f"{'' if dtype.signed else 'u'}int{byte_width(dtype) * 8}_t"


@dataclass(frozen=True, eq=False)
class MemoryStep:
    """Hold one statement of a model's run, and the buffers that it reads and writes.

    `shown`: a tensor that can be observed after it.
    """

    code: str
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...] = ()
    shown: Buffer | None = None


def place(steps: Sequence[MemoryStep], kept: Sequence[Buffer]) -> dict[int, int]:
    """Give every buffer an offset in the block of its width, first fit, in the order of the statements.

    `kept` buffers are read after the last statement. The result maps a width in bytes to the elements of its block.
    """
    last: dict[Buffer, int] = {}
    for number, step in enumerate(steps):
        for buffer in (*step.reads, *step.writes):
            last[buffer.root] = number
    last |= {buffer.root: len(steps) for buffer in kept}
    sizes: dict[int, int] = {}
    live: list[Buffer] = []
    for number, step in enumerate(steps):
        for buffer in step.writes:
            if buffer.external or buffer in live:
                continue
            buffer.offset = _gap(buffer, live)
            live.append(buffer)
            sizes[buffer.width] = max(sizes.get(buffer.width, 0), buffer.offset + buffer.count)
        live = [b for b in live if last[b] > number]
    return sizes


def _gap(buffer: Buffer, live: Sequence[Buffer]) -> int:
    """Return the first place where a buffer fits between those that are alive."""
    at = 0
    for other in sorted((b for b in live if b.width == buffer.width), key=lambda b: b.offset):
        if at + buffer.count <= other.offset:
            return at
        at = max(at, other.offset + other.count)
    return at
