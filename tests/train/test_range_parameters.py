"""The grid of a learned range is the planner's own, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quantpipe import intmath
from quantpipe.types import Denominator, DType, PowerOfTwo, Range, ScaleGroup, Symmetry, TensorSchema

torch = pytest.importorskip("torch")

from quantpipe.train.range_parameters import GroupGrid, RangeParameters  # noqa: E402

SCHEMAS = st.builds(
    TensorSchema,
    symmetry=st.sampled_from(Symmetry),
    narrow=st.booleans(),
    denominator=st.sampled_from(Denominator),
    power_of_two=st.sampled_from(PowerOfTwo),
)
ENDS = st.floats(1e-6, 1e6)


@given(
    SCHEMAS,
    ENDS | st.just(0.0),
    ENDS | st.just(0.0),
    st.booleans(),
    st.integers(2, 8),
    st.sampled_from([DType.INT8, DType.UINT8]),
)
def test_a_learned_range_has_the_grid_of_the_planner(
    schema: TensorSchema, low: float, high: float, positive: bool, bits: int, dtype: DType
) -> None:
    found = Range(0.0 if positive else -low, high)
    scale, zero, qmin, qmax = intmath.scale_zero_point(found, bits, dtype, schema)
    ends = (torch.tensor(end, dtype=torch.float64) for end in (found.low, found.high))
    grid = GroupGrid(bits, dtype, schema).grid(*ends, torch.zeros((), dtype=torch.float32), positive=found.low >= 0)
    assert (grid.scale.numpy(), float(grid.zero), grid.qmin, grid.qmax) == (scale, zero, qmin, qmax)


def group(key: str, **changes: object) -> ScaleGroup:
    """A group of one tensor."""
    return ScaleGroup(key, (key,), (key,), DType.INT8, 8, **changes)  # type: ignore[arg-type]


def test_fixed_and_empty_ranges_are_not_learned() -> None:
    groups = {"a": group("a"), "fixed": group("fixed", fixed=Range(0, 1)), "empty": group("empty")}
    ranges = {"a": Range(-1, 2), "fixed": Range(0, 1), "empty": Range(0, 0)}
    bits = dict.fromkeys(groups, 8)
    parameters = RangeParameters(groups, ranges, bits, TensorSchema(), learns=True)
    assert parameters.learned == ("a",)
    assert RangeParameters(groups, ranges, bits, TensorSchema(), learns=False).learned == ()
    with torch.no_grad():
        for factor in parameters.factors.values():
            factor += np.log(2.0)
    assert parameters.range("a") == Range(-2.0, 4.0) and parameters.range("fixed") == Range(0, 1)


@pytest.mark.parametrize(("symmetry", "ends"), [(Symmetry.SYMMETRIC, (-3.0, 6.0)), (Symmetry.ASYMMETRIC, (-2.0, 6.0))])
def test_a_range_is_bounded_by_twice_the_values_seen(symmetry: Symmetry, ends: tuple[float, float]) -> None:
    """Symmetric ends have one factor; an end at which nothing was seen stays."""
    grids = {"a": group("a"), "unseen": group("unseen")}
    bits = dict.fromkeys(grids, 8)
    parameters = RangeParameters(grids, dict.fromkeys(grids, Range(-1, 2)), bits, TensorSchema(symmetry), learns=True)
    parameters.see("a", torch.tensor([-1.0, 0.5]))
    parameters.see("a", torch.tensor([3.0, 0.0]))
    with torch.no_grad():
        for factor in parameters.factors.values():
            factor += np.log(100.0)
    parameters.bound()
    found = parameters.range("a")
    np.testing.assert_allclose((found.low, found.high), ends)
    np.testing.assert_allclose(parameters.range("unseen").high, 200.0)


@pytest.mark.parametrize("symmetry", list(Symmetry))
@pytest.mark.parametrize("positive", [True, False])
def test_the_ends_of_a_range_have_gradients(symmetry: Symmetry, positive: bool) -> None:
    parameters = RangeParameters(
        {"a": group("a")}, {"a": Range(0.0 if positive else -1.0, 2.0)}, {"a": 4}, TensorSchema(symmetry), learns=True
    )
    parameters.grids(torch.zeros(()))["a"].scale.backward()
    (factor,) = parameters.factors.values()
    affine = symmetry is Symmetry.ASYMMETRIC or (symmetry is Symmetry.SYMMETRIC_UNSIGNED and positive)
    steps = 15 if affine else 7
    expected = [0.0 if positive else 1 / steps, 2 / steps] if affine else [2 / steps]
    np.testing.assert_allclose(factor.grad.numpy(), expected, rtol=1e-6)


@given(
    SCHEMAS.filter(lambda schema: schema.power_of_two is not PowerOfTwo.NONE),
    ENDS,
    ENDS,
    st.booleans(),
    st.integers(2, 8),
    st.sampled_from([-1.0, 1.0]),
)
def test_a_small_step_leaves_a_power_of_two_and_half_an_octave_changes_it(
    schema: TensorSchema, low: float, high: float, positive: bool, bits: int, side: float
) -> None:
    """Else the first step of a training doubles every second scale: they start where a range is rounded up."""
    found = Range(0.0 if positive else -low, high)
    scale, zero, _, _ = intmath.scale_zero_point(found, bits, DType.INT8, schema)
    parameters = RangeParameters({"a": group("a")}, {"a": found}, {"a": bits}, schema, learns=True)
    whole = parameters.range("a")
    assume(whole != found or not GroupGrid(bits, DType.INT8, schema).is_affine(positive))
    for octaves, factor in ((0.0, 1.0), (0.4 * side, 1.0), (0.6 * side, 2.0**side)):
        with torch.no_grad():
            parameters.factors["0"].fill_(octaves * np.log(2.0))
        grid = parameters.grids(torch.zeros((), dtype=torch.float32))["a"]
        planned = intmath.scale_zero_point(parameters.range("a"), bits, DType.INT8, schema)
        assert float(grid.scale) == float(planned[0]) == pytest.approx(float(scale) * factor)
        if octaves == 0.0:
            assert float(grid.zero) == zero == planned[1]
