"""Disjoint sets of names in a fixed order, whatever the order of the unions.

scipy has such sets, too; to import them takes half a second, a tenth of the way to a run's first stage.
"""

from __future__ import annotations

from collections.abc import Iterable


class DisjointSets:
    """Names in sets; `sets[name]` is the name that represents its set: a member of the larger set after a union."""

    def __init__(self, members: Iterable[str]) -> None:
        self._place = {member: place for place, member in enumerate(dict.fromkeys(members))}
        self._parent = {member: member for member in self._place}
        self._size = dict.fromkeys(self._place, 1)

    def __getitem__(self, member: str) -> str:
        while (parent := self._parent[member]) != member:
            self._parent[member] = self._parent[parent]
            member = parent
        return member

    def merge(self, one: str, other: str) -> None:
        """Unite the sets of two members; of sets of one size, the earlier representative stays."""
        large, small = sorted((self[one], self[other]), key=lambda root: (-self._size[root], self._place[root]))
        if large != small:
            self._parent[small] = large
            self._size[large] += self._size[small]

    def in_order(self) -> list[tuple[str, ...]]:
        """Return all sets, members and sets in order of addition."""
        found: dict[str, list[str]] = {}
        for member in self._place:
            found.setdefault(self[member], []).append(member)
        return [tuple(members) for members in found.values()]
