"""Recovery's work is counted before it runs: what exceeds the limit is left out, with its reason."""

from __future__ import annotations

from math import inf
from typing import Any, cast

import pytest

from quantpipe.pipeline import stages
from quantpipe.recover import NotApplicable, RecoverOptions, State, StepItem, StepLoss, accept_steps, pass_limit
from quantpipe.recover.reconstruct.layer import LayerOptions
from quantpipe.recover.recovery_cost import ALWAYS, DOUBLE, ELEMENT, PassCounts, PassLimit, float_work, walk_algebra
from tests.ops.line import Net, line
from tests.recover.test_recover_walk import digits

START = State(cast(Any, None), cast(Any, None))
COUNTS = PassCounts(judged=0.5, sample=1 / 64, algebra=lambda rows: rows / 1000)
STEPS = RecoverOptions(("rotate", "smooth", "gptq_compensated", "equalize"), rows=2000).items()
WALK, JUDGEMENT = 5.0, 1.0
"""A float pass, a simulated one of two, and two of algebra; a simulated pass over half as many samples."""


def tried(passes: float, absent: str = "") -> list[tuple[str, bool]]:
    """Each step by name, and whether the limit left it out; `absent` cannot apply."""

    def run(item: StepItem, state: State) -> State:
        if item.name == absent:
            raise NotApplicable("nothing to do")
        return State(state.graph, state.topology, walk=(LayerOptions(), 2000) if item.walks else state.walk)

    losses = iter([1.0, 0.9, 0.8, 0.7, 0.6])
    _, found = accept_steps(
        START, STEPS, run, lambda state: StepLoss(*[next(losses)] * 2), limit=PassLimit(COUNTS, passes)
    )
    for row in found.steps:
        assert not row.get("limited") or (not row["kept"] and "effort.recover_passes allows" in row["reason"])
    return [(row["step"], row.get("limited", False)) for row in found.steps]


def test_counts_of_the_steps() -> None:
    assert [item.count(COUNTS, None) for item in STEPS] == [2.0, 12.0, WALK + JUDGEMENT, 3.0]
    assert [item.count(COUNTS, 2000) for item in STEPS] == [2.0 + WALK, 12.0 + 3 * WALK, WALK + JUDGEMENT, 3.0 + WALK]
    (ranges,) = RecoverOptions(({"name": "ranges", "samples": 32, "evaluations": 3},)).items()
    assert ranges.count(COUNTS, None) == 1 + 0.5 * (1 + 2 * 4) + JUDGEMENT


@pytest.mark.parametrize(
    ("passes", "left_out"),
    [
        (29.0, []),  # 1 of the start, 2, 12, 6 and 8
        (28.9, ["equalize"]),
        (21.0, ["equalize"]),
        (20.9, ["smooth"]),  # the walk after it would not fit; then there is room for equalize: 1 + 2 + 6 + 8
        (17.0, ["smooth"]),
        (9.0, ["smooth", "equalize"]),
        (8.9, ["rotate", "smooth", "equalize"]),
        (6.9, ["rotate", "smooth", "gptq_compensated"]),  # without a walk there is none to repeat: 1 + 3
        (3.9, ["rotate", "smooth", "gptq_compensated", "equalize"]),
    ],
)
def test_what_exceeds_the_limit_is_left_out(passes: float, left_out: list[str]) -> None:
    assert tried(passes) == [(item.name, item.name in left_out) for item in STEPS]


def test_a_step_that_cannot_apply_is_not_counted() -> None:
    assert dict(tried(20.9))["smooth"] and not dict(tried(20.9, absent="rotate"))["smooth"]
    assert tried(27.0, absent="rotate") == [(item.name, False) for item in STEPS]


def test_the_work_of_a_layer_by_hand() -> None:
    """A convolution of 3 to 5 channels, 3 x 3, on 8 x 8 places without padding."""
    net = Net()
    net.output(net.conv(net.input(None, 3, 8, 8), 3, 5, 3, 3, name="one"))
    made = line(net, "vta")
    places = 6 * 6
    assert float_work(made.graph) == places * 5 * 27 + ELEMENT * places * 5
    moments, solution = 2048 * 27 * (27 / 2 + 10), 27**2 * (27 + 3 * 5)
    assert walk_algebra(made.graph, made.topology, 16384) == moments + DOUBLE * solution
    assert walk_algebra(made.graph, made.topology, 100) == 100 * 27 * (27 / 2 + 10) + DOUBLE * solution


def test_a_small_model_is_within_any_limit() -> None:
    made = digits("vta")
    limit = pass_limit(made.graph, made.topology, fitted=512, judged=512, passes=0.0)
    assert limit.passes * float_work(made.graph) * 512 == pytest.approx(ALWAYS)
    rows = 16384
    steps = RecoverOptions(("rotate", "smooth", "gptq_compensated", "equalize", "ranges")).items()
    assert limit.counts.judgement + sum(step.count(limit.counts, rows) for step in steps) < limit.passes


def test_the_limit_of_a_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the work that is always allowed, digits' second walk is beyond eight passes; the first result stays."""
    made = digits("vta", bits=4)

    def recovered(passes: float) -> Any:
        return stages.recover(
            made.problem,
            stages.SearchedStrategy(made.strategy(4)),
            made.samples,
            stages.Holdout(made.samples),
            settings=stages.RecoverySettings(
                RecoverOptions(("gptq_compensated", "equalize"), rows=2048, kl_target=0.0), 64, passes=passes
            ),
        )

    whole, small = recovered(inf), recovered(0.0)
    assert [row.get("limited") for row in small.steps] == [None, None] and whole.metrics == small.metrics
    monkeypatch.setattr("quantpipe.recover.recovery_cost.ALWAYS", 0.0)
    counts = pass_limit(made.graph, made.topology, fitted=128, judged=128).counts
    first = 2 * counts.judgement + counts.walk(2048) + 1e-6
    cut = recovered(first)
    assert [row.get("limited") for row in cut.steps] == [None, True]
    assert cut.steps[0]["kl_after"] == whole.steps[0]["kl_after"]
    assert recovered(first - 0.01).steps[0].get("limited")
