"""Gradients of rounding against the formulas of the papers, in float64, with points on both sides of every clip."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from quantpipe.train.fake_quantize import CLIP, SCALE, SOFT, TorchGrid, fake_quantize  # noqa: E402
from quantpipe.train.weight_parameters import (  # noqa: E402
    ALGORITHMS,
    LearnedRounding,
    LearnedScale,
    QuantizationInterval,
    SoftStaircase,
    TanhWeight,
    WeightStart,
)
from quantpipe.types import PowerOfTwo  # noqa: E402

SCALE_VALUE, ZERO, QMIN, QMAX = 0.37, 3.0, 0, 15


def grid_of(scale: float, zero: float, qmin: int, qmax: int, *, learned: bool = True) -> TorchGrid:
    """A grid whose numbers are leaves."""
    ends = (scale * (qmin - zero), scale * (qmax - zero))
    leaves = [torch.tensor(v, dtype=torch.float64, requires_grad=learned) for v in (scale, zero, *ends)]
    return TorchGrid(*leaves, qmin, qmax)


def values(seed: int = 0, count: int = 4000) -> Any:
    """Values below, inside and above the grid."""
    return torch.from_numpy(np.random.default_rng(seed).uniform(-3, 7, count)).requires_grad_()


def test_scale_and_zero_point_have_the_gradients_of_lsq_plus() -> None:
    x, grid = values(), grid_of(SCALE_VALUE, ZERO, QMIN, QMAX)
    weight = torch.from_numpy(np.random.default_rng(1).standard_normal(len(x)))
    found = fake_quantize(x, grid, SCALE)
    (found * weight).sum().backward()
    v, w = x.detach().numpy() / SCALE_VALUE, weight.numpy()
    below, above = v + ZERO <= QMIN, v + ZERO >= QMAX
    inside = ~below & ~above
    assert below.any() and above.any() and inside.any()
    rounded = np.clip(np.rint(v) + ZERO, QMIN, QMAX) - ZERO
    np.testing.assert_allclose(found.detach().numpy(), rounded * SCALE_VALUE)
    of_scale = np.where(inside, np.rint(v) - v, np.where(below, QMIN - ZERO, QMAX - ZERO))
    np.testing.assert_allclose(grid.scale.grad.item(), (w * of_scale).sum())
    np.testing.assert_allclose(grid.zero.grad.item(), (w * np.where(inside, 0, -SCALE_VALUE)).sum())
    np.testing.assert_allclose(x.grad.numpy(), w * inside)
    assert grid.low.grad is None and grid.high.grad is None


def test_clipping_ends_have_the_gradients_of_pact() -> None:
    x, grid = values(2), grid_of(SCALE_VALUE, ZERO, QMIN, QMAX)
    weight = torch.from_numpy(np.random.default_rng(3).standard_normal(len(x)))
    (fake_quantize(x, grid, CLIP) * weight).sum().backward()
    v, w = x.detach().numpy() / SCALE_VALUE, weight.numpy()
    below, above = v + ZERO <= QMIN, v + ZERO >= QMAX
    np.testing.assert_allclose(grid.high.grad.item(), w[above].sum())
    np.testing.assert_allclose(grid.low.grad.item(), w[below].sum())
    np.testing.assert_allclose(x.grad.numpy(), w * (~below & ~above))
    assert grid.scale.grad is None and grid.zero.grad is None


def test_rounding_has_the_slope_of_the_soft_staircase() -> None:
    """The derivative of floor(v) + (1 + t·tanh(k·(v - floor(v) - 1/2))) / 2, by finite differences."""
    a = 0.4
    t, k = 1 / (1 - a), math.log(2 / a - 1)

    def soft(v: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.asarray(np.floor(v) + (1 + t * np.tanh(k * (v - np.floor(v) - 0.5))) / 2)

    x, grid = values(4), grid_of(SCALE_VALUE, ZERO, QMIN, QMAX)
    fake_quantize(x, grid, SOFT).sum().backward()
    v, step = x.detach().numpy() / SCALE_VALUE, 1e-6
    inside = (v + ZERO > QMIN) & (v + ZERO < QMAX) & (np.abs(v - np.rint(v)) > 1e-3)
    slope = (soft(v + step) - soft(v - step)) / (2 * step)
    np.testing.assert_allclose(x.grad.numpy()[inside], slope[inside], rtol=1e-5)
    assert np.all(x.grad.numpy()[v + ZERO > QMAX] == 0)


def start_of(seed: int = 0, bits: int = 4, *, per_channel: bool = True, **changes: Any) -> WeightStart:
    """A random weight `[6, 5, 3, 3]`, rounded to the nearest."""
    rng = np.random.default_rng(seed)
    real = (rng.standard_normal((6, 5, 3, 3)) * rng.uniform(0.1, 2, (6, 1, 1, 1))).astype(np.float32)
    high = (1 << (bits - 1)) - 1
    peak = np.abs(real).max(axis=(1, 2, 3)) if per_channel else np.abs(real).max()
    scale = np.asarray(peak * 0.7 / high, np.float32)
    wide = scale.reshape(-1, 1, 1, 1) if per_channel else scale
    integers = np.clip(np.rint(real / wide), -high, high).astype(np.int64)
    axis = 0 if per_channel else None
    known: dict[str, Any] = {"zero": np.zeros((), np.int64), "qmin": -high, "qmax": high}
    return WeightStart(real, integers, scale, axis, 0, power_of_two=PowerOfTwo.NONE, **(known | changes))


@pytest.mark.parametrize("per_channel", [True, False])
def test_the_scale_of_a_weight_has_lsqs_gradient_scale(per_channel: bool) -> None:
    """ds = Σ (R(v) - v inside, the bound outside) / sqrt(N·Q_P), N the weights of a scale."""
    start = start_of(per_channel=per_channel)
    weight = LearnedScale(start)
    weight().sum().backward()
    scale = start.scale.astype(np.float64).reshape(-1, 1, 1, 1) if per_channel else float(start.scale)
    v = start.real.astype(np.float64) / scale
    inside = np.abs(v) < 7
    own = np.where(inside, np.rint(v) - v, np.sign(v) * 7)
    axes = (1, 2, 3) if per_channel else (0, 1, 2, 3)
    count = 45 if per_channel else 270
    expected = own.sum(axis=axes, keepdims=True) / math.sqrt(count * 7) * scale  # the parameter is a logarithm
    np.testing.assert_allclose(weight.factor.grad.numpy().ravel(), np.ravel(expected), rtol=1e-4)
    np.testing.assert_allclose(weight.latent.grad.numpy(), inside, atol=0)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("size", ["kept", "unit"])
def test_what_is_stored_is_what_training_saw(name: str, per_channel: bool, size: str) -> None:
    """Integers and scale give the values of the forward pass, to the last bit of float32."""
    weight = ALGORITHMS[name](start_of(3, per_channel=per_channel), size == "unit").eval()
    with torch.no_grad():
        for parameter in weight.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
        seen = weight()
    codes, scale = weight.stored()
    assert torch.equal(codes, torch.round(codes)) and float(codes.abs().max()) <= 7
    assert torch.equal(scale, scale.float().to(scale.dtype))
    torch.testing.assert_close(codes * scale, seen, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["ste", "lsq", "dsq", "adaround"])
def test_training_begins_at_the_integers_of_the_plan(name: str) -> None:
    start = start_of(5)
    moved = np.clip(start.integers + np.random.default_rng(0).integers(-1, 2, start.integers.shape), -7, 7)
    start = WeightStart(**{f: getattr(start, f) for f in start.__dataclass_fields__} | {"integers": moved})
    codes, scale = ALGORITHMS[name](start, False).eval().stored()
    np.testing.assert_array_equal(codes.numpy(), moved)
    np.testing.assert_array_equal(scale.numpy().ravel(), start.scale)


def test_zero_points_of_channels_stay() -> None:
    zero = np.array([0, 1, 2, 3, 4, 5])
    start = start_of(6, zero=zero, qmin=0, qmax=15)
    low = -zero.reshape(-1, 1, 1, 1)
    integers = np.clip(np.rint(start.real / start.scale.reshape(-1, 1, 1, 1)), low, 15 + low).astype(np.int64)
    start = WeightStart(**{f: getattr(start, f) for f in start.__dataclass_fields__} | {"integers": integers})
    weight = LearnedScale(start).eval()
    np.testing.assert_array_equal(weight.stored()[0].numpy(), integers)
    torch.testing.assert_close(weight.stored()[0] * weight.stored()[1], weight(), rtol=0, atol=0)


def test_a_limit_of_pairs_holds_for_training_and_for_what_is_stored() -> None:
    real = np.full((2, 4), 1.0, np.float32)
    start = WeightStart(
        real, np.full((2, 4), 64), np.float32(1 / 100), None, 0, np.zeros((), np.int64), -127, 127, PowerOfTwo.NONE, 128
    )
    weight = LearnedScale(start).eval()
    codes = weight.stored()[0].numpy()
    assert (codes[:, 0::2] + codes[:, 1::2]).max() <= 128
    torch.testing.assert_close(weight.stored()[0] * weight.stored()[1], weight(), rtol=0, atol=0)


def test_learned_scales_of_a_power_of_two_schema_are_powers_of_two() -> None:
    start = start_of(7, per_channel=False)
    known = {f: getattr(start, f) for f in start.__dataclass_fields__} | {"power_of_two": PowerOfTwo.UP}
    weight = LearnedScale(WeightStart(**known))
    weight().sum().backward()
    assert float(torch.log2(weight.stored()[1])) % 1 == 0 and float(weight.factor.grad.abs()) > 0


def test_dorefa_is_tanh_over_its_maximum_with_the_whole_chain_of_gradients() -> None:
    """Of w' = tanh(w) / max|tanh(w)| before rounding, in float64."""
    weight = TanhWeight(start_of(8), unit=True).double()
    w = weight.latent.detach().numpy()
    np.testing.assert_allclose(weight.shaped(None).detach().numpy(), np.tanh(w) / np.abs(np.tanh(w)).max())

    def shaped(latent: Any) -> Any:
        weight.latent = latent
        return TanhWeight.shaped(weight, None)

    leaf = weight.latent.detach().clone()[:2, :2, :1, :1].requires_grad_()
    del weight.latent
    assert torch.autograd.gradcheck(shaped, (leaf,))


