"""Round a tensor to a grid of integers, with the gradient that an algorithm gives the rounding.

A grid has a scale s, a zero point z and integers from qmin to qmax. The result is s·(clip(R(x / s) + z) - z), where R
rounds as the device does, by default to the nearest integer, ties to even. There are three kinds of gradients. In all
of them x has 0 outside the grid.

`scale` is LSQ (arXiv 1902.08153). Inside, x has the gradient 1, and s has R(v) - v with v = x / s. Outside, s has the
bound, and z has -s (LSQ+, arXiv 2004.09576).

`clip` is PACT (arXiv 1805.06085). Inside, x has 1. The ends `low` and `high` have 1 where x is beyond.

`soft` is DSQ (arXiv 1908.05033): as `clip`, with the slope of a soft staircase inside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quantpipe.types import FixedRounding, Rounding

SCALE, CLIP, SOFT = "scale", "clip", "soft"

DSQ_ALPHA = 0.4
"""Distance of the soft staircase from the hard one at the middle of a step (a in the paper)."""
DSQ_SLOPE = math.log(2 / DSQ_ALPHA - 1)
DSQ_HEIGHT = 1 / (1 - DSQ_ALPHA)


@dataclass(frozen=True, eq=False)
class TorchGrid:
    """Hold a grid as tensors: `scale` and `zero` float, `()` or shaped to broadcast; `low`, `high` are its real ends.

    `zero`, `low` and `high` follow from learned numbers, as `scale` does. `rounding`: of fractions to integers.
    """

    scale: Tensor
    zero: Tensor
    low: Tensor
    high: Tensor
    qmin: int
    qmax: int
    rounding: Rounding = Rounding.HALF_EVEN

    def detached(self) -> TorchGrid:
        """Return the grid without gradients."""
        ends = (self.scale.detach(), self.zero.detach(), self.low.detach(), self.high.detach())
        return TorchGrid(*ends, self.qmin, self.qmax, self.rounding)


def fake_quantize(x: Tensor, grid: TorchGrid, gradient: str, codes: Tensor | None = None) -> Tensor:
    """Return x on the grid, with a gradient for the numbers of the grid.

    `codes`: the integers q, where something else than rounding to the nearest has chosen them.
    """
    found: Tensor = _FakeQuantize.apply(
        x, grid.scale, grid.zero, grid.low, grid.high, (grid.qmin, grid.qmax, gradient, codes, grid.rounding)
    )
    return found


def rounded(v: Tensor, rounding: Rounding) -> Tensor:
    """Return the integers, as floats, that a rounding makes of a tensor."""
    if rounding is Rounding.HALF_EVEN:
        return torch.round(v)
    below = torch.floor(v)
    if rounding is Rounding.FLOOR:
        return below
    tie = v - below == 0.5
    up = tie if rounding is Rounding.HALF_UP else tie & (v > 0)
    return torch.where(tie, below + up.to(v), torch.round(v))


def nearest_rounding(how: Rounding | FixedRounding) -> Rounding:
    """Return where the rounding of a device's results puts ties; a double rounding differs from it close to ties."""
    if isinstance(how, Rounding):
        return how
    return Rounding.HALF_AWAY if how in (FixedRounding.DOUBLE, FixedRounding.SINGLE_AWAY) else Rounding.HALF_UP


def scaled_gradient(x: Tensor, factor: float) -> Tensor:
    """Return x to the last bit, whose gradient is multiplied by a factor."""
    return x.detach() + (x - x.detach()) * factor


def straight_through(value: Tensor, x: Tensor) -> Tensor:
    """Return `value` to the last bit, with the gradient of x."""
    return value.detach() + (x - x.detach())


class _FakeQuantize(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        x, scale, zero, low, high, (qmin, qmax, kind, codes, rounding) = given
        v = x / scale
        least, most = qmin - zero, qmax - zero  # of q - z
        kept: tuple[Tensor, ...] = ()
        if any(ctx.needs_input_grad):
            kept = (v > least, v < most)
        steps = rounded(v, rounding).clamp_(least, most) if codes is None else codes - zero
        result = steps.mul_(scale)
        if kind == SCALE and kept:
            kept = (kept[0].logical_and_(kept[1]), result)
        ctx.kind = kind
        ctx.save_for_backward(x, scale, zero, low, high, *kept)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        x, scale, zero, low, high, *kept = ctx.saved_tensors
        if ctx.kind == SCALE:
            inside, result = kept
            through, of_scale, of_zero = gradient * inside, None, None
            if ctx.needs_input_grad[1]:  # the result is s·(q - z), so that R(v) - v and the bounds follow from it
                of_scale = _summed(torch.addcmul(gradient * result, through, x, value=-1.0), scale) / scale
            if ctx.needs_input_grad[2]:
                of_zero = _summed((through - gradient) * scale, zero)
            return through, of_scale, of_zero, None, None, None
        above_least, below_most = kept
        through = gradient * (above_least & below_most)
        if ctx.kind == SOFT:
            v = x / scale
            place = v - torch.floor(v) - 0.5
            through = through * (DSQ_HEIGHT * DSQ_SLOPE / 2 * (1 - torch.tanh(DSQ_SLOPE * place) ** 2))
        ends = [
            _summed(gradient * ~side, end) if ctx.needs_input_grad[number] else None
            for number, side, end in ((3, above_least, low), (4, below_most, high))
        ]
        return through, None, None, *ends, None


def _summed(gradient: Tensor, like: Tensor) -> Tensor:
    """Return a gradient summed over the axes along which `like` was broadcast."""
    return gradient.sum_to_size(like.shape).to(like.dtype)
