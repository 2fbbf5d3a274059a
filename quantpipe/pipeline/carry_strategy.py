"""Convert a strategy of another device to this one as far as its numbers fit, with a list of mismatches.

Ranges are real values and bits are bits, so most of a strategy means the same on every device. Scales, zero points and
integers follow from them by the rules of the new one. The result is the content of a strategy file again, and is
checked like one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from quantpipe.annotate.variants import Topologies
from quantpipe.errors import ArtifactError, ConfigError, some_of
from quantpipe.types import HardwareSpec, ScaleGroup, Schema, Structure, Symmetry, TableSite, Topology, WeightSite


def is_foreign(payload: Mapping[str, Any], spec: HardwareSpec, schema: Schema) -> bool:
    """Return whether a strategy file was made for another device or schema."""
    found = payload.get("strategy")
    if not isinstance(found, Mapping) or not isinstance(found.get("hardware"), str):
        return False
    return found["hardware"] != spec.name or found.get("schema") != asdict(schema)


def carried(
    payload: Mapping[str, Any], where: str, spec: HardwareSpec, *, schema: Schema, variants: Topologies
) -> tuple[dict[str, Any], list[str]]:
    """Return a strategy file's content for another device, and a sentence for each number that changed.

    Raises ArtifactError where the device stores tensors that the file does not contain.
    """
    found, notes = payload["strategy"], list[str]()
    structure = dict(found.get("structure") or {})
    try:
        topology = variants.at(Structure(tuple(structure.items())))
    except ConfigError as error:
        notes.append(f"its structure is left out: {error}")
        structure, topology = {}, variants.base
    given, ranges = _part(found, "bits", where), _part(found, "thresholds", where)
    bits: dict[str, int] = {}
    thresholds: dict[str, Any] = {}
    for group in topology.groups:
        found_bits = _bits(group, group.key, given, bits, notes=notes)
        _range(group, ranges, thresholds, found_bits)
    for site in topology.weights:
        _bits(site, site.tensor, given, bits, notes=notes)
        if site.tensor in ranges:
            channels = None if site.axis is None else variants.graph.shapes[site.tensor][site.axis]
            thresholds[site.tensor] = _limits(site.tensor, ranges[site.tensor], channels, schema, notes=notes)
    for table in topology.tables:
        _table_bits(table, given, bits, notes)
    _refuse_missing(topology, thresholds, spec, where)
    notes += _real_nodes(found, topology)
    made = {
        **found,
        "hardware": spec.name,
        "schema": asdict(schema),
        "topology": {"node_conds": dict(topology.node_conds), "edge_conds": dict(topology.edge_conds)},
        "structure": structure,
        "bits": bits,
        "thresholds": thresholds,
    }
    return {**payload, "strategy": made}, notes


def _part(found: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    part = found.get(name)
    if not isinstance(part, Mapping):
        raise ArtifactError(f"its {name} is no mapping by name", stage="strategy", where=where)
    return part


def _bits(
    site: ScaleGroup | WeightSite, name: str, given: Mapping[str, Any], made: dict[str, int], *, notes: list[str]
) -> int:
    """Set a tensor's bits, and return them: the highest of its edges in the file, within the device's limits."""
    known = [b for e in site.edges if isinstance(b := given.get(e), int) and not isinstance(b, bool)]
    wanted = max(known, default=site.max_bits)
    found = max(min(wanted, site.widest), min(site.min_bits, site.max_bits))
    if found != wanted:
        notes.append(f"{name} has {found} bits in place of {wanted}")
    made |= dict.fromkeys(site.edges, found)
    return found


def _table_bits(site: TableSite, given: Mapping[str, Any], made: dict[str, int], notes: list[str]) -> None:
    """Return the bits of a table: the file's if the device reads that width, else the device's first."""
    known = [b for e in site.edges if isinstance(b := given.get(e), int) and not isinstance(b, bool)]
    wanted = max(known, default=site.bits[0])
    found = wanted if wanted in site.bits else site.bits[0]
    if found != wanted:
        notes.append(f"{site.tensor} has {found} bits in place of {wanted}")
    made |= dict.fromkeys(site.edges, found)


def _range(group: ScaleGroup, ranges: Mapping[str, Any], made: dict[str, Any], bits: int) -> None:
    """Set a group's range: the hull of its tensors' ranges in the file."""
    if (fixed := group.fixed_at(bits)) is not None:
        made[group.key] = {"low": fixed.low, "high": fixed.high}
        return
    known = [_ends(ranges[t]) for t in group.tensors if t in ranges and not isinstance(ranges[t], list)]
    if known:
        made[group.key] = {"low": min(low for low, _ in known), "high": max(high for _, high in known)}


def _ends(value: Any) -> tuple[Any, Any]:
    return (value.get("low"), value.get("high")) if isinstance(value, Mapping) else (-value, value)


def _limits(tensor: str, value: Any, channels: int | None, schema: Schema, *, notes: list[str]) -> Any:
    """Return the thresholds of a weight, in the form that the device's scales have."""
    rows = [_ends(row) for row in (value if isinstance(value, list) else [value])]
    if channels is None and len(rows) > 1:
        notes.append(f"{tensor} has one scale in place of {len(rows)}, for its largest channel")
        rows = [(min(low for low, _ in rows), max(high for _, high in rows))]
    if channels is not None and len(rows) == 1:
        rows = rows * channels
    affine = schema.weights.symmetry is Symmetry.ASYMMETRIC
    if not affine and any(low != -high for low, high in rows):
        notes.append(f"{tensor} has symmetric ranges in place of its own")
    found = [{"low": low, "high": high} if affine else max(-low, high) for low, high in rows]
    return found if channels is not None else found[0]


def _refuse_missing(topology: Topology, made: Mapping[str, Any], spec: HardwareSpec, where: str) -> None:
    missing = [k for k in (*(g.key for g in topology.groups), *(w.tensor for w in topology.weights)) if k not in made]
    if missing:
        raise ArtifactError(
            f"it has no entry for {some_of(missing)}, which {spec.name} holds in integers; legal is a strategy of a "
            "device that also does so, or command=run, which calibrates them",
            stage="strategy",
            where=where,
        )


def _real_nodes(found: Mapping[str, Any], topology: Topology) -> list[str]:
    """Return the nodes that run in integers in the file and in float here, and vice versa."""
    before = (found.get("topology") or {}).get("node_conds") or {}
    lost = [n for n, integer in topology.node_conds.items() if before.get(n) and not integer]
    more = [n for n, integer in topology.node_conds.items() if before.get(n) is False and integer]
    return [
        *([f"{some_of(lost)} run in float, and in integers there"] if lost else []),
        *([f"{some_of(more)} run in integers, and in float there"] if more else []),
    ]
