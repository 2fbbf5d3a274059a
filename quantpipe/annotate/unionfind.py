"""Disjoint sets of names, deterministic whatever the order of the unions."""

from __future__ import annotations

from collections.abc import Iterable


class UnionFind:
    """Sets of strings; the representative is the member that was added first."""

    def __init__(self, members: Iterable[str] = ()) -> None:
        self._parent: dict[str, str] = {}
        self._order: dict[str, int] = {}
        for member in members:
            self.add(member)

    def add(self, member: str) -> None:
        """Add a member as a set of its own; a known member stays where it is."""
        self._parent.setdefault(member, member)
        self._order.setdefault(member, len(self._order))

    def find(self, member: str) -> str:
        """Return the representative of a member's set."""
        root = member
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[member] != root:
            self._parent[member], member = root, self._parent[member]
        return root

    def union(self, a: str, b: str) -> None:
        """Join the sets of two members."""
        first, second = sorted((self.find(a), self.find(b)), key=self._order.__getitem__)
        self._parent[second] = first

    def sets(self) -> list[tuple[str, ...]]:
        """All sets, members and sets in order of addition."""
        found: dict[str, list[str]] = {}
        for member in sorted(self._order, key=self._order.__getitem__):
            found.setdefault(self.find(member), []).append(member)
        return [tuple(members) for members in found.values()]
