"""All tests: nothing is read from, or left in, the statistics cache of whoever runs them; and which tier a test is of.

The default tier takes less than four minutes on two cores. `@pytest.mark.sliced(n)` marks a full product of parameters:
the default tier runs one in n of it, chosen so that every value of each parameter is among them where n is the number
of values of another one; the rest is the tier `grid`. Runs of the program (tests/e2e, and whatever takes the fixture
`program`) are the tier `program`, but for those marked `smoke`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["QUANTPIPE_CACHE"] = "none"

PROGRAM = Path(__file__).parent / "e2e"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test its tier, before `-m` chooses among them."""
    for item in items:
        if item.get_closest_marker("slow"):
            continue
        runs = PROGRAM in item.path.parents or "program" in getattr(item, "fixturenames", ())
        if runs and not item.get_closest_marker("smoke"):
            item.add_marker(pytest.mark.program)
        sliced = item.get_closest_marker("sliced")
        if sliced and _place(item) % sliced.args[0]:
            item.add_marker(pytest.mark.grid)


def _place(item: pytest.Item) -> int:
    """Where the test stands in its product: the sum of its parameters' places, so that a slice of n runs through all
    values of each parameter."""
    callspec = getattr(item, "callspec", None)
    return sum(callspec.indices.values()) if callspec is not None else 0
