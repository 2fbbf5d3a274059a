"""profile.yaml, to read, compare and calibrate from: in Glow's shape, with every number exact."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from quantpipe.calibrate.histogram import borders, rebin
from quantpipe.calibrate.profile import RUN, VERSION
from quantpipe.errors import ArtifactError
from quantpipe.types import Profile, TensorStats

MOST_BINS = 1 << 20
DAMAGED = (yaml.YAMLError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What other entries than those that were written make the reading raise."""
COARSE_BINS = 32
"""Bins of the histogram that Glow's tools read: enough to see a distribution, too few to calibrate from."""


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Floats positionally, with as many decimals as it takes to read back the same number."""


def _plain_float(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:float", np.format_float_positional(value, trim="0"))


_Dumper.add_representer(float, _plain_float)


def profile_yaml(profile: Profile) -> str:
    """Three YAML documents, as Glow's `-dump-profile` writes them: version, model hash, list of tensors.

    Glow's keys per tensor (`NodeOutputName`, `Min`, `Max`, `Histogram` over [Min, Max]) and ours: `Mean`, `Variance`,
    `BatchMin`, `BatchMax`, `Count`, `NonFinite`, the extremes of the last batches (`BatchMins`, `BatchMaxs`), and the
    histogram that estimators use: `Bins` bins over [-Limit, Limit], of which `Counts` are those from `FirstBin` on.
    What is unknown is left out, as are statistics per channel (stats.npz has those).
    Source: pytorch/glow lib/Quantization/Serialization.cpp.
    """
    run = {"Samples": profile.samples, **{title(key): float(getattr(profile, key)) for key in RUN}}
    loaded = {"Loaded": dict(profile.loaded)} if profile.loaded else {}
    documents: list[Any] = [
        {"QuantpipeProfileVersion": VERSION},
        {"ModelHash": profile.model_hash, **run, **loaded},
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


def title(key: str) -> str:
    """Return a key in the spelling of Glow's files: `scale_factor` -> `ScaleFactor`."""
    return "".join(part.capitalize() for part in key.split("_"))


_SCALARS = {"Mean": "mean", "Variance": "variance", "BatchMin": "batch_minimum", "BatchMax": "batch_maximum"}


def _entry(stats: TensorStats) -> dict[str, Any]:
    entry: dict[str, Any] = {"NodeOutputName": stats.name, "Min": float(stats.minimum), "Max": float(stats.maximum)}
    scalars = {key: float(getattr(stats, name)) for key, name in _SCALARS.items()}
    entry |= {key: value for key, value in scalars.items() if not math.isnan(value)}
    entry |= {"Count": int(stats.count), "NonFinite": int(stats.nonfinite), "Limit": float(stats.limit)}
    if len(stats.batch_extremes):
        entry |= {"BatchMins": stats.batch_extremes[:, 0].tolist(), "BatchMaxs": stats.batch_extremes[:, 1].tolist()}
    if len(stats.histogram):
        filled = np.flatnonzero(stats.histogram)
        first, last = (int(filled[0]), int(filled[-1])) if len(filled) else (0, 0)
        entry |= {
            "Histogram": coarse_histogram(stats).tolist(),
            "Bins": len(stats.histogram),
            "FirstBin": first,
            "Counts": " ".join(str(count) for count in stats.histogram[first : last + 1].tolist()),
        }
    return entry


def profile_from_yaml(text: str, where: str | None = None) -> Profile:
    """The profile that `profile_yaml` wrote, number for number. `where` names the file in errors.

    Raises ArtifactError for another version, and for entries that are missing or mean nothing.
    """
    try:
        version, head, entries = yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        found = version["QuantpipeProfileVersion"]
        if found != VERSION:
            raise ArtifactError(f"the profile has version {found}; legal: {VERSION}", stage="calibrate", where=where)
        tensors = {str(entry["NodeOutputName"]): _stats(entry) for entry in entries or []}
        return Profile(
            model_hash=str(head["ModelHash"]),
            samples=int(head["Samples"]),
            tensors=tensors,
            loaded=head.get("Loaded", {}),
            **{key: float(head[title(key)]) for key in RUN},
        )
    except DAMAGED as error:
        raise ArtifactError(
            f"the profile is damaged ({type(error).__name__}: {' '.join(str(error).split())[:200]})",
            stage="calibrate",
            where=where,
        ) from error


def _stats(entry: dict[str, Any]) -> TensorStats:
    bins = int(entry.get("Bins", 0))
    if bins > MOST_BINS:
        raise ValueError(f"the histogram of {entry['NodeOutputName']} has {bins} bins, more than {MOST_BINS}")
    histogram = np.zeros(bins, dtype=np.int64)
    if len(histogram):
        counts = [int(count) for count in str(entry["Counts"]).split()]
        first = int(entry["FirstBin"])
        if not 0 <= first <= len(histogram) - len(counts):
            raise ValueError(f"the histogram of {entry['NodeOutputName']} is longer than its bins")
        histogram[first : first + len(counts)] = counts
    lows, highs = entry.get("BatchMins", []), entry.get("BatchMaxs", [])
    scalars: dict[str, Any] = {name: float(entry.get(key, math.nan)) for key, name in _SCALARS.items()}
    low, high, limit = float(entry["Min"]), float(entry["Max"]), float(entry["Limit"])
    if not (low <= high and max(abs(low), abs(high)) < math.inf and 0.0 < limit < math.inf):
        raise ValueError(f"Min {low}, Max {high}, Limit {limit} of {entry['NodeOutputName']} are no range")
    return TensorStats(
        name=str(entry["NodeOutputName"]),
        count=int(entry["Count"]),
        minimum=low,
        maximum=high,
        limit=limit,
        histogram=histogram,
        nonfinite=int(entry["NonFinite"]),
        batch_extremes=np.asarray(list(zip(lows, highs, strict=True)), dtype=np.float64).reshape(-1, 2),
        **scalars,
    )


def coarse_histogram(stats: TensorStats, bins: int = COARSE_BINS) -> NDArray[np.int64]:
    """Integer counts `[bins]` over [minimum, maximum]; a constant tensor has a single bin."""
    if stats.minimum >= stats.maximum:
        return np.asarray([stats.histogram.sum()], dtype=np.int64)
    target = np.linspace(stats.minimum, stats.maximum, bins + 1)
    return rebin(stats.histogram, borders(stats.limit, len(stats.histogram)), target)
