"""The ladder keeps what helps, measured, and its table says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quantpipe.errors import ConfigError
from quantpipe.plan import NO_OVERRIDES, Overrides
from quantpipe.recover import LayerOptions, RecoverOptions, Recovery, climb


def climbed(steps: list[str], values: list[float], before: float = 1.0) -> Any:
    """A ladder whose n-th walk measures values[n]; the overrides carry n."""
    walks = iter(range(len(values)))

    def walk(options: LayerOptions) -> Recovery:
        n = next(walks)
        return Recovery(Overrides({}, {"n": np.asarray([float(n)])}), ({"node": f"walk {n}"},))

    def measure(overrides: Overrides) -> float:
        return values[int(overrides.biases["n"][0])] if overrides.biases else before

    return climb(RecoverOptions(tuple(steps)), walk, measure)


def test_steps_that_help_are_kept_one_after_the_other() -> None:
    found = climbed(["bias", "rounding", "propagation"], [0.9, 0.5, 0.2])
    assert [(s["step"], s["kl_before"], s["kl_after"], s["kept"]) for s in found.steps] == [
        ("bias", 1.0, 0.9, True),
        ("rounding", 0.9, 0.5, True),
        ("propagation", 0.5, 0.2, True),
    ]
    assert found.overrides.biases["n"][0] == 2 and found.layers[0]["node"] == "walk 2"
    assert all(s["seconds"] >= 0 for s in found.steps)


@pytest.mark.parametrize("bad", [2.0, 0.5, float("inf"), float("nan")])
def test_a_step_that_does_not_help_is_not_kept(bad: float) -> None:
    found = climbed(["rounding", "propagation"], [0.5, bad])
    assert [s["kept"] for s in found.steps] == [True, False]
    assert found.steps[1]["kl_before"] == 0.5
    np.testing.assert_equal(found.steps[1]["kl_after"], bad)
    assert found.overrides.biases["n"][0] == 0 and found.layers[0]["node"] == "walk 0"


def test_a_bad_step_does_not_stop_the_next() -> None:
    found = climbed(["bias", "rounding"], [7.0, 0.5])
    assert [(s["kl_before"], s["kept"]) for s in found.steps] == [(1.0, False), (1.0, True)]
    assert found.overrides.biases["n"][0] == 1


def test_nothing_helps() -> None:
    found = climbed(["rounding"], [1.5])
    assert found.overrides is NO_OVERRIDES and found.layers == () and not found.steps[0]["kept"]
    assert climbed([], []).steps == ()


def test_what_a_step_does_to_a_layer() -> None:
    coordinate = RecoverOptions(rounding="coordinate")
    assert [coordinate.layer(s).rounding for s in ("bias", "rounding")] == ["nearest", "coordinate"]
    options = RecoverOptions(ridge=0.3, damping=0.2)
    bias, rounding, propagation = (options.layer(s) for s in ("bias", "rounding", "propagation"))
    assert bias.rounding == "nearest" and not bias.scale_search and not bias.propagate and bias.correct_bias
    assert rounding.rounding == "hessian" and rounding.scale_search and not rounding.propagate
    assert propagation.rounding == "hessian" and propagation.propagate
    assert (propagation.ridge, propagation.damping) == (0.3, 0.2)


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ({"steps": ["rounding", "propagtion"]}, "recover.steps", "propagation"),
        ({"steps": ["equalize"]}, "recover.steps", "bias, rounding, propagation"),
        ({"rounding": "hesian"}, "recover.rounding", "hessian"),
        ({"rounding": "nearest"}, "recover.rounding", "coordinate"),
        ({"rows": 10}, "recover.rows", "at least 64"),
        ({"ridge": -0.1}, "recover.ridge", "at least"),
        ({"ridge": 0.0}, "recover.ridge", "at least"),
        ({"damping": 0.0}, "recover.damping", "at least"),
        ({"damping": float("nan")}, "recover.damping", "at least"),
    ],
)
def test_options_are_refused_by_key(changes: dict[str, Any], key: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        RecoverOptions(**changes)
    assert key in str(refused.value) and said in str(refused.value)
