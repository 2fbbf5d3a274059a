"""Convolutions with their BatchNormalization, by each strategy: against the table of formulas in NumPy, as the float
network where statistics and grids add nothing, and folded into what the plan stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quantpipe import intmath
from quantpipe.intake.rewrites.batch_norms import BatchNorm
from quantpipe.types import DType, PowerOfTwo, Range, Symmetry, TensorSchema

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from quantpipe.train import (  # noqa: E402
    folded_convolutions,
    range_parameters,
    weight_parameters,
)
from quantpipe.train.folded_convolutions import FoldedConvolution  # noqa: E402
from quantpipe.train.weight_parameters import ALGORITHMS, WeightStart  # noqa: E402

Array = np.ndarray[Any, Any]
STRATEGIES = (-1, 1, 2, 3, 4)
BATCHED = (-1, 2, 3, 4)
EPSILON, MOMENTUM = 1e-2, 0.1
CHANNELS = 4


# --- one convolution against the table -------------------------------------------------------------------------------


def pointwise(data: Array, weight: Array) -> Array:
    """A convolution with a kernel of one element, `[N, C, L]` times `[O, C, 1]`."""
    found: Array = np.einsum("ncl,oc->nol", data, weight[:, :, 0])
    return found


def gridded(weight: Array, scale: Array) -> Array:
    """Q: integers of 4 bits, from -7 to 7, at one scale per output channel."""
    s = scale[:, None, None]
    return np.clip(np.rint(weight / s), -7, 7) * s


class Reference:
    """The table of `folded_convolutions` in float64."""

    def __init__(self, strategy: int, weight: Array, norm: BatchNorm, scale: Array) -> None:
        self.strategy, self.weight, self.norm, self.scale = strategy, weight, norm, scale
        self.mean, self.variance = norm.mean.copy(), norm.variance.copy()

    def factor(self, variance: Array) -> Array:
        return self.norm.gamma / np.sqrt(variance + EPSILON)

    def normalized(self, result: Array, mean: Array, variance: Array) -> Array:
        f = self.factor(variance)[:, None]
        return (result - mean[:, None]) * f + self.norm.beta[:, None]

    def part(self, data: Array) -> tuple[Array, Array, Array]:
        """The result of some samples, with mean (of the convolution with its bias) and variance of the batch."""
        b, f = self.norm.bias[:, None], self.factor(self.variance)
        along = f[:, None, None]
        if self.strategy == 1:
            result = pointwise(data, gridded(self.weight * along, self.scale))
            return result + self.norm.beta[:, None] + (f * (self.norm.bias - self.mean))[:, None], f, f
        if self.strategy == -1:
            seen = pointwise(data, gridded(self.weight, self.scale)) + b
        elif self.strategy == 4:
            seen = pointwise(data, gridded(self.weight * along, self.scale)) / f[:, None] + b
        else:
            seen = pointwise(data, self.weight) + b
        mean, variance = seen.mean((0, 2)), seen.var((0, 2))
        if self.strategy in (-1, 4):
            return self.normalized(seen, mean, variance), mean, variance
        batch = self.factor(variance)
        shift = (self.norm.beta - batch * (mean - self.norm.bias))[:, None]
        if self.strategy == 2:
            return pointwise(data, gridded(self.weight * batch[:, None, None], self.scale)) + shift, mean, variance
        ratio = np.sqrt(self.variance + EPSILON) / np.sqrt(variance + EPSILON)
        return pointwise(data, gridded(self.weight * along, self.scale)) * ratio[:, None] + shift, mean, variance

    def step(self, data: Array, parts: int = 1) -> Array:
        """The result of a batch in training; the running statistics follow those of the first part."""
        chunks = np.split(data, parts)
        found = [self.part(chunk) for chunk in chunks]
        if self.strategy != 1:
            count = chunks[0].shape[0] * chunks[0].shape[2]
            _, mean, variance = found[0]
            self.mean = (1 - MOMENTUM) * self.mean + MOMENTUM * mean
            self.variance = (1 - MOMENTUM) * self.variance + MOMENTUM * variance * count / (count - 1)
        return np.concatenate([result for result, _, _ in found])


def case(strategy: int, parts: int = 1, algorithm: str = "ste") -> tuple[FoldedConvolution, Reference, Array]:
    """A convolution whose gammas have both signs, its reference, and a batch; weights lie off the middles of steps."""
    rng = np.random.default_rng(3)
    signs = np.array([1.0, -1.0, 1.0, -1.0])
    norm = BatchNorm(
        signs * rng.uniform(0.5, 2.0, CHANNELS),
        rng.standard_normal(CHANNELS),
        rng.standard_normal(CHANNELS),
        rng.uniform(0.3, 3.0, CHANNELS),
        EPSILON,
        rng.standard_normal(CHANNELS),
    )
    weight = rng.standard_normal((CHANNELS, 3, 1)).astype(np.float32)
    scale = rng.uniform(0.1, 0.3, CHANNELS).astype(np.float32)
    zero = np.zeros((), np.int64)
    steps = np.clip(np.rint(weight / scale[:, None, None]), -7, 7).astype(np.int64)
    start = WeightStart(weight, steps, scale, 0, 0, zero, -7, 7, PowerOfTwo.NONE)
    made = ALGORITHMS[algorithm](start, False)
    made.latent = torch.nn.Parameter(torch.from_numpy(weight))
    conv = FoldedConvolution(made, norm, strategy, channel_axis=0, parts=parts)
    return conv, Reference(strategy, weight.astype(np.float64), norm, scale.astype(np.float64)), batch(0)


def batch(seed: int) -> Array:
    """`[8, 3, 5]`; its mean is not 0, and each sample has a spread of its own."""
    rng = np.random.default_rng(seed)
    spread = rng.uniform(0.5, 2.0, (8, 1, 1))
    return (rng.standard_normal((8, 3, 5)) * spread + 0.7).astype(np.float32)


def computed(conv: FoldedConvolution, data: Array) -> Any:
    return conv(torch.from_numpy(data), functional.conv1d)


def assert_follows(strategy: int, parts: int) -> None:
    """Two steps of training, with running statistics after each, and the evaluation behind them."""
    conv, expected, _ = case(strategy, parts)
    conv.train()
    for seed in (0, 1):
        data = batch(seed)
        found = computed(conv, data).detach().numpy()
        np.testing.assert_allclose(found, expected.step(data.astype(np.float64), parts), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(conv.mean.numpy(), expected.mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(conv.variance.numpy(), expected.variance, rtol=1e-5)


@pytest.mark.parametrize(("strategy", "parts"), [(1, 1), *((s, p) for s in BATCHED for p in (1, 2, 4))])
def test_training_follows_the_table(strategy: int, parts: int) -> None:
    assert_follows(strategy, parts)


@pytest.mark.parametrize("strategy", BATCHED)
def test_parts_have_statistics_of_their_own(strategy: int) -> None:
    """The first part's result depends on no other part, and nor do the running statistics."""
    whole, _, data = case(strategy, 2)
    alone, _, _ = case(strategy, 1)
    result = computed(whole.train(), data)
    torch.testing.assert_close(result[:4], computed(alone.train(), data[:4]))
    torch.testing.assert_close(whole.variance, alone.variance)
    together, _, _ = case(strategy, 1)
    assert (computed(together.train(), data) - result).abs().max() > 1e-2


