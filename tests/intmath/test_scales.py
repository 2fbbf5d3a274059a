"""From a range to scale, zero point and integer bounds: every schema, checked against its definition."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quantpipe.errors import DataError, HardwareError
from quantpipe.intmath import dequantize, quantize, scale_zero_point, scales_zero_points, signed_storage
from quantpipe.types import Denominator, DType, PowerOfTwo, Range, Symmetry, TensorSchema

STORAGE = [DType.INT4, DType.UINT4, DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT32]

ends = st.floats(0.0, 2.0**100, width=32)
schemas = st.builds(
    TensorSchema,
    symmetry=st.sampled_from(Symmetry),
    narrow=st.booleans(),
    denominator=st.sampled_from(Denominator),
    power_of_two=st.sampled_from(PowerOfTwo),
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[Range, int, DType, TensorSchema]:
    dtype = draw(st.sampled_from(STORAGE))
    bits = draw(st.integers(2, dtype.bits))
    schema = draw(schemas)
    low = draw(st.one_of(st.just(0.0), ends))
    if not dtype.signed and schema.symmetry is not Symmetry.ASYMMETRIC:
        low = 0.0
    return Range(-low, draw(ends)), bits, dtype, schema


@given(requests())
def test_every_legal_request(request_: tuple[Range, int, DType, TensorSchema]) -> None:
    range_, bits, dtype, schema = request_
    scale, zero, qmin, qmax = scale_zero_point(range_, bits, dtype, schema)
    assert isinstance(scale, np.float32) and isinstance(zero, int)
    assert scale >= np.finfo(np.float32).tiny and np.isfinite(scale)
    assert dtype.qmin <= qmin <= zero <= qmax <= dtype.qmax
    assert int(quantize(0.0, scale, zero, qmin=qmin, qmax=qmax, dtype=dtype)) == zero  # real 0 is exact
    if schema.power_of_two is not PowerOfTwo.NONE:
        assert math.frexp(float(scale))[0] == 0.5


@given(requests())
def test_the_scale_is_the_definition_within_one_float32_rounding(
    request_: tuple[Range, int, DType, TensorSchema],
) -> None:
    range_, bits, dtype, schema = request_
    assume(range_.threshold > 1e-20)
    low, high = Fraction(range_.low), Fraction(range_.high)
    affine = schema.symmetry is Symmetry.ASYMMETRIC or (
        schema.symmetry is Symmetry.SYMMETRIC_UNSIGNED and range_.low >= 0
    )
    power = 2**bits if affine or not dtype.signed else 2 ** (bits - 1)
    steps = power if schema.denominator is Denominator.RANGE else power - 1
    exact = (high - low if affine else max(-low, high)) / steps
    scale = Fraction(float(scale_zero_point(range_, bits, dtype, schema)[0]))
    ratio = float(scale / exact)
    if schema.power_of_two is PowerOfTwo.NONE:
        assert abs(ratio - 1) <= 2**-23
    elif schema.power_of_two is PowerOfTwo.NEAREST:
        assert 2**-0.5 * 0.999999 <= ratio <= 2**0.5 * 1.000001
    else:
        assert 1 - 2**-40 <= ratio < 2


@pytest.mark.parametrize(
    ("schema", "dtype", "bits", "low", "expected"),
    [
        # numerics.md 1: scale = T/R, clip +-(R - 1).
        (TensorSchema(denominator="range"), DType.INT8, 8, -2.0, (2.0 / 128, 0, -127, 127)),
        (TensorSchema(denominator="range"), DType.INT8, 6, -2.0, (2.0 / 32, 0, -31, 31)),
        (TensorSchema(denominator="max"), DType.INT8, 8, -2.0, (2.0 / 127, 0, -127, 127)),
        (TensorSchema(narrow=False), DType.INT8, 8, -2.0, (2.0 / 127, 0, -128, 127)),
        (TensorSchema(), DType.UINT8, 8, 0.0, (2.0 / 255, 0, 0, 255)),
        (TensorSchema(denominator="range"), DType.UINT8, 4, 0.0, (2.0 / 16, 0, 0, 15)),
        (TensorSchema(symmetry="asymmetric"), DType.UINT8, 8, -1.0, (3.0 / 255, 85, 0, 255)),
        (TensorSchema(symmetry="asymmetric"), DType.INT8, 8, -1.0, (3.0 / 255, -43, -128, 127)),
        (TensorSchema(symmetry="asymmetric", denominator="range"), DType.UINT8, 8, -2.0, (4.0 / 256, 128, 0, 255)),
        (TensorSchema(symmetry="asymmetric"), DType.INT8, 4, 0.0, (2.0 / 15, -8, -8, 7)),
        (TensorSchema(symmetry="symmetric_with_uint8"), DType.INT8, 8, 0.0, (2.0 / 255, -128, -128, 127)),
        (TensorSchema(symmetry="symmetric_with_uint8"), DType.UINT8, 8, 0.0, (2.0 / 255, 0, 0, 255)),
        (TensorSchema(symmetry="symmetric_with_uint8"), DType.INT8, 8, -2.0, (2.0 / 127, 0, -127, 127)),
        (TensorSchema(denominator="range", power_of_two="up"), DType.INT8, 8, -3.0, (4.0 / 128, 0, -127, 127)),
        (TensorSchema(denominator="range", power_of_two="nearest"), DType.INT8, 8, -2.5, (2.0 / 128, 0, -127, 127)),
    ],
)
def test_known_values(
    schema: TensorSchema, dtype: DType, bits: int, low: float, expected: tuple[float, int, int, int]
) -> None:
    scale, *rest = scale_zero_point(Range(low, 2.0 if low != -2.5 else 2.5), bits, dtype, schema)
    assert scale == np.float32(expected[0])
    assert tuple(rest) == expected[1:]


@pytest.mark.parametrize("symmetry", Symmetry)
@pytest.mark.parametrize("power", PowerOfTwo)
def test_a_range_of_nothing_has_scale_one(symmetry: Symmetry, power: PowerOfTwo) -> None:
    schema = TensorSchema(symmetry=symmetry, power_of_two=power)
    assert scale_zero_point(Range(0, 0), 8, DType.INT8, schema)[0] == 1.0


@pytest.mark.parametrize("tiny", [5e-324, 1e-310, 1e-45, 1e-38])
def test_tiny_ranges_give_a_normal_scale(tiny: float) -> None:
    for symmetry in Symmetry:
        scale = scale_zero_point(Range(-tiny, tiny), 8, DType.INT8, TensorSchema(symmetry=symmetry))[0]
        assert scale == np.finfo(np.float32).tiny


@pytest.mark.parametrize(("narrow", "low", "high"), [(True, 1, 255), (False, 0, 255)])
def test_unsigned_storage_holds_a_symmetric_range_around_its_middle(narrow: bool, low: int, high: int) -> None:
    schema = TensorSchema(narrow=narrow)
    scale, zero, qmin, qmax = scale_zero_point(Range(-2, 2), 8, DType.UINT8, schema)
    assert (scale, zero, qmin, qmax) == (np.float32(2 / 127), 128, low, high)
    signed = scale_zero_point(Range(-2, 2), 8, DType.INT8, schema)
    assert (signed[0], signed[2], signed[3]) == (scale, qmin - 128, qmax - 128), "the same real numbers"


def test_refusals() -> None:
    with pytest.raises(HardwareError, match="9 bits cannot be stored in int8"):
        scale_zero_point(Range(-1, 1), 9, DType.INT8, TensorSchema())
    with pytest.raises(HardwareError, match="an integer type"):
        scale_zero_point(Range(-1, 1), 8, DType.FLOAT32, TensorSchema())
    for bad in (float("inf"), float("nan")):
        with pytest.raises(DataError, match="not finite"):
            scale_zero_point(Range(-1, bad), 8, DType.INT8, TensorSchema(symmetry="asymmetric"))
    with pytest.raises(DataError, match="too large"):
        scale_zero_point(Range(-1e300, 1), 8, DType.INT8, TensorSchema())


@given(st.floats(-1e6, 0, width=32), st.floats(0, 1e6, width=32), st.sampled_from([DType.INT8, DType.UINT8]))
def test_asymmetric_ends_survive_within_a_step(low: float, high: float, dtype: DType) -> None:
    schema = TensorSchema(symmetry="asymmetric")
    scale, zero, qmin, qmax = scale_zero_point(Range(low, high), 8, dtype, schema)
    ends_ = np.asarray([low, high], dtype=np.float32)
    back = dequantize(quantize(ends_, scale, zero, qmin=qmin, qmax=qmax, dtype=dtype), scale, zero)
    assert np.abs(back - ends_).max() <= float(scale) * 1.01


@given(requests(), st.integers(1, 5))
def test_many_ranges_at_once_are_the_same_as_one_by_one(
    request_: tuple[Range, int, DType, TensorSchema], count: int
) -> None:
    range_, bits, dtype, schema = request_
    assume(range_.high > 0)
    ranges = [Range(range_.low / 2**i, range_.high) for i in range(count)]
    scale, zero, qmin, qmax = scales_zero_points(
        [r.low for r in ranges], [r.high for r in ranges], bits, dtype, schema=schema
    )
    assert list(zip(scale, zero, strict=True)) == [scale_zero_point(r, bits, dtype, schema)[:2] for r in ranges]
    assert (qmin, qmax) == scale_zero_point(ranges[0], bits, dtype, schema)[2:]


def test_signed_storage() -> None:
    assert [signed_storage(b) for b in (2, 8, 9, 16, 17)] == [
        DType.INT8,
        DType.INT8,
        DType.INT16,
        DType.INT16,
        DType.INT32,
    ]
