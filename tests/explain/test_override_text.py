"""What is pasted is read by Hydra's own parser as what was meant, and patterns match what they are for alone."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from quantpipe.explain.override_text import override, patterns
from tests.explain.planted import options_of

NAMES = ["conv1", "/block.0/attention/Add", "onnx::MatMul_12", "a b", "x[1]", "layer(2),relu", "a=b", "a{1}", "it's"]


@pytest.mark.parametrize("name", NAMES)
def test_names_come_back(name: str) -> None:
    statement = {"kind": "calibrated", "min": -1.5, "max": 2e-7}
    text = override("annotate.constraints", {name: statement})
    found = options_of([text], {})["annotate"]["constraints"]
    assert found == {name.replace("'", "?"): statement}
    text = override("annotate.float_nodes", ["z", name])
    assert options_of([text], {})["annotate"]["float_nodes"] == ["z", name]


def test_blocks_share_a_pattern() -> None:
    names = [f"/blocks.{i}/attention/Add" for i in range(12)]
    universe = [*names, *(f"/blocks.{i}/attention/Add_1" for i in range(12)), "/Add"]
    assert patterns(names, universe) == ["/blocks.*/attention/Add"]


def test_a_pattern_that_would_take_others_is_not_made() -> None:
    universe = [f"conv{i}" for i in range(6)]
    assert patterns(["conv1", "conv3"], universe) == ["conv1", "conv3"]


def test_what_means_something_to_a_pattern_is_taken_as_it_is() -> None:
    names = ["a[1]", "b*"]
    found = patterns(names, [*names, "a1", "bc"])
    assert [n for n in (*names, "a1", "bc") if any(fnmatchcase(n, p) for p in found)] == names
