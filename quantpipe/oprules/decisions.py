"""Ops of float graphs whose result does not follow their input continuously."""

from __future__ import annotations

JUMPS = frozenset({"Round", "Floor", "Ceil", "Sign", "Mod", "If", "Loop", "Scan"})
"""The result can jump where the input moves by a rounding error. (So can any integer or truth value that an op makes
of real numbers; those are told by their type.)"""
