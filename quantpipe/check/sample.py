"""A made-up sample, for measuring the shapes of a model whose data are not at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.errors import ConfigError, nearest
from quantpipe.types import TensorInfo

MOST_VALUES = 1 << 26
"""Of one input of a made-up sample."""
FREE = 64
"""Size of a free axis other than the batch axis, where the user gives none."""


def made_up(
    inputs: Sequence[TensorInfo], shapes: Mapping[str, Sequence[int]], seed: int = 0
) -> dict[str, NDArray[Any]]:
    """Return one sample per input: normal values for reals, zeros for integers (legal indices everywhere).

    `shapes` gives whole shapes by input name, batch axis included; free axes of other inputs are 1 (the first) and
    FREE. ConfigError for a name that is no input, or a shape that the input does not have.
    """
    names = [i.name for i in inputs]
    for name in shapes:
        if name not in names:
            raise ConfigError(
                f"the model has no input {name!r}{nearest(name, names)}; it has {', '.join(names)}",
                where="check.shapes",
            )
    rng = np.random.default_rng(seed)
    found = {}
    for port in inputs:
        shape = _shape(port, shapes.get(port.name))
        dtype = np.dtype(port.dtype)
        if prod(shape) > MOST_VALUES:
            raise ConfigError(
                f"is {list(shape)}, more than {MOST_VALUES} values, which no sample is made up of; give a smaller one, "
                "if the model leaves one free",
                where=f"check.shapes.{port.name}",
            )
        found[port.name] = rng.standard_normal(shape).astype(dtype) if dtype.kind == "f" else np.zeros(shape, dtype)
    return found


def _shape(port: TensorInfo, given: Sequence[int] | None) -> tuple[int, ...]:
    if given is None:
        return tuple(d if d is not None else 1 if axis == 0 else FREE for axis, d in enumerate(port.shape))
    fits = len(given) == len(port.shape) and all(
        isinstance(g, int) and (g > 0 or d == 0) and d in (None, g) for g, d in zip(given, port.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("?" if d is None else str(d) for d in port.shape)
        raise ConfigError(
            f"is {list(given)}; the model's input takes [{wanted}], where ? is any size",
            where=f"check.shapes.{port.name}",
        )
    return tuple(given)
