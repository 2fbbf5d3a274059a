"""stats.npz: a whole profile as plain arrays, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.errors import ArtifactError
from quantpipe.types import ChannelStats, Profile, TensorStats
from quantpipe.types.statistics import FOLD_BINS

VERSION = "1.1"

_HEAD = ("version", "model_hash", "samples", "loaded", "names")
_INTEGERS = ("count", "nonfinite")
_FLOATS = ("minimum", "maximum", "mean", "variance", "batch_minimum", "batch_maximum", "limit")
_RAGGED = {"histogram": "bins", "batch_extremes": "batches", "channels": "channel_counts"}
"""Arrays of which each tensor has a share of its own, and the arrays that say how long the shares are."""
RUN = ("seconds", "float_pass_seconds", "peak_rss_mb")


def stats_arrays(profile: Profile) -> dict[str, NDArray[Any]]:
    """Return the whole profile as plain arrays for `numpy.savez`, tensors along the first axis; no pickled objects.

    `histogram` is all tensors' int64 counts one after another, and `bins` `[tensors]` how many belong to each. The same
    holds for `batch_extremes` `[all, 2]` and `batches`, and for `channels` `[all, 4]` (minimum, maximum, mean,
    variance) with `channel_counts`. `channel_axis` is 0 for a tensor without them. `folds`
    `[all, bins]` has `parts` rows of each tensor; a file of an older release has neither.
    """
    tensors = list(profile.tensors.values())
    arrays: dict[str, NDArray[Any]] = {
        "version": np.asarray(VERSION),
        "model_hash": np.asarray(profile.model_hash),
        "samples": np.asarray(profile.samples, dtype=np.int64),
        "loaded": np.asarray(json.dumps(dict(profile.loaded))),
        "names": np.asarray([t.name for t in tensors], dtype=np.str_),
        "bins": np.asarray([len(t.histogram) for t in tensors], dtype=np.int64),
        "histogram": np.concatenate([np.zeros(0, dtype=np.int64), *(t.histogram for t in tensors)]),
        "batches": np.asarray([len(t.batch_extremes) for t in tensors], dtype=np.int64),
        "batch_extremes": np.concatenate([np.zeros((0, 2)), *(t.batch_extremes for t in tensors)]),
    }
    channels = [np.zeros((0, 4)) if t.channels is None else t.channels.table for t in tensors]
    arrays |= {
        "channel_axis": np.asarray([t.channels.axis if t.channels else 0 for t in tensors], dtype=np.int64),
        "channel_counts": np.asarray([len(c) for c in channels], dtype=np.int64),
        "channels": np.concatenate([np.zeros((0, 4)), *channels]),
    }
    arrays |= {
        "parts": np.asarray([len(t.folds) for t in tensors], dtype=np.int64),
        "folds": np.concatenate([np.zeros((0, FOLD_BINS), np.int64), *(t.folds for t in tensors)]),
    }
    arrays |= {key: np.asarray(getattr(profile, key), dtype=np.float64) for key in RUN}
    arrays |= {key: np.asarray([getattr(t, key) for t in tensors], dtype=np.int64) for key in _INTEGERS}
    arrays |= {key: np.asarray([getattr(t, key) for t in tensors], dtype=np.float64) for key in _FLOATS}
    return arrays


def profile_from_arrays(arrays: Mapping[str, NDArray[Any]], where: str | None = None) -> Profile:
    """Return the profile that `stats_arrays` wrote, bit for bit.

    Raises ArtifactError for another version, missing arrays, and arrays that do not belong together.
    """
    expected = {*_HEAD, "channel_axis", *RUN, *_INTEGERS, *_FLOATS, *_RAGGED, *_RAGGED.values()}
    missing = sorted(expected - set(arrays))
    if missing:
        raise ArtifactError(f"statistics lack the arrays {', '.join(missing)}", stage="calibrate", where=where)
    found = str(arrays["version"])
    if found != VERSION:
        raise ArtifactError(f"statistics have version {found}; legal: {VERSION}", stage="calibrate", where=where)
    names = [str(name) for name in arrays["names"]]
    columns: dict[str, list[Any]] = {key: np.asarray(arrays[key]).tolist() for key in (*_INTEGERS, *_FLOATS)}
    for key, lengths in _RAGGED.items():
        parts = np.asarray(arrays[lengths], dtype=np.int64)
        if len(parts) != len(names) or int(parts.sum()) != len(arrays[key]):
            raise ArtifactError("statistics are damaged: array lengths disagree", stage="calibrate", where=where)
        columns[key] = np.split(arrays[key], np.cumsum(parts)[:-1]) if names else []
    if any(len(c) != len(names) for c in columns.values()):
        raise ArtifactError("statistics are damaged: array lengths disagree", stage="calibrate", where=where)
    axes = np.asarray(arrays["channel_axis"]).tolist()
    columns["channels"] = [
        ChannelStats.of(axis, c) if axis else None for axis, c in zip(axes, columns["channels"], strict=True)
    ]
    parts = np.asarray(arrays.get("parts", np.zeros(len(names))), dtype=np.int64)
    folds = arrays.get("folds", np.zeros((0, FOLD_BINS), np.int64))
    if len(parts) != len(names) or int(parts.sum()) != len(folds):
        raise ArtifactError("statistics are damaged: array lengths disagree", stage="calibrate", where=where)
    columns["folds"] = np.split(folds, np.cumsum(parts)[:-1]) if names else []
    tensors = {
        name: TensorStats(name=name, **{key: column[i] for key, column in columns.items()})
        for i, name in enumerate(names)
    }
    return Profile(
        model_hash=str(arrays["model_hash"]),
        samples=int(arrays["samples"]),
        tensors=tensors,
        loaded=json.loads(str(arrays["loaded"])),
        **{key: float(arrays[key]) for key in RUN},
    )
