"""quantize and dequantize: equal to exact arithmetic, and to onnxruntime's QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper

from quantpipe.errors import DataError
from quantpipe.intmath import dequantize, quantize
from quantpipe.types import DType

ONNX_TYPE = {
    DType.INT8: TensorProto.INT8,
    DType.UINT8: TensorProto.UINT8,
    DType.INT16: TensorProto.INT16,
    DType.UINT16: TensorProto.UINT16,
}


@given(
    st.floats(-(2.0**100), 2.0**100, width=32),
    st.floats(2**-100, 1e10, width=32),
    st.sampled_from(sorted(ONNX_TYPE)),
    st.data(),
)
def test_quantize_is_exact(x: float, scale: float, dtype: DType, data: st.DataObject) -> None:
    zero = data.draw(st.integers(dtype.qmin, dtype.qmax))
    # The quotient is the correctly rounded float32 (IEEE 754); from there on the oracle is exact.
    with np.errstate(over="ignore"):
        quotient = float(np.float32(x) / np.float32(scale))
    if np.isinf(quotient):
        expected = dtype.qmax if quotient > 0 else dtype.qmin
    else:
        expected = min(max(round(Fraction(quotient)) + zero, dtype.qmin), dtype.qmax)
    assert int(quantize(x, scale, zero, qmin=dtype.qmin, qmax=dtype.qmax, dtype=dtype)) == expected


@given(st.integers(-(2**20), 2**20), st.integers(-20, 20), st.integers(2, 16))
def test_ties_go_to_even_and_narrow_bounds_hold(half_steps: int, exponent: int, bits: int) -> None:
    scale = 2.0**exponent
    bound = 2 ** (bits - 1) - 1
    got = int(quantize(half_steps / 2 * scale, scale, 0, qmin=-bound, qmax=bound, dtype=DType.INT16))
    assert got == min(max(round(Fraction(half_steps, 2)), -bound), bound)


def test_int32_bounds_are_exact() -> None:
    low, high = DType.INT32.qmin, DType.INT32.qmax
    got = quantize([-3e9, 3e9, np.inf, -np.inf, 2.0**30], 1.0, 0, qmin=low, qmax=high, dtype=DType.INT32)
    assert got.dtype == np.int32 and got.tolist() == [low, high, high, low, 2**30]


def test_nan_is_refused() -> None:
    with pytest.raises(DataError, match="NaN"):
        quantize([1.0, np.nan], 1.0, 0, qmin=-128, qmax=127, dtype=DType.INT8)


@given(
    st.integers(DType.INT32.qmin, DType.INT32.qmax),
    st.floats(2**-60, 1e10, width=32),
)
def test_dequantize_rounds_twice_as_float32_does(q: int, scale: float) -> None:
    expected = np.float32(np.float32(q) * np.float32(scale))
    assert dequantize(np.int32(q), scale) == expected


@cache
def session(dtype: DType, axis: int | None, op: str) -> ort.InferenceSession:
    code = ONNX_TYPE[dtype]
    per = [] if axis is None else ["c"]
    here, there = (TensorProto.FLOAT, code) if op == "QuantizeLinear" else (code, TensorProto.FLOAT)
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "s", "z"], ["y"], **attributes)],
        "g",
        [
            helper.make_tensor_value_info("x", here, ["n", "m", "k"]),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, per),
            helper.make_tensor_value_info("z", code, per),
        ],
        [helper.make_tensor_value_info("y", there, ["n", "m", "k"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def hard_values(rng: np.random.Generator, shape: tuple[int, ...], scale: NDArray[Any]) -> NDArray[np.float32]:
    """Random values, exact and almost exact ties, and values far outside."""
    steps = rng.integers(-70000, 70000, shape) * 0.5
    near = np.nextafter(steps.astype(np.float32), np.float32(rng.choice([-1e9, 1e9])))
    kind = rng.integers(0, 4, shape)
    x = np.choose(kind, [rng.normal(0, 100, shape), steps, near, rng.normal(0, 1e8, shape)])
    return (x.astype(np.float32) * scale).astype(np.float32)


@pytest.mark.parametrize("dtype", sorted(ONNX_TYPE))
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
@pytest.mark.parametrize("power_of_two", [True, False])
def test_equal_to_onnxruntime(dtype: DType, axis: int | None, power_of_two: bool) -> None:
    rng = np.random.default_rng(7)
    shape = (5, 64, 33)
    size = () if axis is None else (shape[axis],)
    scale = np.asarray(2.0 ** rng.integers(-9, 3, size) if power_of_two else rng.uniform(1e-3, 3, size))
    scale = scale.astype(np.float32)
    zero = np.asarray(rng.integers(dtype.qmin, dtype.qmax + 1, size)).astype(dtype.numpy)
    spread = (
        scale
        if axis is None
        else np.moveaxis(np.broadcast_to(scale, shape[:axis] + shape[axis + 1 :] + size), -1, axis)
    )
    x = hard_values(rng, shape, spread)
    q = session(dtype, axis, "QuantizeLinear").run(None, {"x": x, "s": scale, "z": zero})[0]
    mine = quantize(x, scale, zero, qmin=dtype.qmin, qmax=dtype.qmax, dtype=dtype, axis=axis)
    assert mine.dtype == q.dtype
    np.testing.assert_array_equal(mine, q)
    r = session(dtype, axis, "DequantizeLinear").run(None, {"x": q, "s": scale, "z": zero})[0]
    np.testing.assert_array_equal(dequantize(q, scale, zero, axis), r)
