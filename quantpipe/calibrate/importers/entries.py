"""The entries of a profile file, before it is known which tensors the model has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from quantpipe.errors import ArtifactError
from quantpipe.types import Profile, TensorStats

NO_HASH = "the file carries no hash of a model, so only the tensor names show that it fits"


@dataclass(frozen=True, eq=False)
class Entries:
    """The statistics of one file by the file's own names.

    `unsigned`: the file has one threshold per tensor and no sign; each range is [-T, T] until the model shows that a
    tensor is never negative. `profile` is the whole content of our own files, and `notes` are messages for the user.
    """

    format: str
    tensors: Mapping[str, TensorStats]
    unsigned: bool = False
    glow_names: bool = False
    profile: Profile | None = None
    notes: tuple[str, ...] = field(default=())


def extremes(name: str, low: float, high: float, where: str) -> TensorStats:
    """Return the statistics of a tensor of which only the extremes are known, in real units.

    Raises ArtifactError unless low <= high, both finite.
    """
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ArtifactError(
            f"the tensor {name} has the range [{low}, {high}]; legal are two finite numbers, the lower one first",
            stage="calibrate",
            where=where,
        )
    return TensorStats(
        name=name,
        count=0,
        minimum=low,
        maximum=high,
        mean=math.nan,
        variance=math.nan,
        batch_minimum=low,
        batch_maximum=high,
        limit=max(-low, high) or 1.0,
        histogram=np.zeros(0, dtype=np.int64),
    )
