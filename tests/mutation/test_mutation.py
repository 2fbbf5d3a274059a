"""A change of one number in a realized model that moves an output is found. The whole campaign on the digits model:
`python -m tests.mutation.campaign`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.mutation.campaign import CONF, combinations, row
from tests.mutation.mutants import mutants, tally
from tests.ops.line import line
from tests.ops.test_every_op import graph_of


@pytest.mark.sliced(18)
@pytest.mark.parametrize(
    ("case", "hardware", "backend"),
    [
        ("residual_block", "ort_cpu", "qdq"),
        ("residual_block", "ort_cpu", "qoperator"),
        ("residual_block", "vta", "integer"),
        ("gemm_plain", "ort_cpu", "qdq"),
        ("gemm_plain", "tensorrt", "qdq"),
        ("softmax_island", "ort_cpu", "qdq"),
    ],
)
def test_every_change_that_moves_an_output_is_found(case: str, hardware: str, backend: str) -> None:
    made, found = line(graph_of(case), hardware), Counter[str]()
    for mutant in mutants(made, made.plan(), backend):
        assert not mutant.missed, mutant
        tally(found, mutant)
    assert found["moved"] > 0.5 * found["mutants"] > 0, found


@pytest.mark.slow
@pytest.mark.parametrize("hardware", [path.stem for path in sorted((CONF / "hardware").glob("*.yaml"))])
def test_the_whole_campaign(hardware: str) -> None:
    for _, backend in combinations([hardware]):
        found, missed = row(hardware, backend, seed=1)
        assert not missed, backend
        assert found["moved"] > 0, backend
