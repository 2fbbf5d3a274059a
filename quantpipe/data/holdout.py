"""Hold out search samples: they judge steps after a search that has not seen them.

The best of some hundred candidates is best on the samples that chose it, and less good on others. What is compared with
it on the same samples looks too bad.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from quantpipe.data.divide import SamplePart, set_aside
from quantpipe.data.duplicates import fingerprints, say, unshared
from quantpipe.data.samples import SourceSamples
from quantpipe.data.splits import Splits

_STREAM = 0x7ADE
"""Keeps these draws apart from those that divide the sources, which begin with the seed alone."""


def with_holdout(splits: Splits, share: float, seed: int, batch: int = 1) -> Splits:
    """Return the splits with a seeded `share` of the search samples `aside`, with sequences kept together.

    The splits stay unchanged where either part would have fewer samples than a `batch`, and for samples that cannot be
    identified. `share` is from 0 to less than 1.
    """
    samples = splits.search
    if not share or not isinstance(samples, SourceSamples):
        return splits
    whole = SamplePart(samples.source, samples.indices, samples.units)
    if len(whole.groups()) < 2:
        return splits
    _, chosen = set_aside(whole, share, np.random.default_rng([seed, _STREAM]))
    search, aside = samples.divided(np.isin(samples.indices, chosen.indices))
    if splits.duplicates == "drop" and not splits.state:
        search = _without(search, aside)
    return splits if min(len(search), len(aside)) < batch else replace(splits, search=search, aside=aside)


def _without(search: SourceSamples, aside: SourceSamples) -> SourceSamples:
    """Return the search samples whose content does not stand among those set aside."""
    taken = fingerprints(aside.source, aside.indices)
    kept, shared = unshared(search.source, search.indices, partial(fingerprints, search.source), taken, limit=None)
    if not len(shared.indices):
        return search
    say("search", len(kept), shared, ["judge"], where=search.source.where)
    return search.without(shared)
