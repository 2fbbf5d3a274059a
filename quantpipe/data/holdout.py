"""Samples set aside from the search samples: they judge what is done behind a search that has not seen them.

The best of some hundred candidates is best on the samples that chose it, and less good on others. What is compared with
it on the same samples looks too bad.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quantpipe.data.samples import SourceSamples
from quantpipe.data.splits import Splits

_STREAM = 0x7ADE
"""Keeps these draws apart from those that divide the sources, which begin with the seed alone."""


def with_holdout(splits: Splits, share: float, seed: int, batch: int = 1) -> Splits:
    """The splits with a seeded `share` of the search samples as `judge`, sequences kept whole. As they were where
    that cannot be: where one of both would be less than a `batch`, and for samples that cannot be told apart."""
    samples = splits.search
    if not share or not isinstance(samples, SourceSamples):
        return splits
    units = samples.units
    names = np.unique(units)
    count = min(max(round(share * len(names)), 1), len(names) - 1)
    search, judge = samples.divided(np.isin(units, np.random.default_rng([seed, _STREAM]).permutation(names)[:count]))
    if min(len(search), len(judge)) < batch:
        return splits
    return replace(splits, search=search, judge=judge)
