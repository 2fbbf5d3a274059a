"""The two files of a calibration: profile.yaml to read and diff (in Glow's shape), stats.npz with everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from quantpipe.calibrate.histogram import borders, rebin
from quantpipe.errors import ArtifactError
from quantpipe.types import ChannelStats, Profile, TensorStats

VERSION = "1.1"

COARSE_BINS = 32
"""Bins of the histogram in profile.yaml: enough to see a distribution, too few to calibrate from."""

_INTEGERS = ("count", "nonfinite")
_FLOATS = ("minimum", "maximum", "mean", "variance", "batch_minimum", "batch_maximum", "limit")
_RAGGED = {"histogram": "bins", "batch_extremes": "batches", "channels": "channel_counts"}
"""Arrays of which each tensor has a share of its own, and the arrays that say how long the shares are."""
_RUN = ("seconds", "float_pass_seconds", "peak_rss_mb")


class _Dumper(yaml.SafeDumper):
    """Floats positionally, with as many decimals as it takes to read back the same number."""


def _plain_float(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:float", np.format_float_positional(value, trim="0"))


_Dumper.add_representer(float, _plain_float)


def profile_yaml(profile: Profile) -> str:
    """Three YAML documents, as Glow's `-dump-profile` writes them: version, model hash, list of tensors.

    Glow's keys per tensor (`NodeOutputName`, `Min`, `Max`, `Histogram` over [Min, Max]) and ours (`Mean`, `Variance`,
    `BatchMin`, `BatchMax`, `Count`, `NonFinite`). Source: pytorch/glow lib/Quantization/Serialization.cpp.
    """
    run = {"Samples": profile.samples, **{_title(key): float(getattr(profile, key)) for key in _RUN}}
    documents: list[Any] = [
        {"QuantpipeProfileVersion": VERSION},
        {"ModelHash": profile.model_hash, **run},
        [_entry(stats) for stats in profile.tensors.values()],
    ]
    text: str = yaml.dump_all(
        documents,
        Dumper=_Dumper,
        explicit_start=True,
        sort_keys=False,
        default_flow_style=None,
        allow_unicode=True,
        width=120,
    )
    return text


def _title(key: str) -> str:
    return "".join(part.capitalize() for part in key.split("_"))


def _entry(stats: TensorStats) -> dict[str, Any]:
    """What is known of one tensor; mean and variance are not when only extremes were measured."""
    moments = {"Mean": float(stats.mean), "Variance": float(stats.variance)} if stats.full else {}
    return {
        "NodeOutputName": stats.name,
        "Min": float(stats.minimum),
        "Max": float(stats.maximum),
        **moments,
        "BatchMin": float(stats.batch_minimum),
        "BatchMax": float(stats.batch_maximum),
        "Count": int(stats.count),
        "NonFinite": int(stats.nonfinite),
        "Histogram": coarse_histogram(stats).tolist(),
    }


def coarse_histogram(stats: TensorStats, bins: int = COARSE_BINS) -> NDArray[np.int64]:
    """Integer counts `[bins]` over [minimum, maximum]; a constant tensor has a single bin, extremes alone have none."""
    if not stats.full:
        return np.zeros(0, dtype=np.int64)
    if stats.minimum >= stats.maximum:
        return np.asarray([stats.histogram.sum()], dtype=np.int64)
    target = np.linspace(stats.minimum, stats.maximum, bins + 1)
    return rebin(stats.histogram, borders(stats.limit, len(stats.histogram)), target)


def stats_arrays(profile: Profile) -> dict[str, NDArray[Any]]:
    """The whole profile as plain arrays for `numpy.savez`, tensors along the first axis; no pickled objects.

    `histogram` is all tensors' int64 counts one after another, `bins` `[tensors]` how many belong to each; likewise
    `batch_extremes` `[all, 2]` and `batches`, and `channels` `[all, 4]` (minimum, maximum, mean, variance) with
    `channel_counts`; `channel_axis` is 0 for a tensor without them.
    """
    tensors = list(profile.tensors.values())
    arrays: dict[str, NDArray[Any]] = {
        "version": np.asarray(VERSION),
        "model_hash": np.asarray(profile.model_hash),
        "samples": np.asarray(profile.samples, dtype=np.int64),
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
    arrays |= {key: np.asarray(getattr(profile, key), dtype=np.float64) for key in _RUN}
    arrays |= {key: np.asarray([getattr(t, key) for t in tensors], dtype=np.int64) for key in _INTEGERS}
    arrays |= {key: np.asarray([getattr(t, key) for t in tensors], dtype=np.float64) for key in _FLOATS}
    return arrays


def profile_from_arrays(arrays: Mapping[str, NDArray[Any]], where: str | None = None) -> Profile:
    """The profile that `stats_arrays` wrote, bit for bit. `where` names the file in errors.

    Raises ArtifactError for another version, missing arrays, and arrays that do not belong together.
    """
    expected = {
        "version",
        "model_hash",
        "samples",
        "names",
        "channel_axis",
        *_RUN,
        *_INTEGERS,
        *_FLOATS,
        *_RAGGED,
        *_RAGGED.values(),
    }
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
    tensors = {
        name: TensorStats(name=name, **{key: column[i] for key, column in columns.items()})
        for i, name in enumerate(names)
    }
    return Profile(
        model_hash=str(arrays["model_hash"]),
        samples=int(arrays["samples"]),
        tensors=tensors,
        **{key: float(arrays[key]) for key in _RUN},
    )
