"""Names of the copies of tensors for single readers (`annotate.choices` with `edges`)."""

from __future__ import annotations

EDGES = "edges"
"""The kind in `annotate.choices` that asks for copies."""

_MARK = "/edge"


def copy_name(tensor: str, reader: str) -> str:
    """Return the name of the copy of a tensor for one reader: of the node and of its result."""
    return f"{tensor}/{reader}{_MARK}"


def is_copy(node: str) -> bool:
    """Return whether a node is such a copy, by its name."""
    return node.endswith(_MARK)