def test_dorefa_starts_at_the_pretrained_weight() -> None:
    start = start_of(8)
    weight = TanhWeight(start, unit=False)
    np.testing.assert_allclose(weight.shaped(None).detach().numpy(), start.value, rtol=1e-5, atol=1e-7)


def test_qil_prunes_and_clips_around_a_learned_interval() -> None:
    weight = QuantizationInterval(start_of(9, per_channel=False), unit=True).double()
    threshold = float(weight.threshold)
    with torch.no_grad():
        weight.centre.fill_(0.6), weight.distance.fill_(0.3)
    w = weight.latent.detach().numpy()
    magnitude = np.abs(w) / threshold
    linear = 0.5 / 0.3 * magnitude + 0.5 - 0.6 * 0.5 / 0.3
    expected = np.sign(w) * np.where(magnitude < 0.3, 0, np.where(magnitude > 0.9, 1, linear))
    np.testing.assert_allclose(weight.shaped(None).detach().numpy(), expected, atol=1e-12)
    centre, distance = (
        weight.centre.detach().clone().requires_grad_(),
        weight.distance.detach().clone().requires_grad_(),
    )
    del weight.centre, weight.distance

    def shaped(c: Any, d: Any) -> Any:
        weight.centre, weight.distance = c, d
        return QuantizationInterval.shaped(weight, None)

    assert torch.autograd.gradcheck(shaped, (centre, distance))


