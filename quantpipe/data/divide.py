"""Split samples into calibrate, search and evaluate: disjoint, by seed, with sequences kept together.

Two ways to give sources: one, divided by seed; or one each for calibrate and evaluate, with the search samples from a
third or set aside from calibrate by seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.preprocess import number
from quantpipe.data.source import Source
from quantpipe.errors import ConfigError, DataError

ROLES = ("calibrate", "search", "evaluate")
TRAIN = "train"  # samples to train on, of a source of their own or of the calibrate part; no split by itself
WHOLE = "whole"  # the key of the one source that is divided
DEFAULT_SPLIT: Mapping[str, Any] = {"calibrate": 0.25, "search": 0.25, "evaluate": 0.5}
DEFAULT_SHARE = 0.25
LEAST_UNITS = 4
"""Samples or sequences that the default shares can be taken of."""


@dataclass(frozen=True, eq=False)
class SamplePart:
    """Some samples of a source. `units` `[len(source)]` numbers what must not be torn apart; None: each sample."""

    source: Source
    indices: NDArray[np.int64]
    units: NDArray[np.int64] | None = None

    def groups(self) -> NDArray[np.int64]:
        """Return the units of this part, each once, in order of appearance."""
        if self.units is None:
            return self.indices
        found, first = np.unique(self.units[self.indices], return_index=True)
        return np.asarray(found[np.argsort(first)])

    def of(self, groups: NDArray[np.int64]) -> SamplePart:
        """Return the samples of some units, ascending."""
        if self.units is None:
            return replace(self, indices=np.sort(groups))
        return replace(self, indices=self.indices[np.isin(self.units[self.indices], groups)])

    def shuffled(self, rng: np.random.Generator) -> SamplePart:
        """Return the units in a random order, the samples of each in theirs."""
        groups = self.groups()
        order = groups[rng.permutation(len(groups))]
        if self.units is None:
            return replace(self, indices=order)
        rank = {int(group): place for place, group in enumerate(order)}
        ranks = np.array([rank[int(unit)] for unit in self.units[self.indices]])
        return replace(self, indices=self.indices[np.argsort(ranks, kind="stable")])


def divide(
    sources: Mapping[str, Source],
    fractions: Mapping[str, Any],
    search: Mapping[str, Any],
    seed: int,
    *,
    units: Mapping[str, NDArray[np.int64] | None] | None = None,
) -> dict[str, SamplePart]:
    """Return the samples of each split, by role.

    The sources have the key `WHOLE`, or the keys calibrate, evaluate and perhaps search; and perhaps train. With one
    source, `fractions` are the shares of the splits; `search["share"]` is the part of calibrate that search gets.
    `units` (default: the sequences of each source) are samples that must stay in one split.
    """
    parts = {}
    for role, source in sources.items():
        if len(source) == 0:
            raise DataError("holds no samples.", stage="data", where=source.where)
        together = source.sequences if units is None else units[role]
        parts[role] = SamplePart(source, np.arange(len(source), dtype=np.int64), together)
    rng = np.random.default_rng(seed)
    if WHOLE in parts:
        training = {role: part for role, part in parts.items() if role == TRAIN}
        return training | _divide_one(parts[WHOLE], {**DEFAULT_SPLIT, **fractions}, rng)
    if "search" not in parts:
        parts["calibrate"], parts["search"] = set_aside(parts["calibrate"], search.get("share", DEFAULT_SHARE), rng)
    return parts


def _divide_one(part: SamplePart, fractions: Mapping[str, Any], rng: np.random.Generator) -> dict[str, SamplePart]:
    """Return the parts: a seeded permutation, cut at the fractions, each piece sorted."""
    shares = [number(fractions[role], f"dataset.split.{role}") for role in ROLES]
    if min(shares) <= 0 or sum(shares) > 1 + 1e-9:
        raise ConfigError(
            f"fractions {', '.join(map(str, shares))} must each be above 0 and sum up to at most 1.",
            where="dataset.split",
        )
    groups = part.groups()
    borders = [round(sum(shares[: i + 1]) * len(groups)) for i in range(len(ROLES))]
    pieces = np.split(groups[rng.permutation(len(groups))], borders)[: len(ROLES)]
    for role, piece in zip(ROLES, pieces, strict=True):
        if not len(piece):
            what = "sample" if part.units is None else "sequence"
            raise DataError(
                f"{len(groups)} {what}{'s leave' if len(groups) > 1 else ' leaves'} none to {role} if divided by "
                f"{', '.join(map(str, shares))}; {_more(part)}or change dataset.split.",
                stage="data",
                where=part.source.where,
            )
    return {role: part.of(piece) for role, piece in zip(ROLES, pieces, strict=True)}


def _more(part: SamplePart) -> str:
    """Return what gives a source more of the units that are divided, as the start of a sentence."""
    if part.units is None:
        return "give more samples, "
    piece = max(len(part.indices) // LEAST_UNITS, 1)
    return f"give more sequences, cut them (with dataset.state: dataset.state_reset={piece}, in samples), "


def set_aside(part: SamplePart, share: Any, rng: np.random.Generator) -> tuple[SamplePart, SamplePart]:
    """Return (what stays, what is set aside): a seeded `share` of `part`, at least one unit, leaving at least one."""
    fraction = number(share, "dataset.search.share")
    if not 0 < fraction < 1:
        raise ConfigError(f"{fraction} must be between 0 and 1, both excluded.", where="dataset.search.share")
    groups = part.groups()
    total = len(groups)
    if total < 2:
        what = "sample" if part.units is None else "sequence"
        raise DataError(
            f"a single {what} cannot serve both calibrate and search; {_more(part)}or set dataset.search.path.",
            stage="data",
            where=part.source.where,
        )
    count = min(max(round(fraction * total), 1), total - 1)
    order = groups[rng.permutation(total)]
    return part.of(order[count:]), part.of(order[:count])
