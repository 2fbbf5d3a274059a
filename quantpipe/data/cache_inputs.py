"""Inputs that take the cache of a decoder (`past_key_values.0.key`, `past_0_key`): empty where no data are given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.errors import ConfigError
from quantpipe.types import TensorInfo

NAMES = re.compile(r"past.*[._](key|value|k|v)([._]\d+)?")
"""Names of caches as exporters of decoders write them; `past_values` of a time series is not among them."""
PAST = re.compile(r"past(_key_values)?")
"""What stands for a cache in the name of an input; in the name of the output, `present` stands there."""
CACHES = "caches"
"""The value of `dataset.state` by which every cache is carried."""
EMPTY = "(empty cache)"
"""The field of an input that is fed with the cache of no tokens."""


def is_cache(port: TensorInfo) -> bool:
    """Return whether an input takes a cache that grows: by its name and a free axis next to the samples' axis."""
    return NAMES.fullmatch(port.name) is not None and port.shape[:1] == (None,) and None in port.shape[1:]


def caches_carried(inputs: Sequence[TensorInfo]) -> dict[str, str]:
    """Return a mapping: output -> input that takes its cache, by the names that exporters give them.

    Raises ConfigError for a model without such inputs.
    """
    names = [port.name for port in inputs if NAMES.fullmatch(port.name)]
    if not names:
        raise ConfigError(
            f"is {CACHES}, and no input has the name of a cache (past_key_values.0.key, past_0_key); the inputs are "
            f"{', '.join(port.name for port in inputs)}. Give OUTPUT: INPUT pairs.",
            where="dataset.state",
        )
    return {PAST.sub("present", name, count=1): name for name in names}


def empty_cache(port: TensorInfo, samples: int) -> NDArray[Any]:
    """Return the cache of no tokens for some samples: every other free axis has no element."""
    return np.zeros([samples, *(n or 0 for n in port.shape[1:])], dtype=port.dtype)
