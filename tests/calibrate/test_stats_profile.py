"""profile.yaml is readable YAML with exact numbers; the arrays of stats.npz give the same profile back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from calibrate_samples import KINDS, samples, stats_of

from quantpipe.calibrate import profile_from_arrays, profile_from_yaml, profile_yaml, stats_arrays
from quantpipe.calibrate.estimators import KL, MSE, MaxRange, MeanRange, MovingAverage, Percentile, Power2Range
from quantpipe.calibrate.yaml_profile import COARSE_BINS, coarse_histogram
from quantpipe.errors import ArtifactError
from quantpipe.types import PowerOfTwo, Profile, Symmetry, TensorSchema, TensorStats

FIELDS = [f for f in TensorStats.__dataclass_fields__ if f not in ("histogram", "batch_extremes")]


@pytest.fixture
def profile() -> Profile:
    tensors = {f"/{kind}/out:0 é": stats_of(samples(kind, 500), name=f"/{kind}/out:0 é") for kind in KINDS}
    tensors["yes"] = stats_of(np.full(3, 1e-30, np.float32), name="yes")
    tensors["zero"] = stats_of(np.zeros(3, np.float32), name="zero")
    tensors["bad"] = stats_of(np.asarray([np.nan, 1.0], np.float32), name="bad")
    tensors["foreign"] = TensorStats("foreign", 6, -1, 2, 0.5, 1.0, -1, 2, 2.0, np.asarray([0, 1, 2, 3]))
    extremes = TensorStats("extremes", 0, -1, 2, np.nan, np.nan, -1, 2, 2.0, np.zeros(0, np.int64))
    tensors["extremes"] = extremes
    return Profile("sha256:abc", 500, tensors, 1.25, 0.5, 100.1, {"file": "x", "unknown": ["a"]})


def same(a: Profile, b: Profile) -> bool:
    assert (a.model_hash, a.samples, a.seconds) == (b.model_hash, b.samples, b.seconds)
    assert (a.float_pass_seconds, a.peak_rss_mb) == (b.float_pass_seconds, b.peak_rss_mb)
    assert list(a.tensors) == list(b.tensors) and a.loaded == b.loaded
    for x, y in zip(a.tensors.values(), b.tensors.values(), strict=True):
        np.testing.assert_equal([getattr(x, f) for f in FIELDS], [getattr(y, f) for f in FIELDS])
        assert x.histogram.dtype == y.histogram.dtype == np.int64
        np.testing.assert_array_equal(x.histogram, y.histogram)
        np.testing.assert_array_equal(x.batch_extremes, y.batch_extremes)
    return True


def test_arrays_survive_an_npz_file(profile: Profile, tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "stats.npz", **stats_arrays(profile))  # type: ignore[arg-type]
    with np.load(tmp_path / "stats.npz", allow_pickle=False) as arrays:
        assert same(profile_from_arrays(arrays), profile)


def test_a_file_of_an_older_release_has_no_parts(profile: Profile) -> None:
    arrays = {name: array for name, array in stats_arrays(profile).items() if name not in ("parts", "folds")}
    assert all(not len(stats.folds) for stats in profile_from_arrays(arrays).tensors.values())


def test_the_readable_file_gives_the_same_profile(profile: Profile) -> None:
    none = TensorStats("none", 0, 0, 0, 0, 0, 0, 0, 1, np.zeros(0, np.int64)).folds  # the readable file has no parts
    tensors = {name: replace(stats, folds=none) for name, stats in profile.tensors.items()}
    assert same(profile_from_yaml(profile_yaml(profile)), replace(profile, tensors=tensors))


@pytest.mark.parametrize("symmetry", Symmetry)
@pytest.mark.parametrize("power", [PowerOfTwo.NONE, PowerOfTwo.UP])
def test_thresholds_survive_the_readable_file_exactly(profile: Profile, symmetry: Symmetry, power: PowerOfTwo) -> None:
    read, schema = profile_from_yaml(profile_yaml(profile)), TensorSchema(symmetry=symmetry, power_of_two=power)
    for estimator in (MaxRange(), Power2Range(), MeanRange(), MovingAverage(), Percentile(), MSE(), KL()):
        for name, stats in profile.tensors.items():
            if name in ("foreign", "extremes"):
                continue
            for bits in (2, 4, 8, 16):
                assert estimator(read.tensors[name], bits, schema) == estimator(stats, bits, schema)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("QuantpipeProfileVersion: '1.1'", "QuantpipeProfileVersion: '9'", "version 9; legal: 1.1"),
        ("ModelHash: ", "Model: ", "damaged"),
        ("FirstBin: 0", "FirstBin: 4095", "damaged.*longer than its bins"),
        ("Limit: 1.0", "Limit: .inf", "damaged.*no range"),
        ("---", "- {", "damaged"),
    ],
)
def test_a_damaged_readable_file_is_refused(profile: Profile, old: str, new: str, message: str) -> None:
    text = profile_yaml(profile)
    assert old in text
    with pytest.raises(ArtifactError, match=message) as caught:
        profile_from_yaml(text.replace(old, new), where="profile.yaml")
    assert "profile.yaml" in str(caught.value)


def test_a_profile_of_nothing_survives() -> None:
    empty = Profile("sha256:0", 0, {})
    assert same(profile_from_arrays(stats_arrays(empty)), empty)
    assert list(yaml.safe_load_all(profile_yaml(empty)))[2] == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"limit": None}, "lack the arrays limit"),
        ({"version": np.asarray("9.9")}, "version 9.9; legal: 1.1"),
        ({"count": np.zeros(1, np.int64)}, "damaged"),
        ({"histogram": np.zeros(7, np.int64)}, "damaged"),
        ({"batch_extremes": np.zeros((7, 2))}, "damaged"),
    ],
)
def test_damaged_arrays_are_refused_by_name(profile: Profile, change: dict[str, Any], message: str) -> None:
    arrays = {k: v for k, v in {**stats_arrays(profile), **change}.items() if v is not None}
    with pytest.raises(ArtifactError, match=message) as caught:
        profile_from_arrays(arrays, where="stats.npz")
    assert "stats.npz" in str(caught.value)


def test_yaml_has_glows_shape_and_exact_numbers(profile: Profile) -> None:
    text = profile_yaml(profile)
    version, head, tensors = yaml.safe_load_all(text)
    assert version == {"QuantpipeProfileVersion": "1.1"}
    assert head["ModelHash"] == "sha256:abc" and head["Samples"] == 500 and head["PeakRssMb"] == 100.1
    assert [t["NodeOutputName"] for t in tensors] == list(profile.tensors)
    assert "Histogram" not in tensors.pop()
    for entry, stats in zip(tensors, list(profile.tensors.values())[:-1], strict=True):
        assert (entry["Min"], entry["Max"], entry["Mean"]) == (stats.minimum, stats.maximum, stats.mean)
        assert (entry["Variance"], entry["BatchMin"]) == (stats.variance, stats.batch_minimum)
        assert isinstance(entry["Min"], float) and "e-" not in text
        assert sum(entry["Histogram"]) == entry["Count"] == stats.count
    assert profile_yaml(profile) == text


def test_coarse_histogram_spans_the_extremes() -> None:
    data = samples("swish")
    counts = coarse_histogram(stats_of(data))
    exact = np.histogram(data, COARSE_BINS, (data.min(), data.max()))[0]
    assert counts.sum() == data.size
    # Fine bins that straddle a coarse border are split in proportion.
    assert np.abs(counts - exact).max() <= 0.02 * data.size
