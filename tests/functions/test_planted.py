"""Faults planted into the tables and steps of functions: each that moves an output is found by the comparison.

One net per op and kind, on rows that reach every code of its input; every constant of the realized model is changed.
The same in every implementation, and in steps: `python -m tests.functions.campaign`.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.functions.campaign import row
from tests.functions.planted import PAIRS, line_of
from tests.mutation.mutants import mutants, tally

IDS = [f"{op}-{kind}" for op, kind in PAIRS]


@pytest.mark.sliced(24)
@pytest.mark.parametrize(("op", "kind"), PAIRS, ids=IDS)
def test_every_fault_that_moves_an_output_is_found(op: str, kind: str) -> None:
    made = line_of(op, kind)
    assert "function" not in made.topology.float_nodes, made.topology.float_nodes
    found = Counter[str]()
    for mutant in mutants(made, made.plan(8), "integer"):
        tally(found, mutant)
        assert not mutant.missed, mutant
    assert found["found"], "some constant of the function moves an output"


@pytest.mark.slow
@pytest.mark.parametrize(("op", "kind"), PAIRS, ids=IDS)
def test_every_implementation_is_seen_to_be_wrong(op: str, kind: str) -> None:
    for name, found, missed in row(op, kind):
        assert found["moved"] and not missed, (name, found, missed)
