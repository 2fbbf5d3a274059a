"""From sources to three disjoint splits: which samples calibrate, which steer the search, which judge the result.

Two ways to give sources: one, divided by seed; or one each for calibrate and evaluate, with the search samples from a
third or set aside from calibrate by seed. `build` then fits each part to the model and checks what is cheap to check.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.labels import check_labels
from quantpipe.data.preprocess import Preprocess, number
from quantpipe.data.samples import SourceSamples
from quantpipe.data.source import Source
from quantpipe.errors import ConfigError, DataError
from quantpipe.types import Samples, TensorInfo

log = logging.getLogger(__name__)

ROLES = ("calibrate", "search", "evaluate")
WHOLE = "whole"  # the key of the one source that is divided
DEFAULT_SPLIT: Mapping[str, Any] = {"calibrate": 0.25, "search": 0.25, "evaluate": 0.5}
DEFAULT_SHARE = 0.25
DEFAULT_SAMPLES: Mapping[str, Any] = {"calibrate": 128, "search": 128, "evaluate": None}


@dataclass(frozen=True, eq=False)
class Splits:
    """The three sample lists of a run; no sample stands in two of them."""

    calibrate: Samples
    search: Samples
    evaluate: Samples


@dataclass(frozen=True, eq=False)
class Part:
    """Some samples of a source; `indices` ascend."""

    source: Source
    indices: NDArray[np.int64]


def source_paths(path: Any, roles: Mapping[str, Mapping[str, Any]]) -> dict[str, Path]:
    """The sources given: `{"whole": …}`, or calibrate, evaluate and perhaps search.

    ConfigError for contradictions; DataError for what does not exist, or where two sources share samples.
    """
    given = {role: Path(str(roles[role]["path"])).expanduser() for role in ROLES if roles[role].get("path")}
    if path and given:
        raise ConfigError(
            f"given together with {', '.join(f'dataset.{r}.path' for r in given)}; give one source to be divided, or "
            "one for each split.",
            where="dataset.path",
        )
    if path:
        given = {WHOLE: Path(str(path)).expanduser()}
    elif missing := [role for role in ("calibrate", "evaluate") if role not in given]:
        raise ConfigError(
            f"dataset.{missing[0]}.path is not set. Set dataset.path to one source, which is then divided; or both "
            "dataset.calibrate.path and dataset.evaluate.path (dataset.search.path is optional)."
        )
    for role, place in given.items():
        if not place.exists():
            key = "dataset.path" if role == WHOLE else f"dataset.{role}.path"
            raise DataError(f"no such file or folder (from {key}).", stage="data", where=str(place))
    _refuse_shared(given)
    return given


def _refuse_shared(paths: Mapping[str, Path]) -> None:
    """One sample must not serve two splits: no source may be, or lie inside, another."""
    real = [(role, path.resolve()) for role, path in paths.items()]
    for i, (role, path) in enumerate(real):
        for other, place in real[:i]:
            if path.samefile(place) or path.is_relative_to(place) or place.is_relative_to(path):
                raise DataError(
                    f"dataset.{other}.path and dataset.{role}.path share samples, so the result would be judged by "
                    "what it was tuned on. Give separate sources, or one as dataset.path to have it divided.",
                    stage="data",
                    where=str(path),
                )


def divide(
    sources: Mapping[str, Source], fractions: Mapping[str, Any], search: Mapping[str, Any], seed: int
) -> dict[str, Part]:
    """Role -> part. `sources` has the keys of `source_paths`; `search["share"]` is what calibrate gives to search."""
    for source in sources.values():
        if len(source) == 0:
            raise DataError("holds no samples.", stage="data", where=source.where)
    rng = np.random.default_rng(seed)
    if WHOLE in sources:
        return _divide_one(sources[WHOLE], {**DEFAULT_SPLIT, **fractions}, rng)
    parts = {role: Part(source, np.arange(len(source), dtype=np.int64)) for role, source in sources.items()}
    if "search" not in parts:
        parts["calibrate"], parts["search"] = set_aside(parts["calibrate"], search.get("share", DEFAULT_SHARE), rng)
    return parts


def _divide_one(source: Source, fractions: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Part]:
    """Seeded permutation, cut at the fractions, each piece sorted."""
    shares = [number(fractions[role], f"dataset.split.{role}") for role in ROLES]
    if min(shares) <= 0 or sum(shares) > 1 + 1e-9:
        raise ConfigError(
            f"fractions {', '.join(map(str, shares))} must each be above 0 and sum up to at most 1.",
            where="dataset.split",
        )
    borders = [round(sum(shares[: i + 1]) * len(source)) for i in range(len(ROLES))]
    pieces = np.split(rng.permutation(len(source)).astype(np.int64), borders)[: len(ROLES)]
    for role, piece in zip(ROLES, pieces, strict=True):
        if not len(piece):
            raise DataError(
                f"{len(source)} samples divided by {', '.join(map(str, shares))} leave none to {role}; give more "
                "samples, or change dataset.split.",
                stage="data",
                where=source.where,
            )
    return {role: Part(source, np.sort(piece)) for role, piece in zip(ROLES, pieces, strict=True)}


def set_aside(part: Part, share: Any, rng: np.random.Generator) -> tuple[Part, Part]:
    """(what stays, what is set aside): a seeded `share` of `part`, at least one sample, leaving at least one."""
    fraction = number(share, "dataset.search.share")
    if not 0 < fraction < 1:
        raise ConfigError(f"{fraction} must lie between 0 and 1, both excluded.", where="dataset.search.share")
    total = len(part.indices)
    if total < 2:
        raise DataError(
            "a single sample cannot serve both calibrate and search; give more, or set dataset.search.path.",
            stage="data",
            where=part.source.where,
        )
    count = min(max(round(fraction * total), 1), total - 1)
    order = part.indices[rng.permutation(total)]
    return Part(part.source, np.sort(order[count:])), Part(part.source, np.sort(order[:count]))


def build(
    parts: Mapping[str, Part],
    limits: Mapping[str, Any],
    preprocess: Preprocess,
    inputs: Sequence[TensorInfo],
    classes: int | None,
) -> Splits:
    """The splits, cut to the first `limits[role]` samples, after checking labels and one sample of each split."""
    port = model_port(inputs)
    for source in {id(part.source): part.source for part in parts.values()}.values():
        if source.labels is not None:
            check_labels(source.labels, classes, source.where)
    samples = {role: _samples(role, parts[role], {**DEFAULT_SAMPLES, **limits}, preprocess, port) for role in ROLES}
    return Splits(**samples)


def _samples(
    role: str, part: Part, limits: Mapping[str, Any], preprocess: Preprocess, port: TensorInfo
) -> SourceSamples:
    limit = limits[role]
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise ConfigError(f"{limit!r} must be null (all) or a whole number above 0.", where=f"dataset.samples.{role}")
    indices = part.indices[:limit]
    log.info("%s: %d of %d samples of %s", role, len(indices), len(part.indices), part.source.where)
    samples = SourceSamples(part.source, indices, preprocess, port)
    samples.values(indices[:1])  # shape and dtype: the same for all samples, or reported when they stream
    return samples


def model_port(inputs: Sequence[TensorInfo]) -> TensorInfo:
    """The one input that samples go into."""
    if len(inputs) != 1:
        names = ", ".join(repr(i.name) for i in inputs) or "none"
        raise DataError(f"the model has {len(inputs)} inputs ({names}); this data set feeds exactly one.", stage="data")
    if not inputs[0].shape:
        raise DataError(f"model input {inputs[0].name!r} is a scalar; samples need a batch axis.", stage="data")
    return inputs[0]
