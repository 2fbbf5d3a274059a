"""Disjoint sets of names in a fixed order, whatever the order of the unions; the sets themselves are scipy's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scipy.cluster.hierarchy import DisjointSet


def disjoint(members: Iterable[str] = ()) -> DisjointSet:
    """Return sets of one member each."""
    from scipy.cluster.hierarchy import DisjointSet  # here, as it takes half a second that not every command needs

    return DisjointSet(members)


def in_order(sets: DisjointSet) -> list[tuple[str, ...]]:
    """Return all sets, members and sets in order of addition."""
    found: dict[str, list[str]] = {}
    for member in sets:
        found.setdefault(sets[member], []).append(member)
    return [tuple(members) for members in found.values()]
