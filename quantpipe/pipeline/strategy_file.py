"""The strategy file: what was searched, keyed by names, so that it can be read, compared, edited and replayed.

Format 1.0. `bits` by edge ("producer->consumer:port"). `thresholds` by tensor: a number T for [-T, T], {"low", "high"}
for other ranges; for weights with scales per channel a list with one such entry per output channel. `structure` by
choice: differences of its topology from the default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from quantpipe.annotate.variants import Topologies
from quantpipe.errors import ArtifactError, ConfigError, nearest
from quantpipe.option_checks import is_integer, is_number
from quantpipe.pipeline.typed_json import misfit
from quantpipe.types import (
    HardwareSpec,
    Range,
    RecoveryRecord,
    RectifiedRow,
    ResultsPart,
    Schema,
    SchemaPart,
    SearchReport,
    Strategy,
    StrategyFile,
    Structure,
    Topology,
    WeightSite,
)

VERSION: Final = "1.0"
MOST = float(np.finfo(np.float32).max) / 2**16
"""Of a range, so that a scale and all that is made of it stay within float32."""


def strategy_payload(
    model_hash: str, spec: HardwareSpec, schema: Schema, topology: Topology, *, strategy: Strategy, results: ResultsPart
) -> StrategyFile:
    """Return the content of a strategy file as plain data."""
    bits = {e: strategy.bits[g.key] for g in topology.groups for e in g.edges}
    bits |= {e: strategy.bits[w.tensor] for w in topology.stored_constants for e in w.edges}
    thresholds: dict[str, Any] = {g.key: _range(strategy.ranges[g.key]) for g in topology.groups}
    thresholds |= {w.tensor: _weight(strategy.weights[w.tensor], w.axis is not None) for w in topology.weights}
    return {
        "version": VERSION,
        "strategy": {
            "model_hash": model_hash,
            "hardware": spec.name,
            "schema": cast("SchemaPart", asdict(schema)),
            "topology": {"node_conds": dict(topology.node_conds), "edge_conds": dict(topology.edge_conds)},
            "structure": dict(strategy.structure.decided),
            "bits": bits,
            "thresholds": thresholds,
        },
        "results": results,
    }


def read_strategy(
    payload: Mapping[str, Any],
    where: str,
    model_hash: str,
    spec: HardwareSpec,
    *,
    schema: Schema,
    variants: Topologies,
    most: float = MOST,
) -> Strategy:
    """Return the strategy of a file, checked against the model and hardware it is to be used on.

    `most` is the largest end of an activation's range. Raises ArtifactError that names the mismatch: another model,
    hardware, schema, structure or topology, missing or unknown names.
    """
    if payload.get("version") != VERSION or not isinstance(payload.get("strategy"), Mapping):
        raise ArtifactError(f"this is no strategy file of version {VERSION}", stage="strategy", where=where)
    found = payload["strategy"]
    for section in ("topology", "bits", "thresholds"):
        _mapping(found, section, where)
    _mapping(found["topology"], "node_conds", where)
    for name, here in (("model_hash", model_hash), ("hardware", spec.name), ("schema", asdict(schema))):
        if found.get(name) != here:
            raise ArtifactError(
                f"it belongs to another {name.replace('_hash', '')}: {name} is {_short(found.get(name))} in the file "
                f"and {_short(here)} here",
                stage="strategy",
                where=where,
            )
    structure = _structure(found.get("structure", {}), where)
    try:
        topology = variants.at(structure)
    except ConfigError as error:
        raise ArtifactError(f"its structure is another one: {error}", stage="strategy", where=where) from error
    _same_nodes(found["topology"]["node_conds"], topology, where)
    bits = _bits(found["bits"], topology, where)
    thresholds = found["thresholds"]
    ranges = {g.key: _read_range(_entry(thresholds, g.key, where), g.key, where, most) for g in topology.groups}
    weights = {
        w.tensor: _read_weight(_entry(thresholds, w.tensor, where), w, variants, where) for w in topology.weights
    }
    _refuse_others(thresholds, [*ranges, *weights], "thresholds", where)
    edges = [e for site in (*topology.groups, *topology.stored_constants) for e in site.edges]
    _refuse_others(found["bits"], edges, "bits", where)
    return Strategy(bits, ranges, weights, structure)


def results_of(payload: Mapping[str, Any], where: str) -> tuple[SearchReport, list[RectifiedRow], RecoveryRecord]:
    """Return (search, rectified, recover): the file's record of how the strategy was found.

    Raises ArtifactError for other types.
    """
    results = payload.get("results", {})
    found = results if isinstance(results, Mapping) else {"search": results}
    search, rectified, recovery = (found.get(k, d) for k, d in (("search", {}), ("rectified", []), ("recover", {})))
    if not isinstance(search, Mapping) or not isinstance(rectified, list) or not isinstance(recovery, Mapping):
        raise ArtifactError(
            "its results are damaged; legal are the mappings search and recover and the list rectified",
            stage="strategy",
            where=where,
        )
    for part, value, hint in (("search", search, SearchReport), ("rectified", rectified, list[RectifiedRow]),
                              ("recover", recovery, RecoveryRecord)):  # fmt: skip
        wrong = misfit(value, hint, f"results.{part}")
        if wrong is not None:
            what = f"its record of the search is damaged: {wrong}, which is of another type"
            raise ArtifactError(what, stage="strategy", where=where)
    # What another version wrote may lack keys: whoever reads the search of a replay asks with `get`.
    return cast("SearchReport", search), rectified, cast("RecoveryRecord", recovery)


def _mapping(found: Mapping[str, Any], name: str, where: str) -> None:
    if not isinstance(found.get(name), Mapping):
        raise ArtifactError(
            f"its {name} is {_short(found.get(name))}; legal is a mapping by name", stage="strategy", where=where
        )


def _refuse_others(found: Mapping[str, Any], known: Sequence[str], section: str, where: str) -> None:
    """Raise ArtifactError for unknown names: their author expected an effect."""
    other = sorted(set(found) - set(known))
    if other:
        raise ArtifactError(
            f"its {section} name {other[0]!r}, which this run does not hold in integers{nearest(other[0], known)}",
            stage="strategy",
            where=where,
        )


def _structure(found: Any, where: str) -> Structure:
    if not isinstance(found, Mapping) or not all(isinstance(v, str) for v in found.values()):
        raise ArtifactError(
            f"its structure is {found!r}; legal is a mapping of choices to words", stage="strategy", where=where
        )
    return Structure(tuple(found.items()))


def _bits(found: Mapping[str, int], topology: Topology, where: str) -> dict[str, int]:
    bits: dict[str, int] = {}
    sites = [(g.tensors, g.edges, g.widest) for g in topology.groups]
    sites += [((w.tensor,), w.edges, w.widest) for w in topology.weights]
    sites += [((t.tensor,), t.edges, max(t.bits)) for t in topology.tables]
    for tensors, edges, most in sites:
        given = [_entry(found, e, where) for e in edges]
        values = {v for v in given if is_integer(v, 2, most)}
        if len(values) != 1 or any(v != given[0] for v in given):
            raise ArtifactError(
                f"the edges {', '.join(edges[:3])} share one decision; found bits "
                f"{_short(sorted(set(map(str, given))))}, legal is one number from 2 to {most}",
                stage="strategy",
                where=where,
            )
        bits |= dict.fromkeys(tensors, values.pop())
    return bits


def _same_nodes(found: Mapping[str, bool], topology: Topology, where: str) -> None:
    differing = [n for n in topology.node_conds if found.get(n) != topology.node_conds[n]]
    if differing:
        raise ArtifactError(
            f"its topology is another one: {differing[0]} runs "
            f"{'in integers' if found.get(differing[0]) else 'in float'} in the file, not so here "
            f"({len(differing)} nodes differ); use the annotate settings it was made with",
            stage="strategy",
            where=where,
        )


def _entry(found: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in found:
        raise ArtifactError(f"it has no entry for {name}{nearest(name, found)}", stage="strategy", where=where)
    return found[name]


def _range(r: Range) -> Any:
    return r.high if r.low == -r.high else {"low": r.low, "high": r.high}


def _weight(limits: NDArray[np.float64], per_channel: bool) -> Any:
    """Return a file's entry for thresholds `()`, `[C]` or ranges `[C, 2]`."""
    found = np.asarray(limits, np.float64)
    if found.ndim < 2:
        return found.tolist()
    rows = [{"low": low, "high": high} for low, high in found.tolist()]
    return rows if per_channel else rows[0]


