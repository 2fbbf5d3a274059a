"""Weight ranges against brute force, channel by channel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from quantpipe.calibrate import threshold_table
from quantpipe.calibrate.estimators import KL, MSE, Estimator, MaxRange, MovingAverage, Percentile, Power2Range
from quantpipe.calibrate.measure import measure
from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.calibrate.weights import BLOCK, EXPONENTS, SHRINK, channel_stats, estimated_ranges, weight_ranges
from quantpipe.errors import ConfigError, ModelError
from quantpipe.intmath import dequantize, quantize, scale_zero_point, scales_zero_points, signed_storage
from quantpipe.types import Denominator, PowerOfTwo, Range, Symmetry, TensorSchema
from tests.ops.line import Line, line
from tests.ops.test_every_op import graph_of

SCHEMAS = [
    TensorSchema(symmetry=s, denominator=d, power_of_two=p)
    for s in Symmetry
    for d in Denominator
    for p in (PowerOfTwo.NONE, PowerOfTwo.SEARCH)
]


def weights(shape: tuple[int, ...] = (6, 5, 3, 3), seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    return (rng.standard_t(4, shape) * 2.0 ** rng.integers(-6, 2, (shape[0],) + (1,) * (len(shape) - 1))).astype(
        np.float32
    )


def error(values: NDArray[np.float32], range_: Range, bits: int, schema: TensorSchema) -> float:
    dtype = signed_storage(bits)
    scale, zero, qmin, qmax = scale_zero_point(range_, bits, dtype, schema)
    back = dequantize(quantize(values, scale, zero, qmin=qmin, qmax=qmax, dtype=dtype), scale, zero)
    return float(np.sum((values.astype(np.float64) - back) ** 2))


@given(
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=4, max_side=5), elements=st.floats(-8, 8, width=32)),
    st.data(),
)
def test_max_range_is_the_extremes(weight: NDArray[np.float32], data: st.DataObject) -> None:
    axis = data.draw(st.one_of(st.none(), st.integers(0, weight.ndim - 1)))
    parts = [weight] if axis is None else [np.take(weight, c, axis) for c in range(weight.shape[axis])]
    for r, part in zip(weight_ranges(weight, axis, 8, TensorSchema(), method="max_range"), parts, strict=True):
        largest = float(np.abs(part).max())
        assert r == (Range(-largest, largest) if largest else Range(-127, 127))
        if not largest:
            assert scale_zero_point(r, 8, signed_storage(8), TensorSchema())[0] == 1.0
    asymmetric = TensorSchema(symmetry=Symmetry.ASYMMETRIC)
    for r, part in zip(weight_ranges(weight, axis, 8, asymmetric, method="max_range"), parts, strict=True):
        assert r == Range(part.min(), part.max())


@pytest.mark.sliced(6)
@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("axis", [0, 1, None])
def test_mse_is_the_best_candidate(schema: TensorSchema, bits: int, axis: int | None) -> None:
    weight = weights()
    full = weight_ranges(weight, axis, bits, schema, method="max_range")
    best = weight_ranges(weight, axis, bits, schema, method="mse")
    steps = 2 ** (bits - 1)
    stretch = steps / (steps - 1) if schema.denominator is Denominator.RANGE else 1.0
    shares = SHRINK * stretch if schema.power_of_two is PowerOfTwo.NONE else EXPONENTS
    for c, (f, b) in enumerate(zip(full, best, strict=True)):
        part = weight if axis is None else np.take(weight, c, axis)
        errors = [error(part, Range(f.low * s, f.high * s), bits, schema) for s in shares]
        assert error(part, b, bits, schema) <= min(errors) * 1.0001


@pytest.mark.parametrize("shape", [(3, 2 * BLOCK + 17), (2 * BLOCK // 9 + 5, 9), (1, 1)])
def test_blocks_cover_every_value_once(shape: tuple[int, int]) -> None:
    weight = weights(shape)
    weight[:, : shape[1] // 2] /= 50  # the halves want different ranges, so a block left out would be noticed
    ranges = weight_ranges(weight, 0, 4, TensorSchema())
    for c in (0, shape[0] // 2, shape[0] - 1):
        largest = float(np.abs(weight[c]).max())
        best = min(error(weight[c], Range(-largest * f, largest * f), 4, TensorSchema()) for f in SHRINK)
        assert error(weight[c], ranges[c], 4, TensorSchema()) <= best * 1.001


@pytest.mark.parametrize("method", ["max_range", "mse"])
@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_channel_of_zeros_has_scale_one(method: str, schema: TensorSchema) -> None:
    weight = weights()
    weight[2] = 0.0
    for tensor in (weight, np.zeros((2, 3), np.float32)):
        ranges = weight_ranges(tensor, 0, 8, schema, method=method)  # type: ignore[arg-type]
        low, high = [r.low for r in ranges], [r.high for r in ranges]
        scale, zero, qmin, qmax = scales_zero_points(low, high, 8, signed_storage(8), schema=schema)
        c = 2 if tensor is weight else 0
        assert scale[c] == 1.0
        assert (
            dequantize(
                quantize(tensor, scale, zero, qmin=qmin, qmax=qmax, dtype=signed_storage(8), axis=0), scale, zero, 0
            )[c]
            == 0
        ).all()


def test_negative_axis_and_power_of_two_scales() -> None:
    weight = weights((4, 7))
    assert weight_ranges(weight, -1, 8, TensorSchema()) == weight_ranges(weight, 1, 8, TensorSchema())
    schema = TensorSchema(power_of_two=PowerOfTwo.SEARCH, denominator=Denominator.RANGE)
    for r in weight_ranges(weight, 0, 4, schema):
        assert np.frexp(scale_zero_point(r, 4, signed_storage(4), schema)[0])[0] == 0.5


ESTIMATORS: tuple[Estimator, ...] = (MaxRange(), Power2Range(), MovingAverage(), Percentile(99.0), MSE(), KL())


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("axis", [0, 1, None])
def test_every_estimator_serves_every_channel(estimator: Estimator, axis: int | None) -> None:
    weight = weights((4, 3, 40))
    parts = [weight] if axis is None else [np.take(weight, c, axis) for c in range(weight.shape[axis])]
    for bits in (2, 4, 8):
        ranges = estimated_ranges(channel_stats(weight, axis), bits, TensorSchema(), estimator)
        assert len(ranges) == len(parts)
        for r, part in zip(ranges, parts, strict=True):
            largest = float(np.abs(part).max())
            assert r.low == -r.high and 0 < r.high <= (2 * largest if isinstance(estimator, Power2Range) else largest)
            if isinstance(estimator, MaxRange | MovingAverage):
                assert r.high == largest
            if isinstance(estimator, Percentile):
                bin_ = largest / 2048
                assert r.high <= np.percentile(np.abs(part), 99, method="higher") + bin_
            if isinstance(estimator, MSE):
                best = weight_ranges(part, None, bits, TensorSchema(), method="mse")[0]
                ours, other = (error(part, x, bits, TensorSchema()) for x in (r, best))
                assert ours**0.5 <= other**0.5 * 1.05 + (largest / 2048) * part.size**0.5


def test_an_estimated_channel_of_zeros_has_scale_one() -> None:
    weight = weights((3, 20))
    weight[1] = 0.0
    for symmetry in Symmetry:
        schema = TensorSchema(symmetry=symmetry)
        r = estimated_ranges(channel_stats(weight, 0), 8, schema, MSE())[1]
        assert scale_zero_point(r, 8, signed_storage(8), schema)[0] == 1.0
    weight[1, 1] = np.inf
    with pytest.raises(ModelError, match="NaN or infinite"):
        estimated_ranges(channel_stats(weight, 0), 8, TensorSchema(), MSE())


def test_refusals() -> None:
    with pytest.raises(ModelError, match="NaN"):
        weight_ranges(np.asarray([[1.0, np.nan]]), 0, 8, TensorSchema())
    with pytest.raises(ConfigError, match="legal"):
        weight_ranges(weights(), 0, 8, TensorSchema(), method="kl")  # type: ignore[arg-type]


def test_tables_of_one_graph_search_the_range_of_a_weight_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a second time for a second table, but for other bits, and for another graph with the same names."""
    searched = []

    def counted(weight: NDArray[np.float32], *rest: Any, **named: Any) -> list[Range]:
        searched.append(weight.shape)
        return weight_ranges(weight, *rest, **named)

    monkeypatch.setattr(threshold_table, "weight_ranges", counted)
    made, other = (line(graph_of.__wrapped__("conv_asymmetric_pads"), "ort_cpu") for _ in range(2))
    found = [_table(made).weight_thresholds(site.tensor, 8) for _ in range(2) for site in made.topology.weights]
    count = len(made.topology.weights)
    assert len(searched) == count
    for first, second in zip(found[:count], found[count:], strict=True):
        np.testing.assert_array_equal(first, second)
    _table(made).weight_thresholds(made.topology.weights[0].tensor, 4)
    assert len(searched) == count + 1
    _table(other).weight_thresholds(made.topology.weights[0].tensor, 8)
    assert len(searched) == count + 2


def _table(made: Line) -> ThresholdTable:
    profile = measure(made.graph, made.topology.measured, made.samples, 1024)
    return ThresholdTable(made.graph, made.topology, made.schema, profile, estimator=MaxRange(), weight_method="mse")
