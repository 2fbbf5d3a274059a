"""Match a profile file to a model: tensors found by name, a few derived from others, the rest rejected by name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from quantpipe.calibrate.importers.derive import never_negative, with_derived
from quantpipe.calibrate.importers.entries import Entries
from quantpipe.calibrate.importers.read import read_entries
from quantpipe.errors import ArtifactError, some_of
from quantpipe.graph.view import Graph
from quantpipe.types import Profile, TensorStats

_SHOWN = 8


def load_profile(path: Path, graph: Graph, measured: Sequence[str]) -> Profile:
    """Return the statistics of the `measured` tensors of this model, from any of the formats of `read_entries`.

    `Profile.loaded` records file, format, derived and unknown names, and warnings. Raises ArtifactError for the profile
    of another model (our own files name it), and for tensors that the file neither has nor lets derive.
    """
    entries = read_entries(path)
    if entries.profile is not None and entries.profile.model_hash != graph.model_hash:
        raise ArtifactError(
            f"it was measured on the model {entries.profile.model_hash[:23]}…, and this one is "
            f"{graph.model_hash[:23]}…; statistics of another model are not valid for this one. Give the profile of "
            "this model, or leave out profile.load to calibrate it",
            stage="profile",
            where=str(path),
        )
    named, unknown = _by_tensor(entries, graph)
    warnings = list(entries.notes)
    if entries.unsigned:
        positive = never_negative(graph) & set(named)
        named |= {t: dataclasses.replace(named[t], minimum=0.0, batch_minimum=0.0) for t in positive}
        if signed := [t for t in measured if t in named and t not in positive]:
            warnings.append(
                f"the file has thresholds without a sign: [-T, T] represents {some_of(signed, _SHOWN)}; the other "
                "tensors cannot be negative by the ops that make them"
            )
    found, made = with_derived(graph, named)
    tensors = {t: found[t] for t in measured if t in found}
    if missing := [t for t in measured if t not in tensors]:
        raise ArtifactError(
            f"it lacks statistics of {len(missing)} of the {len(measured)} tensors that are needed: "
            f"{some_of(missing, _SHOWN)}. "
            "Legal are files that name all of them, or the tensors from which they are made by clipping, moving or "
            f"joining values. The file has {len(entries.tensors)} names, such as {', '.join([*entries.tensors][:3])}",
            stage="profile",
            where=str(path),
        )
    if unknown:
        warnings.append(
            f"{len(unknown)} of its names are of no tensor of the cleaned model: {some_of(unknown, _SHOWN)}"
        )
    record: dict[str, Any] = {
        "file": str(path),
        "format": entries.format,
        "derived": {t: parents for t, parents in made.items() if t in tensors},
        "unknown": unknown,
        "warnings": warnings,
    }
    own = entries.profile or Profile(graph.model_hash, 0, {})
    return dataclasses.replace(own, tensors=tensors, loaded=record)


def _by_tensor(entries: Entries, graph: Graph) -> tuple[dict[str, TensorStats], list[str]]:
    """Return statistics by the model's own names, and the names that it does not have."""
    legal = _legal_names(graph) if entries.glow_names else {}
    known = {i.name for i in graph.inputs} | set(graph.producers) | set(graph.constant_names())
    found: dict[str, TensorStats] = {}
    unknown = []
    for name, stats in entries.tensors.items():
        tensor = name if name in known else legal.get(name)
        if tensor is None:
            unknown.append(name)
        else:
            found[tensor] = dataclasses.replace(stats, name=tensor)
    return found, unknown


def _legal_names(graph: Graph) -> Mapping[str, str]:
    """`NODE:RESULT` as Glow writes it -> tensor: by node or by tensor, as it is or with `_` for what C cannot name.

    A name that two tensors could mean is left out.
    """
    pairs: list[tuple[str, str]] = []
    for node in graph.nodes:
        for number, tensor in enumerate(node.outputs):
            pairs += [(f"{name}:{number}", tensor) for name in _spellings(node.name)]
    for tensor in [i.name for i in graph.inputs] + list(graph.producers):
        pairs += [(f"{name}:0", tensor) for name in _spellings(tensor)]
        pairs += [(name, tensor) for name in _spellings(tensor)]
    meant: dict[str, set[str]] = {}
    for name, tensor in pairs:
        meant.setdefault(name, set()).add(tensor)
    return {name: next(iter(tensors)) for name, tensors in meant.items() if len(tensors) == 1}


def _spellings(name: str) -> Iterator[str]:
    yield name
    plain = re.sub(r"[^0-9a-zA-Z_]", "_", name)
    yield plain
    if plain[:1].isdigit():
        yield f"A{plain}"
