"""The text of a C file in the making: constants, functions, and the helpers that these call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.realize.c.helpers import HELPERS, NEEDS, REAL
from quantpipe.realize.c.memory import Buffer, MemoryStep, ctype
from quantpipe.types import DType

LONG = 1 << 16
"""Elements above which bytes are written as a string, which compilers read many times faster than a list."""
COLUMNS = 20
PLAIN = {ord(c): c for c in " !#$%&'()*+,-./:;<=>@[]^_`{|}~"} | {
    code: chr(code) for span in (range(65, 91), range(97, 123)) for code in span
}
"""Characters that stand for themselves in a string: no digit, which would prolong an escape, and no trigraph."""


class CSource:
    """Collect the parts of one C file."""

    def __init__(self) -> None:
        self.constants: list[str] = []
        self.functions: list[str] = []
        self.steps: list[MemoryStep] = []
        self.bytes = 0
        """Of all constants."""
        self._helpers: dict[str, None] = {}
        self._arrays: dict[tuple[str, bytes], str] = {}

    @property
    def helpers(self) -> list[str]:
        """Return the helpers in use, each after those that it calls."""
        return [HELPERS[name] for name in HELPERS if name in self._helpers]

    @property
    def real(self) -> bool:
        """Return whether anything computes in float."""
        return not REAL.isdisjoint(self._helpers)

    def use(self, helper: str) -> str:
        """Return the name of a helper, which will be in the file."""
        for needed in NEEDS.get(helper, ()):
            self.use(needed)
        self._helpers[helper] = None
        return helper

    def array(self, values: NDArray[Any], dtype: DType) -> str:
        """Return the name of a constant array; equal ones are written once."""
        flat = np.ascontiguousarray(values).reshape(-1)
        kind = "float" if dtype.is_float else ctype(dtype)
        stored = flat.astype(np.float32 if dtype.is_float else np.int64)
        key = (kind, stored.tobytes())
        if key not in self._arrays:
            name = f"c{len(self._arrays)}"
            self._arrays[key] = name
            self.constants.append(_declared(name, kind, stored))
            self.bytes += stored.size * (4 if dtype.is_float else max(dtype.bits, 8) // 8)
        return self._arrays[key]

    def call(self, title: str, body: str, inputs: Sequence[Buffer], output: Buffer) -> None:
        """Write a function over buffers, and the statement that calls it.

        `body` reads `x0`, `x1`, … and writes `y`; `title` becomes its comment.
        """
        name = f"f{len(self.functions)}"
        parameters = [f"const {b.ctype} *x{n}" for n, b in enumerate(inputs)] + [f"{output.ctype} *y"]
        self.functions.append(
            f"/* {comment(title)} */\nstatic void {name}({', '.join(parameters)})\n{{\n{body.rstrip()}\n}}\n"
        )
        arguments = ", ".join(b.name for b in (*inputs, output))
        self.steps.append(MemoryStep(f"{name}({arguments});", tuple(inputs), (output,), output))


def comment(text: str) -> str:
    """Return a text in a form that is legal in a comment."""
    plain = "".join(c if c.isprintable() and c.isascii() else "?" for c in text)
    return plain.replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?").replace("\\", "/")


def _declared(name: str, kind: str, values: NDArray[Any]) -> str:
    if values.size > LONG and kind in ("int8_t", "uint8_t"):
        return f"static const {kind} {name}[{values.size + 1}] =\n{_string(values.astype(np.uint8))};\n"
    items = [_real(float(v)) if kind == "float" else integer(int(v)) for v in values]
    lines = [", ".join(items[at : at + COLUMNS]) for at in range(0, len(items), COLUMNS)]
    return f"static const {kind} {name}[{max(values.size, 1)}] = {{\n" + ",\n".join(lines or ["0"]) + "};\n"


def _string(values: NDArray[np.uint8]) -> str:
    """Return bytes as string literals, each escape three octal digits long."""
    codes = [PLAIN.get(code) or f"\\{code:03o}" for code in range(256)]
    table = np.array(codes, dtype=object)
    rows = [values[at : at + 64] for at in range(0, values.size, 64)]
    return "\n".join('"' + "".join(table[row]) + '"' for row in rows)


def less(value: str, zero: int) -> str:
    """Return a value less its zero point."""
    return value if not zero else f"{value} - {zero}" if zero > 0 else f"{value} + {-zero}"


def integer(value: int) -> str:
    """Return an integer as C writes it; the minimum of a type is no literal of that type."""
    if value == -(1 << 63):
        return "INT64_MIN"
    if value == -(1 << 31):
        return "INT32_MIN"
    return str(value) if abs(value) < 1 << 31 else f"INT64_C({value})"


def _real(value: float) -> str:
    """Return a float32 without loss: hexadecimal digits are part of C99."""
    return f"{value.hex()}f"
