"""The record of a search in a strategy file: every value of another type is one paragraph that names it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from quantpipe.errors import ArtifactError
from quantpipe.pipeline.strategy_file import results_of
from quantpipe.pipeline.typed_json import misfit
from quantpipe.types import SearchReport

SEARCH: dict[str, Any] = {
    "algorithm": "uniform", "evaluations": 1, "seconds": 0.5, "best_value": -1, "best_cost": 9.0, "feasible": True,
    "shortfall": None, "stopped": "done", "metrics": {"kl": 0.1, "top1": None}, "notes": ["x"], "pinned": {},
    "trace": [[0, -0.5]],
}  # fmt: skip


def test_each_value_of_another_type_is_named() -> None:
    results_of({"results": {"search": SEARCH}}, "here")
    results_of({"results": {"search": SEARCH | {"of_another_version": object()}}}, "here")
    found = 0
    for key in SEARCH:
        for other in ("word", 5, [3], {"a": [1]}, True):
            spoilt = copy.deepcopy(SEARCH) | {key: other}
            if misfit(spoilt, SearchReport) is None:
                continue
            with pytest.raises(ArtifactError, match=rf"here: .*results\.search\.{key}") as error:
                results_of({"results": {"search": spoilt}}, "here")
            assert "\n" not in str(error.value)
            found += 1
    assert found > 20


def test_types() -> None:
    assert misfit(1, float) is None and misfit("x", int, "a") == "a is x (str)"
    assert misfit(True, int, "a") and misfit(1.0, int) is None and misfit(None, int | None) is None
    assert misfit([1, "x"], list[int], "a") == "a[1] is x (str)"
    assert misfit({"k": [1]}, dict[str, list[str]], "a") == "a.k[0] is 1 (int)"
    assert misfit([1, 2], tuple[int, int]) is None and misfit([1], tuple[int, int], "a")
