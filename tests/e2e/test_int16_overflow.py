"""The showcase of narrow accumulators: 16 bits ruin 8 bits everywhere, and a search over bits gets it back."""

from __future__ import annotations

import pytest

from tests.e2e.program import Program, Result
from tests.e2e.test_zoo import resnet20
from tests.zoo import requires_zoo


def both(program: Program, *arguments: str, evaluations: int) -> tuple[Result, Result]:
    """8 bits everywhere, and searched, both as rounded to the nearest; equal integers in both."""
    arguments = (*arguments, "recover=none")
    budget = f"search.max_evaluations={evaluations}"
    uniform = program.run("hardware=hago_int16_acc", *arguments, folder="uniform")
    searched = program.run("experiments=int16_overflow", budget, *arguments, folder="searched")
    assert uniform.code == searched.code == 0, uniform.err + searched.err
    assert [r.report["agreement"]["differing"] for r in (uniform, searched)] == [0, 0]
    return uniform, searched


def top1(result: Result) -> float:
    return float(result.report["metrics"]["realized"]["top1"])


def test_digits_in_eight_bits_do_not_fit_and_a_search_finds_bits_that_do(program: Program) -> None:
    """Here nothing wraps: at the scale of 8 by 8 bits the biases are beyond int16, and the weights' scales are raised
    until they fit, which leaves the weights a bit or two."""
    uniform, searched = both(program, evaluations=100)
    # 10.71 % and 86.66 %; the float model has 99.01 %.
    assert uniform.report["metrics"]["float"]["top1"] == pytest.approx(0.9901, abs=0.0005)
    assert top1(uniform) < 0.2
    assert top1(searched) > 0.8
    raised = [max((r["factor"] for r in x.report["raised"]), default=1.0) for x in (uniform, searched)]
    assert raised[0] >= 256 > 64 >= raised[1]
    assert searched.report["model"]["mean_activation_bits"] < 8


@requires_zoo
@pytest.mark.slow
def test_sums_of_resnet20_wrap_in_eight_bits_and_a_search_finds_bits_that_do_not(program: Program) -> None:
    plain = ("dataset.samples.evaluate=500", "precision=none")  # which makes up for most of it by itself
    uniform, searched = both(program, *resnet20(), *plain, evaluations=154)
    # On all 2000 images 34.40 % and 77.95 % (benchmarks/overflow.py); the float model has 80.75 %.
    assert top1(uniform) < 0.45
    assert top1(searched) > 0.72
    wrapped = [
        sum(e["overflowed"] for e in r.report["overflow"]) / sum(e["elements"] for e in r.report["overflow"])
        for r in (uniform, searched)
    ]
    assert wrapped[0] > 5e-4 > 1e-5 > wrapped[1]
