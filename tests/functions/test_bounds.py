"""How far functions of rows lie from the float ones, on drawn rows and scales; and no step leaves its bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantpipe.oprules.rows import RESPONSE_EXPONENTS, LocalResponse, Normalization
from quantpipe.plan.programs import exponentials as ex
from quantpipe.plan.programs.division import quotient
from quantpipe.plan.programs.local_response import local_response_normalized
from quantpipe.plan.programs.log_softmax import log_softmax
from quantpipe.plan.programs.norms import normalized
from quantpipe.plan.programs.softmax import divided_softmax, tflite_softmax
from quantpipe.plan.programs.writer import ProgramValue, ProgramWriter
from quantpipe.types import DType, FunctionKind, Program, Quantizer, Rounding
from tests.functions.steps import run_program
from tests.functions.test_softmax import grid, rows_of
from tests.ops.line import Net, line

Array = np.ndarray[Any, Any]


def carried_out(writer: ProgramWriter, last: ProgramValue, rows: Array) -> Array:
    program = Program("n", FunctionKind.TABLE, 1, tuple(writer.steps), np.asarray(1, np.float32), last.peak, None)
    return run_program(program, [rows.astype(np.int64)])


@st.composite
def drawn_rows(draw: st.DrawFn) -> tuple[DType, float, Array]:
    dtype = draw(st.sampled_from([DType.INT8, DType.UINT8, DType.INT16]))
    scale = 2.0 ** draw(st.floats(-10, 1)) / (256 if dtype.bits > 8 else 1)
    return dtype, scale, rows_of(dtype, 12, draw(st.integers(2, 80)), draw(st.integers(0, 1 << 20)))


@settings(max_examples=40, deadline=None)
@given(drawn=drawn_rows(), centred=st.booleans(), seed=st.integers(0, 99))
def test_normalizations(drawn: tuple[DType, float, Array], centred: bool, seed: int) -> None:
    dtype, scale, rows = drawn
    rng, n = np.random.default_rng(seed), rows.shape[1]
    gain, offset = rng.normal(1, 0.5, n), rng.normal(0, 1, n)
    what = Normalization((1,), n, n, 1e-5, centred, gain, offset)
    data = grid(dtype, scale)
    writer = ProgramWriter("n", [(data.low, data.high)])
    last, step = normalized(writer, data, what)
    assert last.peak < 1 << 31, "the accumulator is one of 32 bits"
    real = rows * np.float64(data.scale)
    middle = real.mean(1, keepdims=True) if centred else 0.0
    wanted = (real - middle) / np.sqrt(((real - middle) ** 2).mean(1, keepdims=True) + 1e-5) * gain + offset
    found = carried_out(writer, last, rows) * step
    # Rows of hardly any spread hang on the rounding of epsilon; all others on that of y and its gain.
    spread = (rows.max(1) - rows.min(1) >= 8) if centred else (np.abs(rows.astype(int)).max(1) >= 8)
    limit = 2.0**-10 * np.abs(gain).max() * max(np.sqrt(n) / 2, 1) + 2.0**-12
    assert np.abs(found - wanted)[spread].max(initial=0) <= limit


@settings(max_examples=60, deadline=None)
@given(drawn=drawn_rows(), size=st.integers(1, 9), exponent=st.sampled_from(RESPONSE_EXPONENTS),
       logs=st.tuples(st.floats(-5, 2), st.floats(-2, 1)))  # fmt: skip
def test_local_responses(
    drawn: tuple[DType, float, Array], size: int, exponent: float, logs: tuple[float, float]
) -> None:
    dtype, scale, rows = drawn
    what, data = LocalResponse(size, 10.0 ** logs[0], exponent, 10.0 ** logs[1]), grid(dtype, scale)
    maps = rows[..., None, None]
    writer = ProgramWriter("n", [(data.low, data.high)])
    last, step = local_response_normalized(writer, data, what, maps.shape, finest=0.0)
    assert last.peak < 1 << 31, "the accumulator is one of 32 bits"
    real, channels = maps * np.float64(data.scale), maps.shape[1]
    sums = np.zeros_like(real)
    for c in range(channels):
        inside = slice(max(0, c - (size - 1) // 2), min(channels - 1, c + size // 2) + 1)
        sums[:, c] = (real[:, inside] ** 2).sum(axis=1)
    wanted = real / (what.bias + what.alpha / size * sums) ** exponent
    found = carried_out(writer, last, maps) * step
    assert np.all(np.abs(found - wanted) <= 2.0**-12 * np.abs(wanted) + 1.5 * step)


SOFTMAX = {"table": 3.0, "polynomial": 1.8, "shift": 7.0}
"""Greatest distance of 8-bit results from the float Softmax, in steps of 1/256."""


@pytest.mark.parametrize("kind", SOFTMAX)
@settings(max_examples=25, deadline=None)
@given(drawn=drawn_rows())
def test_softmax(kind: str, drawn: tuple[DType, float, Array]) -> None:
    dtype, scale, rows = drawn
    entries = {
        "table": lambda span: ex.table_exponentials(scale, span, 16),
        "polynomial": lambda span: ex.polynomial_exponentials(scale, np.arange(-span, 1)),
        "shift": lambda span: ex.shift_exponentials(scale, np.arange(-span, 1)),
    }[kind]
    out = grid(DType.INT8, 1 / 256, -128)
    writer = ProgramWriter("n", [(dtype.qmin, dtype.qmax)])
    rounding = Rounding.HALF_UP if kind == "table" else Rounding.FLOOR
    last = divided_softmax(writer, out, entries, (1,), count=rows.shape[1], rounding=rounding)
    found = carried_out(writer, last, rows) + 128
    assert np.abs(found - 256 * softmax(rows * scale)).max() <= SOFTMAX[kind]


def test_shares_of_a_table_are_rounded() -> None:
    """Dropping what is behind the point would take half a step off each of them, and double the error."""
    net = Net(seed=1)
    net.output(net.node("Softmax", net.conv(net.input(None, 4, 6, 6), 4, 8, 1, 1), axis=1, name="shares"))
    made = line(net, "qnn_htp")
    plan = made.plan(8)
    program = plan.kernels["shares"]
    assert isinstance(program, Program)
    q = plan.quantizers[made.graph.by_name["shares"].inputs[0]]
    rows = np.random.default_rng(0).integers(0, 256, (2000, 8))
    real = softmax((rows - q.zero_point) * float(q.scale)) / float(plan.quantizers["shares_out"].scale)
    error = run_program(program, [rows - q.zero_point]) - real
    assert abs(error.mean()) < 0.05
    assert np.sqrt(np.mean(error**2)) < 0.35


@settings(max_examples=25, deadline=None)
@given(drawn=drawn_rows())
def test_softmax_of_tflite(drawn: tuple[DType, float, Array]) -> None:
    dtype, scale, rows = drawn
    out = grid(DType.INT8, 1 / 256, -128) if dtype.bits <= 8 else grid(DType.INT16, 2.0**-15)
    writer = ProgramWriter("n", [(dtype.qmin, dtype.qmax)])
    last = tflite_softmax(writer, grid(dtype, scale), out, (1,), count=rows.shape[1])
    found = (carried_out(writer, last, rows) - out.zero_point) * float(out.scale)
    # Of 16 bits no exponential is below exp(-10), a step or two each, and all of them are in the sum.
    steps = 1.0 if dtype.bits <= 8 else 12.0 + 2.0 * rows.shape[1]
    assert np.abs(found - softmax(rows * scale)).max() <= steps * float(out.scale) + 1e-6


@settings(max_examples=25, deadline=None)
@given(drawn=drawn_rows())
def test_log_softmax(drawn: tuple[DType, float, Array]) -> None:
    dtype, scale, rows = drawn
    writer = ProgramWriter("n", [(dtype.qmin, dtype.qmax)])
    last, step = log_softmax(writer, grid(dtype, scale), (1,), count=rows.shape[1])
    assert last.peak < 1 << 31
    real = rows * np.float64(np.float32(scale))
    real = real - real.max(1, keepdims=True)
    wanted = real - np.log(np.exp(real).sum(1, keepdims=True))
    assert np.abs(carried_out(writer, last, rows) * step - wanted).max() <= 2e-3


@settings(max_examples=10, deadline=None)
@given(
    kinds=st.tuples(*[st.sampled_from([DType.INT8, DType.UINT8, DType.INT16])] * 3),
    exponents=st.tuples(*[st.floats(-12, 4)] * 3),
    zeros=st.tuples(st.integers(0, 90), st.integers(0, 90)),
)
def test_quotients(kinds: tuple[DType, ...], exponents: tuple[float, ...], zeros: tuple[int, int]) -> None:
    """Every code by every code (of 16 bits every 257th, and those around zero), against exact fractions."""
    a, b = (grid(d, 2.0**e, z) for d, e, z in zip(kinds, exponents, zeros, strict=False))
    out = grid(kinds[2], 2.0 ** exponents[2])
    writer = ProgramWriter("n", [(q.low, q.high) for q in (a, b)])
    last, step = quotient(writer, a, b, out)
    assert last.peak <= 1 << 30, "the quotient is one of 32 bits"
    x, y = (codes_of(q) for q in (a, b))
    program = Program("n", FunctionKind.DIVISION, 2, tuple(writer.steps), np.asarray(1, np.float32), last.peak, None)
    found = run_program(program, [x[:, None], y[None]]) * (step / float(out.scale))
    divisor = np.where(y == 0, 1, y)
    wanted = x[:, None] * (float(a.scale) / float(b.scale) / float(out.scale)) / divisor
    most = 1 << 17  # beyond what any stored type holds the quotient saturates
    coarse = step / float(out.scale)
    near = np.abs(np.clip(found, -most, most) - np.clip(wanted, -most, most))
    assert np.all(near <= coarse + 1e-9 * np.abs(wanted)), near.max()
    assert coarse <= 2.0**-8, "finer than a step of the result, so that rounding it is what counts"


def codes_of(q: Quantizer) -> Array:
    step = 257 if q.dtype.bits > 8 else 1
    found = np.unique([*range(q.low, q.high + 1, step), *(v for v in range(-3, 4) if q.low <= v <= q.high)])
    return found.astype(np.int64)


def softmax(real: Array) -> Array:
    e = np.exp(real - real.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))
