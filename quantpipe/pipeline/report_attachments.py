"""Attachments of a report and a strategy: the report's additional data, and the digest of the strategy's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.artifacts import digest_array, digest_json
from quantpipe.plan import Overrides
from quantpipe.recover import overrides_arrays
from quantpipe.types import Strategy
from quantpipe.types.figures import Figures


@dataclass(frozen=True, eq=False)
class Beside:
    """Hold the data kept next to a report: the results per sample, and the data of the page's figures."""

    samples: Mapping[str, NDArray[Any]]
    figures: Figures


def digest_of(strategy: Strategy, overrides: Overrides) -> str:
    """Return the digest of a strategy's numbers, recovered weights included."""
    ranges = {k: [r.low, r.high] for k, r in strategy.ranges.items()}
    weights = {k: digest_array(np.asarray(v)) for k, v in strategy.weights.items()}
    recovered = {k: digest_array(v) for k, v in overrides_arrays(overrides).items()}
    return digest_json([dict(strategy.bits), ranges, weights, recovered, strategy.structure.decided])
