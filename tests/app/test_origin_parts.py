"""What artifacts are made from: typed settings, not how these were written."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from quantpipe.artifacts import digest_json
from quantpipe.calibrate.estimators import MSE, Percentile
from quantpipe.pipeline.origin_parts import KINDS, PARTS, part
from quantpipe.pipeline.settings import Settings
from quantpipe.types import DType, FloatType
from quantpipe.types.kernel import LogicalKernel
from tests.app.configured import settings_of

BASE = ("hardware=vta", "search=greedy", "threshold=kl")


def digests(settings: Settings) -> dict[str, str]:
    return {key: digest_json(part(settings, key)) for key in PARTS}


def changed(settings: Settings, *other: str) -> set[str]:
    before, after = digests(settings), digests(settings_of(*BASE, *other))
    return {key for key in PARTS if before[key] != after[key]}


@pytest.fixture(scope="module")
def base() -> Settings:
    return settings_of(*BASE)


@pytest.mark.sliced(12)
@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("hardware.accumulator.overflow=saturate", {"hardware"}),
        ("hardware.description=another", set()),
        ("annotate.float_ops=[Add]", {"annotate"}),
        ("annotate.split_channels={stem.out: [1]}", {"annotate"}),
        ("annotate.split_channels={}", set()),
        ("+hardware.qdq_bias=float32", {"hardware"}),
        ("+hardware.qdq_bias=null", set()),
        ("annotate.choices=[auto,granularity]", {"annotate", KINDS}),
        ("annotate.choices=[bits]", {KINDS}),
        ("objective.cost=bits", {"objective", KINDS}),
        ("objective.cost=cycles", set()),
        ("objective.tolerance=0.5", {"objective"}),
        ("choices.freeze=['bits:*']", {"choices"}),
        ("threshold.weights.method=estimator", {"threshold"}),
        ("threshold=mse", {"threshold"}),
        ("threshold.rules=[{ops: Conv, use: max_range}]", {"threshold"}),
        ("search=uniform", {"search"}),
        ("search.max_evaluations=7", {"search"}),
        ("search.start=somewhere.json", set()),
        ("precision=none", {"precision"}),
        ("detections.score_above=0.5", {"detections"}),
        ("recover=none", {"recover"}),
        ("realize=[integer,vta]", {"realize"}),
        ("evaluate.agreement_samples=3", {"evaluate"}),
        ("evaluate.baseline=none", {"evaluate"}),
    ],
)
def test_a_setting_changes_the_parts_it_belongs_to(base: Settings, override: str, parts: set[str]) -> None:
    """`objective.cost=cycles` is what auto comes to on vta; words about the device decide nothing."""
    assert changed(base, override) == parts


def test_every_field_of_a_device_but_words_counts(base: Settings) -> None:
    halves = (FloatType.FLOAT32, FloatType.FLOAT16)
    held = part(replace(base, spec=replace(base.spec, qdq_bias=DType.FLOAT32, float_types=halves)), "hardware")
    names = {field.name for field in dataclasses.fields(base.spec)}
    assert names - set(held) == {"description", "source", "device", "placed", "joined"}


def test_fields_that_came_later_are_left_out_while_they_say_what_was_so_before(base: Settings) -> None:
    """Folders of before do not tell of them, and are no other run's."""
    assert not {"qdq_bias", "float_types"} & set(part(base, "hardware")) and "float_type" not in part(base, "annotate")
    halves = replace(base, annotate=replace(base.annotate, float_type="float16"))
    assert part(halves, "annotate")["float_type"] == "float16"


def test_places_in_files_are_no_part(base: Settings) -> None:
    """A kernel knows the line that it is described at, for what is said of it."""
    here, there, other = (
        replace(base.spec, kernels=(LogicalKernel(name, (), (), {}, place=place),))
        for name, place in (("one", "a.yaml, line 3"), ("one", "b.yaml, line 4"), ("two", "a.yaml, line 3"))
    )
    first, moved, renamed = (part(replace(base, spec=spec), "hardware") for spec in (here, there, other))
    assert first == moved != renamed


def test_estimators_of_one_shape_are_told_apart(base: Settings) -> None:
    assert part(replace(base, estimator=MSE()), "threshold") != part(replace(base, estimator=Percentile()), "threshold")


class Plain:
    """No dataclass: what it holds cannot be told from outside."""

    needs_histogram = False

    def __init__(self, share: float) -> None:
        self._share = share

    def __call__(self, *_: Any) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Opaque:
    """A dataclass that holds what no artifact can."""

    made: object
    needs_histogram: bool = False


@pytest.mark.parametrize("estimator", [Plain(0.5), Opaque(object())], ids=["plain", "opaque"])
def test_what_cannot_be_told_is_told_as_it_was_configured(base: Settings, estimator: Any) -> None:
    given = {"activations": {"_target_": "package.Plain", "share": 0.5}}
    settings = replace(base, estimator=estimator, config={"threshold": given})
    assert part(settings, "threshold") == given


def test_no_part_needs_the_configuration(base: Settings) -> None:
    without = replace(base, config={}, folder=Path("another"), changed={}, choices={})
    assert digests(without) == digests(base)


@dataclass(frozen=True)
class Held:
    """A data set that holds what a package's key names."""

    target: Any


def test_a_function_of_the_user_is_told_as_it_was_configured(base: Settings) -> None:
    """A data set holds the function itself, which no artifact can."""
    configured = {"target": "mydata:rows"}
    settings = replace(base, config={**base.config, "dataset": configured})
    assert part(replace(settings, dataset=Held(len)), "dataset") == configured
    assert part(replace(settings, dataset=Held(3)), "dataset") == {"target": 3}


def test_folders_of_before_do_not_tell_of_what_came_later(base: Settings) -> None:
    """Fields at any depth: none of their names is anywhere in what is told of a run that does not use them."""
    told = str({key: part(base, key) for key in PARTS})
    assert not [name for name in ("qdq_bias", "single_ratio", "split_channels") if name in told]
    spec = replace(base.spec, requantize=replace(base.spec.requantize, single_ratio=True))
    assert "single_ratio" in str(part(replace(base, spec=spec), "hardware"))


def test_changed_settings_tell_their_own_parts(base: Settings) -> None:
    before = part(base, "seed")
    assert part(replace(base, seed=base.seed + 1), "seed") == before + 1 and part(base, "seed") == before


def test_a_field_that_came_later_takes_none_of_that_name_elsewhere() -> None:
    """What is left out for folders of earlier versions is left out at any depth: no other part has such a field."""
    settings = settings_of(*BASE, "dataset=npz", "dataset.path=x.npz")
    fields = {field.name for field in dataclasses.fields(settings.dataset)}
    assert fields <= set(part(settings, "dataset")) | {"given"}
    assert "cell_state" not in str(part(settings, "hardware"))
