"""Absorb biases: take off a tensor a constant per channel that the layers after it can add themselves.

The tensor then needs a smaller range. Where a clamp can have the limits that go with it, the function stays the same,
and each tensor is centred: a symmetric schema then spends no codes on the side that a Relu leaves empty. Where it
cannot, only what a channel always exceeds is taken off: max(0, lowest value, or mean - 3 deviations if that is less)
(high-bias absorption, Nagel et al. 2019, section 4.1.3, with measured figures). Pure: takes pairs of layers and their
channels' extremes, gives changes of channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from quantpipe import intmath
from quantpipe.arrays import Floats
from quantpipe.graph.view import Graph
from quantpipe.oprules.channels import CLAMP
from quantpipe.option_checks import flag
from quantpipe.plan import ChannelChange
from quantpipe.recover.parameters import KEY
from quantpipe.recover.rescale.channel_regions import LayerPair
from quantpipe.recover.rescale.channel_stats import ChannelExtremes
from quantpipe.recover.rescale.rescale_channels import clamp_limits
from quantpipe.types import HardwareSpec, Symmetry, TensorSchema

LEAST_GAIN = 0.05
"""A range that would shrink by less than this share is left alone."""


@dataclass(frozen=True)
class Absorption:
    """State which constants are taken off a tensor.

    `by_channel`: an offset for each channel where the device allows that, else one for the tensor.
    """

    by_channel: bool = True

    def __post_init__(self) -> None:
        flag(f"{KEY}.by_channel", self.by_channel)


def absorbed(
    graph: Graph,
    found: Iterable[LayerPair],
    extremes: Mapping[str, ChannelExtremes],
    schema: TensorSchema,
    *,
    spec: HardwareSpec,
    options: Absorption,
    steps: Mapping[str, float],
) -> dict[str, ChannelChange]:
    """Return a change per link whose tensor needs a smaller range then; factors are 1.

    Offsets are whole steps where scales are known: so what was 0, as most values after a Relu are, stays a code
    without an error that all of these values would share.

    `steps`: scales of tensors, as far as they are known. Returns tensor -> its change.
    """
    changes: dict[str, ChannelChange] = {}
    for link in found:
        if not link.offsets:
            continue
        seen = extremes[link.tensor]
        there = extremes[link.clamp_output]
        offset, limits = _offset(graph, link, seen, there, spec=spec, options=options, step=steps.get(link.tensor, 0.0))
        before, after = (_range(seen, o, schema) for o in (np.zeros(link.channels), offset))
        if link.tensor in steps or after <= (1.0 - LEAST_GAIN) * before:
            changes[link.tensor] = ChannelChange(np.ones(link.channels), offset, limits)
    return changes


def _offset(
    graph: Graph,
    link: LayerPair,
    seen: ChannelExtremes,
    there: ChannelExtremes,
    *,
    spec: HardwareSpec,
    options: Absorption,
    step: float,
) -> tuple[Floats, tuple[float, float] | None]:
    """Return offsets `[C]`, and the limits of the clamp unless they are the limits of T moved along.

    `there`: extremes where the clamp stands.
    """
    centre = _whole_steps((seen.minimum + seen.maximum) / 2, step)
    whole = _whole_steps(np.full(link.channels, (seen.minimum.min() + seen.maximum.max()) / 2), step)
    clamp = None if link.clamp is None else graph.by_name[link.clamp]
    limits = None if clamp is None else clamp_limits(graph, clamp)
    if clamp is None or limits is None or (spec.channel_bounds and link.clamp_fused):
        return (centre if options.by_channel else whole), None
    low, high = limits
    if clamp.op == CLAMP or _can_clamp(graph, link, spec):
        return whole, (low - whole[0], high - whole[0])
    exceeded = np.maximum(np.minimum(there.minimum, there.mean - 3 * there.deviation), 0.0)
    return exceeded, (low, high)


def _whole_steps(offset: Floats, step: float) -> Floats:
    return intmath.round_real(offset / step) * step if step > 0 else offset


def _can_clamp(graph: Graph, link: LayerPair, spec: HardwareSpec) -> bool:
    """Whether the device runs a clamp with limits of its own in place of the present one."""
    return spec.fuses(graph.by_name[link.producer].op, CLAMP) if link.clamp_fused else CLAMP in spec.ops


def _range(seen: ChannelExtremes, offset: Floats, schema: TensorSchema) -> float:
    """What the schema has to cover, zero included."""
    low, high = min(float((seen.minimum - offset).min()), 0.0), max(float((seen.maximum - offset).max()), 0.0)
    return high - low if schema.symmetry is not Symmetry.SYMMETRIC else 2 * max(high, -low)
