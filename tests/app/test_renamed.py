"""Names of earlier versions: they give the same run, and one note each."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

import quantpipe
from quantpipe.app import renamed
from quantpipe.app.renamed import KEYS, argument_as_now_named, config_as_now_named
from tests.api.nets import QUICK, images, small_net


@pytest.fixture(autouse=True)
def fresh_notes() -> None:
    renamed._note.cache_clear()


@pytest.mark.parametrize(
    ("old", "now"),
    [
        ("recover.growth=5", "recover.shrinkage_factor=5"),
        ("++recover.enough=0", "++recover.kl_target=0"),
        ("~choices.pin", "~choices.fix"),
        ("choices.pin.stem=8", "choices.fix.stem=8"),
        ("search.evaluator=integer", "search.candidate_form=integer"),
        ("recover.growthrate=5", "recover.growthrate=5"),
        ("hardware=vta", "hardware=vta"),
        ("--cfg", "--cfg"),
    ],
)
def test_arguments(old: str, now: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert argument_as_now_named(old) == now
        assert argument_as_now_named(old) == now
    assert len(caplog.records) == (old != now), "one note for each name"


def test_configurations(caplog: pytest.LogCaptureFixture) -> None:
    given: dict[str, Any] = {
        "recover": {
            "growth": 5,
            "shrinkage_factor": 10,
            "rounding": "hessian",
            "steps": ["propagation", {"name": "rounding", "growth": 1, "rounding": "coordinate"}, "equalize", 7],
        },
        "search": {"evaluator": "auto"},
        "choices": {"pin": {"a": 1}, "restrict": {}},
    }
    kept = repr(given)
    with caplog.at_level(logging.WARNING):
        found = config_as_now_named(given)
    step = {"name": "gptq", "shrinkage_factor": 1, "rounding": "coordinate_descent"}
    assert found == {
        "recover": {"shrinkage_factor": 5, "rounding": "gptq", "steps": ["gptq_compensated", step, "equalize", 7]},
        "search": {"candidate_form": "auto"},
        "choices": {"fix": {"a": 1}, "restrict": {}},
    }
    assert repr(given) == kept and len(caplog.records) == 8
    assert config_as_now_named(found) == found


@pytest.mark.program
def test_old_and_new_names_give_the_same_run() -> None:
    old = {"option": "default", "steps": ["rounding", "propagation"], "growth": 3, "enough": 0.0, "rounding": "hessian"}
    now = {"option": "default", "steps": ["gptq", "gptq_compensated"], "shrinkage_factor": 3, "kl_target": 0.0}
    first, second = (quantpipe.quantize(small_net(), images(), recover=r, evaluate=QUICK) for r in (old, now))
    assert first.report["metrics"] == second.report["metrics"]
    written = [json.loads((r.folder / "recover/steps.json").read_text())["weights"] for r in (first, second)]
    assert written[0] == written[1]
    assert [s["step"] for s in first.report["recover"]] == ["gptq", "gptq_compensated"]


def test_todays_names_are_keys_and_the_old_ones_are_not() -> None:
    from quantpipe.app.compose import composed

    config, _ = composed({}, {})
    for old, new in KEYS.items():
        (section, before), (_, after) = old.split("."), new.split(".")
        assert after in config[section] and before not in config[section]
