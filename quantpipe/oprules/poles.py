"""Functions that are infinite where an input is 0, and those that pass a 0 on to them."""

from __future__ import annotations

from collections.abc import Mapping

POLES: Mapping[str, int] = {"Log": 0, "Reciprocal": 0, "Div": 1}
"""Op -> the input that must not be 0."""

KEEPS_ZERO = frozenset({"Sqrt", "Abs"})
"""Ops that make 0 of 0."""
