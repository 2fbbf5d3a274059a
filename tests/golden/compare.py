"""Two contents of golden files side by side: what differs, by its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isclose
from typing import Any

RELATIVE = 1e-6
"""Of real numbers that follow from float sums, whose order is the processor's own."""

ROUNDED = 1
"""By how much an integer may differ that was rounded from such a number."""

ROUNDED_NAMES = frozenset(
    {"accumulator_bound", "bias", "channel_range", "initializers", "q31", "range", "table", "values", "zero_point"}
)
"""Where such integers stand. All other integers (bits, ports, shifts, axes, counts) have to be equal."""

FEW = 0.02
"""What share of the integers of one array may differ by more than `RELATIVE`."""

STEPS = 1e-3
"""By how much an `offset` may differ, which is a difference of numbers in integer steps, up to 255 each."""


def differences(golden: Any, found: Any, exact: bool, place: tuple[str, ...] = ()) -> Iterator[str]:
    """Each difference as one line: place, golden value, value now."""
    where = " / ".join(place) or "file"
    if isinstance(golden, Mapping) and isinstance(found, Mapping):
        for key in sorted(set(golden) | set(found)):
            if key not in found:
                yield f"{where} / {key}: gone; was {_short(golden[key])}"
            elif key not in golden:
                yield f"{where} / {key}: new; is {_short(found[key])}"
            else:
                yield from differences(golden[key], found[key], exact, (*place, str(key)))
    elif isinstance(golden, list) and isinstance(found, list) and len(golden) == len(found):
        yield from _in_lists(golden, found, exact, place)
    elif not _same(golden, found, exact, place):
        yield f"{where}: was {_short(golden)}, is {_short(found)}"


def _in_lists(golden: list[Any], found: list[Any], exact: bool, place: tuple[str, ...]) -> Iterator[str]:
    numbers = [(a, b) for a, b in zip(golden, found, strict=True) if _is_int(a) and _is_int(b)]
    moved = sum(not isclose(a, b, rel_tol=RELATIVE, abs_tol=0.0) for a, b in numbers)
    if not exact and moved > max(1, FEW * len(numbers)):
        yield f"{' / '.join(place)}: {moved} of {len(numbers)} integers differ: {_short(golden)}, now {_short(found)}"
        return
    for index, (a, b) in enumerate(zip(golden, found, strict=True)):
        yield from differences(a, b, exact, (*place, f"[{index}]"))


def _same(golden: Any, found: Any, exact: bool, place: tuple[str, ...]) -> bool:
    if exact or type(golden) is not type(found):
        return bool(golden == found and type(golden) is type(found))
    if isinstance(golden, float):
        return isclose(golden, found, rel_tol=RELATIVE, abs_tol=STEPS if place[-1] == "offset" else 0.0)
    if _is_int(golden) and ROUNDED_NAMES & set(place):
        return abs(golden - found) <= max(ROUNDED, RELATIVE * abs(golden))
    return bool(golden == found)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else text[:159] + "…"
