"""All tests: nothing is read from, or left in, the statistics cache of whoever runs them; and which tier a test is of.

The default tier takes about four minutes on two cores. `@pytest.mark.sliced(n)` marks a full product of parameters:
the default tier runs one in n of it, chosen so that every value of each parameter is among them where n is the number
of values of another one; the rest is the tier `grid`. Runs of the program (tests/e2e, and whatever takes the fixture
`program`) are the tier `program`, but for those marked `smoke`; so are other tests that take some seconds each.

Hypothesis draws new examples each time on a developer's machine, few of them; with `CI=true` it draws the same ones
each time, more of them, so that a failure there is a change's, and comes again at home with `CI=true`.
"""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

os.environ["QUANTPIPE_CACHE"] = "none"
os.environ["QUANTPIPE_FIGURES"] = "none"  # a second per run; tests/report draws them

hypothesis.settings.register_profile("ci", max_examples=100, derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("developer", max_examples=40, derandomize=False, deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") == "true" else "developer")


def _own_cores() -> None:
    """Give a worker of pytest-xdist cores of its own: threads of one that wait for work keep the other from it."""
    worker, count = os.environ.get("PYTEST_XDIST_WORKER", ""), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    if worker and hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[int(worker.removeprefix("gw")) :: int(count)] or cores)


_own_cores()


def pytest_report_header() -> str:
    """Name the kind of processor that the tests run on."""
    from quantpipe.graph.execute import pairs_saturate

    kind = "saturate (x86 without VNNI)" if pairs_saturate() else "are exact (VNNI, or no x86)"
    return f"processor: pairs of uint8 x int8 products {kind}"


PROGRAM = Path(__file__).parent / "e2e"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test its tier, before `-m` chooses among them."""
    for item in items:
        if item.get_closest_marker("slow"):  # of no other tier, though one of its function's parameters is
            item.own_markers = [mark for mark in item.own_markers if mark.name not in ("program", "grid")]
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