def test_strategy_one_keeps_the_statistics() -> None:
    conv, expected, data = case(1)
    computed(conv.train(), data)
    np.testing.assert_array_equal(conv.mean.numpy(), expected.norm.mean.astype(np.float32))
    np.testing.assert_array_equal(conv.variance.numpy(), expected.norm.variance.astype(np.float32))


def assert_folds(strategy: int, algorithm: str = "ste") -> None:
    """The stored numbers compute what the module computes with fixed statistics, after a step of training."""
    conv, _, data = case(strategy, algorithm=algorithm)
    computed(conv.train(), data)
    expected = computed(conv.eval(), data).detach().numpy()
    codes, scale, bias = (value.numpy().astype(np.float64) for value in conv.folded())
    np.testing.assert_array_equal(codes, np.rint(codes))
    assert np.abs(codes).max() <= 7 and (scale > 0).all() and scale.shape == (CHANNELS, 1, 1)
    found = pointwise(data.astype(np.float64), codes * scale) + bias[:, None]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("algorithm", ["ste", "lsq", "dsq", "dorefa", "qil"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_stored_computes_what_evaluation_computes(strategy: int, algorithm: str) -> None:
    assert_folds(strategy, algorithm)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_reach_all_that_is_learned(strategy: int) -> None:
    conv, _, data = case(strategy, algorithm="lsq")
    computed(conv.train(), data).square().sum().backward()
    for name, parameter in conv.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
        assert torch.isfinite(parameter.grad).all(), name


def test_a_channel_that_is_switched_off_is_its_offset() -> None:
    """With gamma 0 the result is beta, for a channel whose factor is 0 or became 0."""
    for strategy in STRATEGIES:
        conv, expected, data = case(strategy)
        with torch.no_grad():
            conv.gamma[1] = 0.0
        for result in (computed(conv.eval(), data), computed(conv.train(), data)):
            np.testing.assert_allclose(result[:, 1].detach(), expected.norm.beta[1], atol=1e-6)
        codes, scale, bias = conv.folded()
        assert (codes[1] == 0).all() and (scale > 0).all()
        np.testing.assert_allclose(bias[1], expected.norm.beta[1], rtol=1e-6)


# --- planted faults ---------------------------------------------------------------------------------------------------


def assert_learns_scales_as_lsq() -> None:
    """The gradient of the logarithm of a scale is s·g times the sum of R(v) - v inside, the bound outside."""
    conv, _, _ = case(4, algorithm="lsq")
    factor = conv.along_weight(conv.factor).detach()
    up = torch.from_numpy(batch(5)[:4, :, :1].copy())
    (conv.weight(factor) * up).sum().backward()
    scale = conv.weight.base.numpy()
    v = (conv.weight.latent.detach() * factor).numpy().astype(np.float64) / scale
    terms = np.where(np.abs(v) < 7, np.rint(v) - v, np.sign(v) * 7)
    assert (np.abs(v) > 7).any()
    count = 3  # weights of a channel
    expected = scale * (up.numpy() * terms).sum((1, 2), keepdims=True) / np.sqrt(count * 7)
    np.testing.assert_allclose(conv.weight.factor.grad.numpy(), expected, rtol=1e-4)


def assert_zero_points_are_integers() -> None:
    schema = TensorSchema(symmetry=Symmetry.ASYMMETRIC)
    found = Range(-1.0, 2.2)
    low, high = (torch.tensor(end, dtype=torch.float64) for end in (found.low, found.high))
    grid = range_parameters.GroupGrid(8, DType.UINT8, schema).grid(low, high, torch.zeros(()), positive=False)
    assert float(grid.zero) == intmath.scale_zero_point(found, 8, DType.UINT8, schema)[1]


def _batch_in_the_fold(conv: FoldedConvolution, part: Any) -> Any:
    mean, variance = conv.statistics(part.convolved(conv.weight.latent), enters=part.enters)
    factor = conv.gamma / torch.sqrt(variance + conv.epsilon)
    return part.convolved(conv.weight(conv.along_weight(factor))) + conv.along_result(conv.beta - factor * mean)


def _biased(conv: FoldedConvolution, result: Any, *, enters: bool) -> Any:
    variance, mean = torch.var_mean(result, (0, 2), unbiased=False)
    with torch.no_grad():
        conv.mean.lerp_(mean + conv.bias, MOMENTUM)
        conv.variance.lerp_(variance, MOMENTUM)
    return mean, variance


def _without_sign(conv: FoldedConvolution) -> Any:
    codes, scale = conv.weight.stored()
    factor = conv.factor.detach()
    return codes, scale * conv.along_weight(factor).abs(), conv.beta.detach() + factor * (conv.bias - conv.mean)


FAULTS: dict[str, tuple[Any, str, Any, Callable[[], None]]] = {
    "batch statistics in the fold of strategy 3": (
        folded_convolutions, "_FORWARD", {3: _batch_in_the_fold}, lambda: assert_follows(3, 1)
    ),
    "running statistics without Bessel's factor": (
        FoldedConvolution, "statistics", _biased, lambda: assert_follows(4, 1)
    ),
    "every part enters the running statistics": (
        FoldedConvolution, "statistics", _biased, lambda: assert_follows(2, 4)
    ),
    "another momentum": (folded_convolutions, "MOMENTUM", 0.01, lambda: assert_follows(2, 1)),
    "signs of gamma left out": (FoldedConvolution, "folded", _without_sign, lambda: assert_folds(-1)),
    "gradient scale of LSQ left out": (
        weight_parameters, "scaled_gradient", lambda x, _: x, assert_learns_scales_as_lsq
    ),
    "zero point not rounded": (
        range_parameters, "straight_through", lambda _, x: x, assert_zero_points_are_integers
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    holder, name, changed, check = FAULTS[fault]
    check()
    monkeypatch.setattr(holder, name, changed)
    with pytest.raises(AssertionError, match=r"Not equal|Not equal to tolerance|assert"):
        check()