def test_adaround_rounds_down_or_up_and_its_penalty_drives_there() -> None:
    weight = LearnedRounding(start_of(10))
    up = weight.up().detach().numpy()
    start = weight.start
    steps = start.value / start.broadcast(start.scale)
    np.testing.assert_allclose(up, steps - np.floor(steps), atol=2e-4)
    assert weight.penalty(0.1) is None
    late = weight.penalty(1.0)
    assert late is not None
    np.testing.assert_allclose(late.item(), (1 - np.abs(2 * up - 1) ** 2).mean(), rtol=1e-4)
    late.backward()
    towards = -np.sign(weight.latent.grad.numpy())
    clear = np.abs(up - 0.5) > 0.01
    moving = (up > 0.01) & (up < 0.99) & clear
    np.testing.assert_array_equal(towards[moving], np.sign(up - 0.5)[moving])


def test_adaround_can_take_back_what_recovery_rounded_up_or_down() -> None:
    """A weight on its farther neighbour starts there and may go to the nearer one; one farther off goes towards it."""
    near = start_of(12)
    steps = near.real / near.broadcast(near.scale)
    inside = np.abs(steps) < 5
    farther = np.where(
        inside, np.where(near.integers > np.floor(steps), near.integers - 1, near.integers + 1), near.integers
    )
    beyond = np.where(inside, near.integers + np.where(np.arange(9).reshape(3, 3) % 2, 2, -2), near.integers)
    for integers, towards in ((farther, near.integers), (beyond, beyond - np.sign(beyond - near.integers))):
        weight = LearnedRounding(replace(near, integers=integers))
        np.testing.assert_array_equal(weight.stored()[0].numpy(), integers)
        with torch.no_grad():
            weight.latent.neg_()
            taken = weight.stored()[0].numpy()
        moved = inside & (integers != near.integers)
        assert moved.any()
        np.testing.assert_array_equal(taken[moved], towards[moved])


def test_dsq_learns_ends_and_not_scales_directly() -> None:
    weight = SoftStaircase(start_of(11))
    weight().sum().backward()
    v = weight.start.real / weight.start.scale.reshape(-1, 1, 1, 1)
    ends = np.where(v >= 7, 1.0, np.where(v <= -7, -1.0, 0.0)).sum(axis=(1, 2, 3)) * 7 * weight.start.scale
    np.testing.assert_allclose(weight.factor.grad.numpy().ravel(), ends, rtol=1e-4)


@pytest.mark.parametrize("power", [PowerOfTwo.UP, PowerOfTwo.NEAREST, PowerOfTwo.SEARCH])
@pytest.mark.parametrize(("octaves", "factor"), [(0.0, 1.0), (0.4, 1.0), (-0.4, 1.0), (0.6, 2.0), (-0.6, 0.5)])
def test_a_small_step_leaves_a_power_of_two_and_half_an_octave_changes_it(
    power: PowerOfTwo, octaves: float, factor: float
) -> None:
    start = start_of()
    scale = (2.0 ** np.round(np.log2(start.scale))).astype(np.float32)
    known = {f: getattr(start, f) for f in start.__dataclass_fields__}
    weight = LearnedScale(WeightStart(**known | {"scale": scale, "power_of_two": power}))
    with torch.no_grad():
        weight.factor.fill_(octaves * np.log(2.0))
    np.testing.assert_array_equal(weight.scale().detach().numpy().ravel(), factor * scale.astype(np.float64))
