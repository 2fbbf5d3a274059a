"""Pads that follow from `auto_pad`: SAME_UPPER and SAME_LOWER give a result of size / stride, rounded up."""

from __future__ import annotations

from collections.abc import Sequence

SAME = ("SAME_UPPER", "SAME_LOWER")
"""Values of auto_pad whose pads depend on sizes."""


def same_total(size: int, stride: int, span: int) -> int:
    """Return the pads of both ends together, for a window that reaches over `span` elements."""
    return max((-(-size // stride) - 1) * stride + span - size, 0)


def leading_pads(totals: Sequence[int], mode: str) -> list[int]:
    """Return the pads at the begin of each axis; of an odd total the larger half is at the end with SAME_UPPER."""
    return [total // 2 if mode == "SAME_UPPER" else total - total // 2 for total in totals]
