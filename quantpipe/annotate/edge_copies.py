"""Copies of tensors for single readers, so that a search may give an edge a scale and bits of its own.

A tensor is stored once, and every reader takes it so. Where `annotate.choices` has `edges`, each further reader of a
tensor gets an Identity in front. It moves values, so it shares the scale of the tensor by default and costs no
rounding. The choice `rescale:NODE` of this Identity gives the edge a scale (and bits) of its own.
"""

from __future__ import annotations

MARK = "/edge"
"""End of the name of a copy, behind the names of the tensor and of its reader."""


def is_copy(node: str) -> bool:
    """Return whether a node is a copy for one reader, by its name."""
    return node.endswith(MARK)
