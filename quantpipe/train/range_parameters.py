"""Learned ranges of scale groups, and the grids that follow from them as the planner makes them.

A group's parameters are the logarithms of the factors on the ends of its range. So an end keeps its sign, and one
learning rate fits all ranges. Scale and zero point follow by the formulas of `intmath.scales_zero_points` in float64;
their roundings (to a power of two, to an integer zero point) have the gradient 1.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quantpipe import intmath
from quantpipe.train.fake_quantize import TorchGrid, straight_through
from quantpipe.types import DType, PowerOfTwo, Range, ScaleGroup, Symmetry, TensorSchema

ROOM = 2.0
"""How many times the largest value seen in training a learned range may be: a power of two may need that much."""


@dataclass(frozen=True)
class GroupGrid:
    """State how the range of a scale group becomes a grid: its bits, its storage type, and the schema."""

    bits: int
    dtype: DType
    schema: TensorSchema

    def is_affine(self, positive: bool) -> bool:
        """Return whether scale and zero point follow from both ends of the range."""
        symmetry = self.schema.symmetry
        return symmetry is Symmetry.ASYMMETRIC or (symmetry is Symmetry.SYMMETRIC_UNSIGNED and positive)

    def grid(self, low: Tensor, high: Tensor, like: Tensor, *, positive: bool) -> TorchGrid:
        """Return the grids of ranges, float64 `()` or `[G]` each, in the type and on the device of the values `like`.

        `positive`: whether no value of the ranges is negative.
        """
        qmin, qmax = intmath.integer_bounds(self.bits, self.dtype, self.schema, positive=positive)
        if self.is_affine(positive):
            steps = intmath.affine_steps(self.bits, self.schema)
            scale = storable(high / steps - low / steps, self.schema.power_of_two)
            exact = qmin - low / scale
            zero = straight_through(torch.clamp(torch.round(exact), qmin, qmax), torch.clamp(exact, qmin, qmax))
        else:
            storage = self.dtype if positive else intmath.signed_storage(self.bits)
            steps = intmath.symmetric_steps(self.bits, storage, self.schema)
            scale = storable(torch.maximum(-low, high) / steps, self.schema.power_of_two)
            zero = torch.zeros_like(scale) + (0 if self.dtype.signed or positive else 1 << (self.bits - 1))
        ends = (scale * (qmin - zero), scale * (qmax - zero))
        # A learned end has the gradient of the range's end, whatever rounding of the scale moved it.
        low, high = straight_through(ends[0], low), straight_through(ends[1], high)
        return TorchGrid(scale.to(like), zero.to(like), low.to(like), high.to(like), qmin, qmax)

    def centred(self, found: Range) -> Range:
        """Return a range with the same scale and zero point, from which steps up and down reach the next power of two.

        It is the range itself where scales are no powers of two, and where the other end would change its sign.
        """
        power = self.schema.power_of_two
        if power is PowerOfTwo.NONE:
            return found
        scale, *_ = intmath.scale_zero_point(found, self.bits, self.dtype, self.schema)
        middle = float(scale) * storage_middle(power)
        if self.is_affine(found.low >= 0.0):
            high = found.low + middle * intmath.affine_steps(self.bits, self.schema)
            return Range(found.low, high) if high > 0.0 else found
        storage = self.dtype if found.low >= 0.0 else intmath.signed_storage(self.bits)
        factor = middle * intmath.symmetric_steps(self.bits, storage, self.schema) / found.threshold
        return Range(found.low * factor, found.high * factor)


def storable(scale: Tensor, power_of_two: PowerOfTwo) -> Tensor:
    """Return float64 scales as they are stored: float32, 1 for empty ranges, a power of two on request."""
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    if power_of_two is not PowerOfTwo.NONE:
        mantissa, exponent = torch.frexp(scale.detach())
        smaller = mantissa < 0.5**0.5 if power_of_two is PowerOfTwo.NEAREST else mantissa == 0.5
        rounded = torch.ldexp(torch.ones_like(scale), torch.clamp(exponent - smaller.to(exponent.dtype), -126, 127))
        scale = scale * (rounded / scale.detach())
    stored = scale.detach().float().clamp(min=intmath.SMALLEST_SCALE).double()
    return scale * (stored / scale.detach())


def storage_middle(power_of_two: PowerOfTwo) -> float:
    """Return the factor on a stored power of two at which it is farthest from being stored as another one.

    Rounding up gives 2^k for (2^(k-1), 2^k], so that a learned scale that starts at 2^k would double at once.
    """
    return 1.0 if power_of_two in (PowerOfTwo.NONE, PowerOfTwo.NEAREST) else 0.5**0.5


class RangeParameters(nn.Module):  # type: ignore[misc]
    """Hold the ranges of the scale groups, of which some are learned.

    `learned`: the keys of the learned groups. A range that is empty, or fixed by the device or the model, stays. No
    range grows far beyond the values in training: its steps would be lost, and where all values are rounded to 0, no
    gradient leads back.
    """

    def __init__(
        self,
        groups: Mapping[str, ScaleGroup],
        ranges: Mapping[str, Range],
        bits: Mapping[str, int],
        schema: TensorSchema,
        *,
        learns: bool,
    ) -> None:
        super().__init__()
        self._ranges = dict(ranges)
        grids = {key: GroupGrid(bits[key], group.dtype, schema) for key, group in groups.items()}
        self._names: dict[str, str] = {}
        self.factors = nn.ParameterDict()
        self._alike: dict[tuple[GroupGrid, bool], list[str]] = {}
        """Groups whose grids follow from their ranges by the same formula, which are computed at once."""
        for number, (key, group) in enumerate(groups.items()):
            positive = ranges[key].low >= 0.0
            self._alike.setdefault((grids[key], positive), []).append(key)
            if learns and group.fixed is None and ranges[key].threshold > 0:
                self._names[key] = str(number)
                self._ranges[key] = grids[key].centred(ranges[key])
                count = 2 if grids[key].is_affine(positive) else 1
                self.factors[str(number)] = nn.Parameter(torch.zeros(count, dtype=torch.float64))
                self.register_buffer(f"seen{number}", torch.zeros(2, dtype=torch.float64))
        for number, keys in enumerate(self._alike.values()):
            found = [self._ranges[key] for key in keys]
            ends = torch.tensor([[one.low, one.high] for one in found], dtype=torch.float64)
            self.register_buffer(f"ends{number}", ends, persistent=False)

    @property
    def learned(self) -> tuple[str, ...]:
        """Return the keys of the groups whose ranges are learned."""
        return tuple(self._names)

    def parameters_of(self, keys: Collection[str]) -> list[nn.Parameter]:
        """Return the parameters of some groups."""
        return [self.factors[name] for key, name in self._names.items() if key in keys]

    def see(self, key: str, values: Tensor) -> None:
        """Widen what was seen of a group by the values of a batch."""
        if key in self._names and values.numel():
            seen = self.get_buffer(f"seen{self._names[key]}")
            low, high = torch.aminmax(values.detach())
            seen.copy_(torch.stack([torch.minimum(seen[0], low.double()), torch.maximum(seen[1], high.double())]))

    def bound(self) -> None:
        """Lower the ends of learned ranges that are more than `ROOM` times the values seen."""
        if not self._names:
            return
        values = torch.stack([self.get_buffer(f"seen{name}") for name in self._names.values()]).mul(ROOM).tolist()
        for (key, name), (low, high) in zip(self._names.items(), values, strict=True):
            found, factor = self._ranges[key], self.factors[name].detach()
            ends = (
                [(-low, -found.low), (high, found.high)] if len(factor) == 2 else [(max(-low, high), found.threshold)]
            )
            for place, (seen, end) in enumerate(ends):
                if seen > 0 and end > 0:
                    factor[place].clamp_(max=math.log(seen / end))

    def range(self, key: str) -> Range:
        """Return a group's range."""
        found = self._ranges[key]
        if key not in self._names:
            return found
        factors = torch.exp(self.factors[self._names[key]].detach()).cpu()
        return Range(float(found.low * factors[0]), float(found.high * factors[-1]))

    def grids(self, like: Tensor) -> dict[str, TorchGrid]:
        """Return the grids of all groups for the values `like`; their numbers follow from the parameters."""
        found: dict[str, TorchGrid] = {}
        for number, ((kind, positive), keys) in enumerate(self._alike.items()):
            low, high = (self.get_buffer(f"ends{number}") * self._factors_of(keys)).unbind(1)
            grid = kind.grid(low, high, like, positive=positive)
            parts = (values.unbind() for values in (grid.scale, grid.zero, grid.low, grid.high))
            for key, scale, zero, start, end in zip(keys, *parts, strict=True):
                found[key] = TorchGrid(scale, zero, start, end, grid.qmin, grid.qmax)
        return found

    def _factors_of(self, keys: Sequence[str]) -> Tensor:
        """Return the factors on both ends of some groups' ranges, `[G, 2]` float64; 1 for those that stay."""
        stays = self.get_buffer("ends0").new_zeros(2)
        found = [self.factors[self._names[key]].expand(2) if key in self._names else stays for key in keys]
        return torch.exp(torch.stack(found))

    def decay(self) -> Tensor:
        """Return the sum of the squares of the learned ranges, each in units of its start."""
        squares = [torch.exp(2 * factor).sum() for factor in self.factors.values()]
        return torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64)
