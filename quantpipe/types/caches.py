"""Caches of decoders as a device holds them: their types, and their places in a model."""

from __future__ import annotations

from dataclasses import dataclass

from quantpipe.types.dtype import DType


@dataclass(frozen=True)
class CacheLimits:
    """State how a device holds the keys and values of earlier tokens (docs/hardware.md, caches): one scale per tensor.

    `length`: positions of a static cache; None: as the model has them.
    """

    keys: DType
    values: DType
    length: int | None = None


@dataclass(frozen=True)
class CacheSite:
    """State where a cache enters a model and leaves it: `past` is an input, `present` an output of the same integers.

    `nodes` lead from the one to the other in order. `dtype`: the type at both ports. `keys`: whether it holds keys.
    """

    past: str
    present: str
    nodes: tuple[str, ...]
    dtype: DType
    keys: bool
