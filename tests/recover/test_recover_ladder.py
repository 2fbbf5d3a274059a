"""The ladder keeps what helps, measured, and its table says so; and what a list of steps may hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from quantpipe.errors import ArtifactError, ConfigError, DataError, HardwareError
from quantpipe.plan import NO_OVERRIDES, Overrides
from quantpipe.recover import NotApplicable, RecoverOptions, State, StepItem, StepLoss, accept_steps
from quantpipe.recover.named_steps import Walk, layer_options
from quantpipe.recover.reconstruct.layer import LayerOptions
from quantpipe.recover.rescale.equalize import Equalization


def climbed(
    values: list[Any],
    before: float = 1.0,
    judges: dict[str, Callable[[State], float]] | None = None,
    compared: list[float] | None = None,
) -> tuple[State, Any]:
    """A ladder whose n-th step measures values[n] (an exception: raises it); the overrides carry all kept steps.

    `compared`: what decides after so many kept steps; None: the value itself.
    """
    start = State(cast(Any, None), cast(Any, None))

    def run(item: StepItem, state: State) -> State:
        value = values[item.parameters]
        if isinstance(value, Exception):
            raise value
        made = {**state.overrides.biases, item.name: np.asarray(float(item.parameters))}
        return replace(state, overrides=Overrides({}, made), note=f"note {item.parameters}")

    def measure(state: State) -> StepLoss:
        made = state.overrides.biases
        value = float(values[int(list(made.values())[-1])]) if made else before
        return StepLoss(value, value if compared is None else compared[len(made)])

    items = [StepItem(f"step {n}", n) for n in range(len(values))]
    return accept_steps(start, items, run, measure, judges=judges or {})


def test_steps_that_help_are_kept_one_on_top_of_the_other() -> None:
    state, found = climbed([0.9, 0.5, 0.2])
    assert [(s["step"], s["kl_before"], s["kl_after"], s["kept"], s["on"]) for s in found.steps] == [
        ("step 0", 1.0, 0.9, True, "note 0"),
        ("step 1", 0.9, 0.5, True, "note 1"),
        ("step 2", 0.5, 0.2, True, "note 2"),
    ]
    assert list(found.overrides.biases) == ["step 0", "step 1", "step 2"] and state.overrides is found.overrides
    assert all(s["seconds"] >= 0 for s in found.steps)


@pytest.mark.parametrize(("after", "kept"), [(0.9, True), (1.0, False), (1.1, False)])
def test_what_varies_less_decides_and_the_row_has_the_loss(after: float, kept: bool) -> None:
    _, found = climbed([1.5], compared=[1.0, after])
    (row,) = found.steps
    assert (row["kl_before"], row["kl_after"], row["gain"], row["kept"]) == (1.0, 1.5, -0.5, kept)


@pytest.mark.parametrize(("after", "kept"), [(0.4, True), (0.5, False), (0.6, False)])
def test_a_step_with_a_judge_of_its_own_is_kept_by_it_alone(after: float, kept: bool) -> None:
    """As a training by labels is: the divergence from the float model may rise."""
    judges = {"step 0": lambda state: after if state.overrides.biases else 0.5}
    state, found = climbed([3.0], judges=judges)
    (row,) = found.steps
    assert (row["kl_before"], row["kl_after"], row["kept"]) == (1.0, 3.0, kept)
    assert row["on"] == f"note 0, judged with labels: 0.5 to {after:.3g}"
    assert list(state.overrides.biases) == (["step 0"] if kept else [])


def test_values_that_have_no_integers_end_the_step_and_not_the_run() -> None:
    """A float node that divides by what became zero, met by a walk through the quantized model."""
    state, found = climbed([DataError("NaN has no integer"), 0.4])
    assert [(s["kept"], s.get("reason")) for s in found.steps] == [(False, "NaN has no integer"), (True, None)]
    assert list(state.overrides.biases) == ["step 1"]


@pytest.mark.parametrize("second", ["equalize", "absorb", "smooth", "ranges", "gptq_compensated"])
@pytest.mark.parametrize(("kl", "kl_target"), [(0.02, 0.02), (0.0201, 0.02), (0.001, 0.0)])
def test_where_kl_is_enough_no_walk_is_repeated(second: str, kl: float, kl_target: float) -> None:
    ran: list[str] = []

    def run(item: StepItem, state: State) -> State:
        ran.append(item.name)
        return replace(state, walk=(LayerOptions(), 64))

    def measure(state: State) -> StepLoss:
        return StepLoss(1.0, 1.0) if state.walk is None else StepLoss(kl, kl)

    items = [StepItem("equalize", None), StepItem("gptq_compensated", None), StepItem(second, None)]
    start = State(cast(Any, None), cast(Any, None))
    _, found = accept_steps(start, items[1:], run, measure, kl_target=kl_target)
    left_out = second in ("equalize", "absorb", "smooth") and kl <= kl_target
    assert ran == ["gptq_compensated"] + [second] * (not left_out)
    assert ("recover.kl_target" in found.steps[1].get("reason", "")) == left_out
    ran.clear()
    accept_steps(start, items[:1], run, lambda state: StepLoss(kl, kl), kl_target=kl_target)
    assert ran == ["equalize"], "without a walk there is none to repeat"


@pytest.mark.parametrize("bad", [2.0, 0.5, float("inf"), float("nan")])
def test_a_step_that_does_not_help_leaves_nothing(bad: float) -> None:
    _, found = climbed([0.5, bad, 0.4])
    assert [s["kept"] for s in found.steps] == [True, False, True]
    assert found.steps[1]["kl_before"] == 0.5 == found.steps[2]["kl_before"]
    np.testing.assert_equal(found.steps[1]["kl_after"], bad)
    assert ("no finite number" in found.steps[1].get("reason", "")) == (not np.isfinite(bad))
    assert list(found.overrides.biases) == ["step 0", "step 2"]


@pytest.mark.parametrize(
    "error",
    [
        NotApplicable("no pairs"),
        HardwareError("no such shift", stage="plan"),
        ArtifactError("no place for that", stage="recover"),
    ],
)
def test_a_step_that_cannot_apply_says_why(error: Exception) -> None:
    _, found = climbed([error, 0.5])
    first, second = found.steps
    assert not first["kept"] and first["kl_after"] is None and str(error) == first["reason"]
    assert second["kept"] and second["kl_before"] == 1.0


def test_nothing_helps() -> None:
    _, found = climbed([1.5])
    assert found.overrides is NO_OVERRIDES and found.layers == () and not found.steps[0]["kept"]
    assert climbed([])[1].steps == ()


def test_what_a_walk_does_to_a_layer() -> None:
    coordinate = Walk(rounding="coordinate_descent")
    assert [layer_options(s, coordinate).rounding for s in ("bias", "gptq")] == ["nearest", "coordinate_descent"]
    options = Walk(ridge=0.3, damping=0.2, shrinkage_factor=5.0)
    bias, rounding, propagation = (layer_options(s, options) for s in ("bias", "gptq", "gptq_compensated"))
    assert bias.rounding == "nearest" and not bias.scale_search and not bias.propagate and bias.correct_bias
    assert rounding.rounding == "gptq" and rounding.scale_search and not rounding.propagate
    assert [o.own_bias for o in (bias, rounding, propagation)] == [False, True, False]
    assert propagation.rounding == "gptq" and propagation.propagate
    assert (propagation.ridge, propagation.damping, propagation.shrinkage_factor) == (0.3, 0.2, 5.0)


def test_steps_take_parameters() -> None:
    given = ["equalize", {"name": "equalize", "iterations": 3}, {"name": "gptq", "rows": 100}, "gptq_compensated"]
    options = RecoverOptions(given, rows=4096, ridge=0.1, shrinkage_factor=2.0)
    assert options.names == ("equalize", "equalize", "gptq", "gptq_compensated")
    first, second, third, fourth = (item.parameters for item in options.items())
    assert first == Equalization() and second == Equalization(iterations=3)
    assert third == Walk(rows=100, ridge=0.1, shrinkage_factor=2.0) and fourth == Walk(
        rows=4096, ridge=0.1, shrinkage_factor=2.0
    )


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ({"steps": ["gptq", "gptq_compensatd"]}, "recover.steps", "gptq_compensated"),
        ({"rounding": "gtpq"}, "recover.rounding", "gptq"),
        ({"rounding": "nearest"}, "recover.rounding", "coordinate_descent"),
        ({"steps": ["spin"]}, "recover.steps", "bias, gptq, gptq_compensated, equalize, absorb, smooth, rotate"),
        ({"steps": "gptq"}, "recover.steps", "a list"),
        ({"steps": [3]}, "recover.steps", "legal are bias"),
        ({"steps": [{"iterations": 3}]}, "recover.steps", "name: equalize"),
        ({"steps": [{"name": "equalise"}]}, "recover.steps", "equalize"),
        ({"steps": [{"name": "equalize", "iteration": 3}]}, "recover.steps", "iterations"),
        ({"steps": [{"name": "equalize", 1: 2}]}, "recover.steps", "iterations"),
        ({"steps": [{"name": "equalize", "iterations": 0}]}, "recover.steps", "at least 1"),
        ({"steps": [{"name": "equalize", "iterations": 2.5}]}, "recover.steps", "an integer"),
        ({"steps": [{"name": "equalize", "factors": "rael"}]}, "recover.steps", "real"),
        ({"steps": [{"name": "equalize", "margin": 1.0}]}, "recover.steps", "below 1"),
        ({"steps": [{"name": "absorb", "by_channel": 1}]}, "recover.steps", "true or false"),
        ({"steps": [{"name": "smooth", "alphas": [2]}]}, "recover.steps", "below 1"),
        ({"steps": [{"name": "smooth", "alphas": []}]}, "recover.steps", "at least one"),
        ({"steps": [{"name": "smooth", "alphas": 0.5}]}, "recover.steps", "at least one"),
        ({"steps": [{"name": "ranges", "tolerance": 0.5}]}, "recover.steps", "at least 1"),
        ({"steps": [{"name": "ranges", "samples": "many"}]}, "recover.steps", "at least 1"),
        ({"steps": [{"name": "gptq", "rows": 10}]}, "recover.steps", "at least 64"),
        ({"rows": 10}, "recover.rows", "at least 64"),
        ({"ridge": -0.1}, "recover.ridge", "at least"),
        ({"ridge": 0.0}, "recover.ridge", "at least"),
        ({"damping": 0.0}, "recover.damping", "at least"),
        ({"damping": float("nan")}, "recover.damping", "at least"),
        ({"ridge": float("inf")}, "recover.ridge", "finite"),
        ({"shrinkage_factor": -1.0}, "recover.shrinkage_factor", "at least 0"),
        ({"steps": [{"name": "gptq", "shrinkage_factor": -1.0}]}, "recover.steps", "at least 0"),
        ({"steps": [{"name": "gptq", "damping": float("inf")}]}, "recover.steps", "at least 1e-06"),
    ],
)
def test_options_are_refused_by_key(changes: dict[str, Any], key: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        RecoverOptions(**changes)
    assert key in str(refused.value) and said in str(refused.value)