def _read_weight(value: Any, site: WeightSite, variants: Topologies, where: str) -> NDArray[np.float64]:
    """Return the inverse: `()`, `[C]` or `[C, 2]`."""
    name, per_channel = site.tensor, site.axis is not None
    channels = variants.graph.shapes[name][site.axis] if site.axis is not None else None
    if (len(value) if isinstance(value, list) else None) != channels:
        wanted = f"a list of {channels}, one for each output channel" if per_channel else "one entry for the tensor"
        raise ArtifactError(
            f"the threshold of {name} is {_short(value)}; legal is {wanted}", stage="strategy", where=where
        )
    rows = value if isinstance(value, list) else [value]
    ranges = [_read_range(row, name, where) for row in rows]
    if any(isinstance(row, Mapping) for row in rows):
        return np.asarray([(r.low, r.high) for r in ranges], np.float64)
    limits = [r.high for r in ranges]
    return np.asarray(limits if per_channel else limits[0], np.float64)


def _read_range(value: Any, name: str, where: str, most: float = MOST) -> Range:
    """Return a number T for [-T, T], or low and high with low <= 0 <= high: every range holds zero."""
    low = high = value
    if isinstance(value, Mapping) and set(value) == {"low", "high"}:
        low, high = value["low"], value["high"]
    elif is_number(value):
        low = -value
    if is_number(low) and is_number(high) and -most <= low <= 0 <= high <= most:
        return Range(float(low), float(high))
    raise ArtifactError(
        f"the threshold of {name} is {_short(value)}; legal is T for [-T, T] (T from 0 on), or low and high with zero "
        "between them",
        stage="strategy",
        where=where,
    )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:39] + "…"
