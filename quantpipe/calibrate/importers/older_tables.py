"""Tables of two older tools, told apart by their content.

Glow's profile (`-dump-profile`) is three YAML documents: version, graph hash, list of tensors with histograms. Source:
pytorch/glow lib/Quantization/Serialization.cpp. TensorRT's calibration cache is a header line, then `NAME: HEX`, the
big-endian float32 scale of each tensor. Source: NVIDIA's documentation of IInt8Calibrator, and files of its samples.
"""

from __future__ import annotations

import dataclasses
import math
import re
import struct
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from quantpipe.calibrate.histogram import BINS, SMALLEST_LIMIT, borders, rebin
from quantpipe.calibrate.importers.entries import NO_HASH, Entries, extremes
from quantpipe.errors import ArtifactError
from quantpipe.types import TensorStats

_HEADER = re.compile(r"TRT-\d+-\w+\s*$")
_LINE = re.compile(r"(?P<name>.+): (?P<scale>[0-9a-fA-F]{8})")
STEPS = 127.0
ENOUGH = 512
"""Bins below which a note says that kl, mse and percentile are as coarse (Glow's own default is 10)."""


def is_glow(text: str) -> bool:
    """Return whether a text is a profile of Glow."""
    return "GlowToolsVersion" in text or "GraphPreLowerHash" in text


def read_glow(text: str, where: str) -> Entries:
    """Return the entries of a Glow profile, whose names are `NODE:RESULT`.

    The hash belongs to Glow's own graph, which nothing here can compute.
    """
    try:
        documents = list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
        (entries,) = (d for d in documents if isinstance(d, list))
        tensors = {str(entry["NodeOutputName"]): _glow_stats(entry, where) for entry in entries}
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"it begins like a profile of Glow and is damaged ({' '.join(str(error).split())[:200]}); a whole one has "
            "three YAML documents: GlowToolsVersion, GraphPreLowerHash, and a list with NodeOutputName, Min, Max, "
            "Histogram",
            stage="calibrate",
            where=where,
        ) from error
    notes = ["the file carries no hash of this model (Glow hashes its own graph), so only the names show that it fits"]
    least = min((len(entry.get("Histogram") or []) for entry in entries), default=ENOUGH)
    if 0 < least < ENOUGH:
        notes.append(f"its histograms have {least} bins, and thresholds by kl, mse or percentile are as coarse as that")
    return Entries("glow", tensors, glow_names=True, notes=tuple(notes))


def _glow_stats(entry: dict[str, Any], where: str) -> TensorStats:
    """Return counts over [Min, Max], perhaps fractions, on our grid: equal bins over [-limit, limit]."""
    found = extremes(str(entry["NodeOutputName"]), float(entry["Min"]), float(entry["Max"]), where)
    counts: NDArray[Any] = np.asarray(entry.get("Histogram") or [], dtype=np.float64)
    if not len(counts) or not counts.sum() > 0.0:
        return found
    if not (np.isfinite(counts).all() and (counts >= 0.0).all()):
        raise ValueError(f"the histogram of {found.name} has counts that are no numbers from 0 on")
    limit = max(found.limit, SMALLEST_LIMIT)
    ends = np.linspace(found.minimum, found.maximum, len(counts) + 1)
    if found.minimum == found.maximum:
        counts, ends = counts.sum(keepdims=True), np.asarray([found.minimum, found.minimum])
    point = ends[0] == ends[-1]
    histogram = _point(found.minimum, counts, limit) if point else rebin(counts, ends, borders(limit, BINS))
    middles = (ends[1:] + ends[:-1]) / 2
    mean = float(counts @ middles / counts.sum())
    return dataclasses.replace(
        found,
        count=int(histogram.sum()),
        mean=mean,
        variance=float(counts @ ((middles - mean) ** 2 + np.diff(ends) ** 2 / 12) / counts.sum()),
        limit=limit,
        histogram=histogram,
    )


def _point(value: float, counts: NDArray[Any], limit: float) -> NDArray[np.int64]:
    """Return all counts in the one bin that holds the value."""
    histogram = np.zeros(BINS, dtype=np.int64)
    index = int(np.floor(value / limit * (BINS // 2))) + BINS // 2
    histogram[min(index, BINS - 1)] = int(counts.sum())
    return histogram


def is_tensorrt(text: str) -> bool:
    """Return whether a text is a calibration cache of TensorRT."""
    return _HEADER.match(text.partition("\n")[0]) is not None


def read_tensorrt(text: str, where: str) -> Entries:
    """Return T = 127·scale per tensor.

    The product is exact in float64, and so is T/127 in float32 again.
    """
    tensors = {}
    for number, line in enumerate(text.splitlines()[1:], start=2):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.strip())
        scale = struct.unpack(">f", bytes.fromhex(match["scale"]))[0] if match else math.nan
        if match is None or not (0.0 <= scale < math.inf):
            raise ArtifactError(
                f"line {number} of this TensorRT cache is {line.strip()[:80]!r}; legal is NAME: followed by eight hex "
                "digits of a float32 scale that is finite and not negative",
                stage="calibrate",
                where=where,
            )
        threshold = STEPS * scale
        tensors[match["name"]] = extremes(match["name"], -threshold, threshold, where)
    return Entries("tensorrt", tensors, unsigned=True, notes=(NO_HASH,))
