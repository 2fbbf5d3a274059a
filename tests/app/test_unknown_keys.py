"""Keys that nothing would read, in every group: refused with the near names, never ignored."""

from __future__ import annotations

import pytest

from quantpipe.app.instances import make
from quantpipe.data.sources.npz import NpzDataset
from quantpipe.errors import ConfigError
from tests.app.configured import settings_of

UNKNOWN = {
    "+search.max_evaluation=5": "search.max_evaluation: is no option (did you mean 'max_evaluations'",
    "+search.algorithm.foo=1": "search.algorithm.foo: is no option; no key is legal here",
    "+threshold.foo=1": "threshold.foo: is no option; legal are activations, weights",
    "+threshold.activations.octave=1": "threshold.activations.octave: is no option (did you mean 'octaves'",
    "+threshold.weights.metod=mse": "threshold.weights.metod: is no option (did you mean 'method'?); legal is method",
    "+objective.tolerence=1": "objective.tolerence: is no option (did you mean 'tolerance'",
    "+recover.ridg=1": "recover.ridg: is no option (did you mean 'ridge'",
    "+realize.backen=qdq": "realize.backen: is no option (did you mean 'backend'?)",
    "+executor.worker=1": "executor.worker: is no option (did you mean 'workers'",
    "+tracking.uri=x": "tracking.uri: is no option; no key is legal here",
    "+tracking.launch_folder=x": "tracking.launch_folder: is no option",
    "+model.residentmb=4": "model.residentmb: is no option (did you mean 'resident_mb'",
    "+dataset.shuffle=true": "dataset.shuffle: is no option; legal are search, samples, preprocess",
    "+dataset.samples.calibrat=1": "dataset.samples.calibrat: is no option (did you mean 'calibrate'",
    "+dataset.search.path=x": "dataset.search.path: is no option; legal is share",
    "+schema.foo=1": "schema.foo: is no option; legal are name, activations, weights",
    "+schema.weights.granularity=per_tensor": "schema: schema.weights is given, and auto takes",
    "+annotate.strict=true": "annotate.strict: is no option",
    "+annotate.float_node=[]": "annotate.float_node: is no option (did you mean 'float_nodes'",
    "+calibrate.memory=1": "calibrate.memory: is no option (did you mean 'memory_mb'?)",
    "+profile.laod=x": "profile.laod: is no option (did you mean 'load'?); legal is load",
    "+evaluate.outputs=x": "evaluate.outputs: is no option (did you mean 'output'",
    "+check.formt=json": "check.formt: is no option (did you mean 'format'",
    "+choices.fixed=1": "choices.fixed: is no option (did you mean 'fix'",
    "+replay.forced=1": "replay.forced: is no option (did you mean 'force'",
    "+stage=[]": "stage: is no key (did you mean 'stages'",
}


@pytest.mark.program
def test_unknown_keys_of_every_group() -> None:
    for override, said in UNKNOWN.items():
        with pytest.raises(ConfigError) as error:
            settings_of(override)
        assert str(error.value).startswith(said), (override, str(error.value))


@pytest.mark.sliced(6)
@pytest.mark.parametrize("option", ["npz", "image_folder", "table", "wav_folder", "text", "callable"])
def test_unknown_keys_in_parts_of_every_data_set(option: str) -> None:
    for part in ("split", "samples"):
        with pytest.raises(ConfigError, match=rf"dataset\.{part}\.evaluation: is no option \(did you mean 'evaluate'"):
            settings_of(f"dataset={option}", f"+dataset.{part}.evaluation=1")
    if option != "callable":
        with pytest.raises(ConfigError, match=r"dataset\.calibrate\.pat: is no option \(did you mean 'path'"):
            settings_of(f"dataset={option}", "+dataset.calibrate.pat=x")
    else:
        with pytest.raises(ConfigError, match=r"dataset\.search\.share: is no option"):
            settings_of(f"dataset={option}", "+dataset.search.share=0.5")


def test_data_sets_that_are_made_in_python_refuse_them_too() -> None:
    with pytest.raises(ConfigError, match=r"dataset\.keys\.label: is no option \(did you mean 'labels'"):
        NpzDataset(path="x", keys={"label": "y"})


def test_what_takes_any_option_is_left_to_it() -> None:
    made = make({"_target_": "tests.app.configured.takes_all", "foo": 1}, "key", ["tests"])
    assert made == {"foo": 1}


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["strategy=x.json"], "strategy"),
        (["replay.trial=3"], "replay.trial"),
        (["replay.force=true"], "replay.force"),
        (["pick=best"], "pick"),
        (["search.finalists=2"], "search.finalists"),
    ],
)
def test_keys_without_effect_are_refused(overrides: list[str], key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: is set, and has a meaning with"):
        settings_of(*overrides)


@pytest.mark.program
def test_the_same_keys_where_they_mean_something() -> None:
    assert settings_of("command=replay", "strategy=x.json", "replay.force=true").replay.force
    assert settings_of("objective.form=pareto", "pick=best").pick == "best"
    assert settings_of("recover=default", "search.refine=true", "search.finalists=2").search.finalists == 2
    assert settings_of("schema=asymmetric", "+schema.weights.granularity=per_tensor").schema.weights.granularity
