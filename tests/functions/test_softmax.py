"""Softmax in integers: bit by bit that of TFLite's reference kernels, and near the float one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quantpipe.plan.programs.softmax import tflite_softmax
from quantpipe.plan.programs.writer import ProgramWriter
from quantpipe.types import DType, FunctionKind, Program, Quantizer
from tests.functions.litert import run_op
from tests.functions.steps import run_program

Array = np.ndarray[Any, Any]


def grid(dtype: DType, scale: float, zero: int = 0) -> Quantizer:
    return Quantizer("t", np.asarray(scale, np.float32), zero, dtype, dtype.bits, dtype.qmin, dtype.qmax)


def softmax(dtype: DType, scale: float, rows: Array) -> Array:
    """The program's stored integers of `rows` [rows, n] of stored integers with zero point 0."""
    out = grid(dtype, 1 / 256, -128) if dtype is DType.INT8 else grid(dtype, 1 / 32768)
    data = grid(dtype, scale)
    writer = ProgramWriter("node", [(data.low, data.high)])
    last = tflite_softmax(writer, data, out, (1,), count=rows.shape[1])
    program = Program("node", FunctionKind.TFLITE, 1, tuple(writer.steps), out.scale, last.peak, None)
    return run_program(program, [rows.astype(np.int64)])


def rows_of(dtype: DType, count: int, length: int, seed: int) -> Array:
    """Rows over the whole type, rows of few values, and rows that are all equal."""
    rng = np.random.default_rng(seed)
    spread = rng.integers(0, dtype.bits, size=(count, 1))
    found = rng.integers(dtype.qmin, dtype.qmax + 1, size=(count, length)) >> spread
    found[0], found[1] = dtype.qmax, dtype.qmin
    found[2, 0] = dtype.qmax
    return found.astype(dtype.numpy)


@pytest.mark.parametrize("scale", [1e-4, 0.0123, 1 / 16, 0.173, 1.0, 7.5, 15.9, 16.0, 31.0, 1e3, 8e6])
@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16])
def test_softmax_is_that_of_tflite(dtype: DType, scale: float) -> None:
    if dtype is DType.INT16:
        scale = min(scale / 256, 5.0)  # beyond, int32 overflows in LiteRT's kernel of 16 bits
    out = (1 / 256, -128) if dtype is DType.INT8 else (1 / 32768, 0)
    for length in (1, 2, 7, 64, 300):
        rows = rows_of(dtype, 40, length, seed=length)
        wanted = run_op("SOFTMAX", ("SoftmaxOptions", {"beta": 1.0}), rows, (float(np.float32(scale)), 0), out)
        np.testing.assert_array_equal(softmax(dtype, scale, rows), wanted)
