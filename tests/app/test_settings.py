"""Configuration values: the kinds that options take, and commands that can be typed again."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from quantpipe.app import command_line, settings
from quantpipe.app.instances import make
from quantpipe.errors import ConfigError
from quantpipe.pipeline.settings import CalibrateSettings, EvaluateSettings, SearchSettings


@dataclass(frozen=True)
class Options:
    flag: bool = False
    count: int = 1
    share: float = 0.5
    steps: tuple[int, ...] = (0,)
    names: tuple[str, ...] = ()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"flag": True},
        {"count": 3},
        {"share": 2},
        {"share": 0.1},
        {"steps": [1, 2]},
        {"steps": []},
        {"names": ["a"]},
    ],
)
def test_options_of_the_right_kind(given: dict[str, Any]) -> None:
    assert settings._options(Options, given, "part") == Options(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"flag": 1}, "part.flag: is 1; legal is true or false"),
        ({"flag": "maybe"}, "part.flag: is 'maybe'"),
        ({"count": True}, "part.count: is True; legal is an integer"),
        ({"count": 1.5}, "part.count: is 1.5"),
        ({"count": None}, "part.count: is None"),
        ({"share": "x"}, "part.share: is 'x'; legal is a number"),
        ({"steps": 1}, "part.steps: is 1; legal is a list"),
        ({"steps": [0, "x"]}, "part.steps"),
        ({"steps": [0.5]}, "part.steps"),
        ({"names": "abc"}, "part.names: is 'abc'; legal is a list"),
        ({"names": [1]}, "part.names"),
        ({"flags": True}, "part.flags: is no option (did you mean 'flag'?)"),
    ],
)
def test_options_of_the_wrong_kind(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        settings._options(Options, given, "part")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (CalibrateSettings, {"memory_mb": 15}),
        (CalibrateSettings, {"statistics": "some"}),
        (CalibrateSettings, {"cache": ""}),
        (EvaluateSettings, {"agreement_samples": 0}),
        (EvaluateSettings, {"layer_samples": -1}),
        (EvaluateSettings, {"latency_runs": 0}),
        (EvaluateSettings, {"latency_seconds": 0.0}),
        (SearchSettings, {"algorithm": None, "max_evaluations": 0, "max_seconds": None}),
        (SearchSettings, {"algorithm": None, "max_evaluations": None, "max_seconds": -1}),
    ],
)
def test_numbers_out_of_range(kind: type[Any], given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        kind(**given)


def test_short_words_of_calibrate() -> None:
    assert settings._calibrate({"per_channel": True, "cache": None}) == {"per_channel": ["*"], "cache": "none"}
    assert settings._calibrate({"per_channel": False}) == {"per_channel": []}
    assert settings._calibrate({"per_channel": ["a*"], "cache": "auto"}) == {"per_channel": ["a*"], "cache": "auto"}


def test_the_resume_command_is_the_one_that_was_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["/some where/run.py"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command_line.program() == [sys.executable, "/some where/run.py"]
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert command_line.program() == [Path(sys.executable).name, "/some where/run.py"]
    tool = tmp_path / "quantpipe"
    tool.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(tool)])
    assert command_line.program() == [str(tool)]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command_line.program() == ["quantpipe"]


@pytest.mark.parametrize(
    "config",
    [
        {"_target_": "os.system", "command": "true"},
        {"_target_": "quantpipe.search.Annealing", "share": {"_target_": "builtins.eval"}},
        {"_target_": "quantpipe.search.Annealing", "list": [{"_target_": "subprocess.run"}]},
        {"_target_": "quantpipe_evil.Thing"},
    ],
)
def test_targets_outside_are_refused_however_deep(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"_target_.*is not allowed"):
        make(OmegaConf.create(config), "key")


@pytest.mark.parametrize(
    "config",
    [
        {"_target_": "quantpipe.search.Nope"},
        {"_target_": "quantpipe.search.Annealing", "nope": 1},
        {"_target_": "quantpipe.search.Annealing", "cooling": 2},
    ],
)
def test_targets_that_cannot_be_built_are_told_in_one_line(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        make(OmegaConf.create(config), "key")
    assert "\n" not in str(error.value)
