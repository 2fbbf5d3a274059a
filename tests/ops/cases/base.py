"""What the cases are made with: a Conv stands in front where an op needs an integer producer, and another reads it
where its result would otherwise leave in float."""

from __future__ import annotations

from collections.abc import Callable

from tests.ops.line import Net

Build = Callable[[Net], None]
CASES: dict[str, Build] = {}


def case(function: Build) -> Build:
    CASES[function.__name__] = function
    return function


def front_of(net: Net, channels: int = 6, side: int = 8, **attrs: object) -> str:
    x = net.input(None, 3, side, side)
    return net.conv(x, 3, channels, 3, 3, pads=[1, 1, 1, 1], name="front", **attrs)


def back_of(net: Net, x: str, channels: int = 6, side: int = 8) -> None:
    net.output(net.conv(x, channels, 5, 1, 1, name="back"))


def between(net: Net, op: str, *more: str, channels: int = 6, **attrs: object) -> None:
    """Conv, the op, Conv of `channels`."""
    back_of(net, net.node(op, front_of(net), *more, name="mid", **attrs), channels)
