"""The cache of statistics: what is the same key, what is kept, and what a bad folder or file costs."""

from __future__ import annotations

import os
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quantpipe.artifacts import Origin
from quantpipe.artifacts.checkpoint import StateCheckpoint
from quantpipe.calibrate import cache as module
from quantpipe.calibrate.cache import StatsCache, cache_folder, merged
from quantpipe.calibrate.measure import Detail, measure
from quantpipe.graph.view import Graph
from quantpipe.types import Profile
from tests.ops.line import ArraySamples, Net, load, normal_samples


def net() -> Graph:
    made = Net()
    a = made.node("Relu", made.conv(made.input(None, 2, 4, 4), 2, 3), output="relu")
    made.output(made.conv(a, 3, 2))
    return load(made)


GRAPH = net()
SAMPLES = normal_samples(GRAPH, 6)


def profile(*tensors: str, extremes_only: bool = False, by_channel: tuple[str, ...] = ()) -> Profile:
    return measure(GRAPH, tensors, SAMPLES, 64, detail=Detail(extremes_only=extremes_only, by_channel=by_channel))


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path: Path, told: list[str]) -> StatsCache:
    return StatsCache.of(tmp_path / "cache", GRAPH, SAMPLES, told.append)


def test_nothing_then_what_was_written(cache: StatsCache, told: list[str]) -> None:
    assert cache.read() is None
    made = profile("x", "relu", by_channel=("relu",))
    cache.write(made)
    found = cache.read()
    assert found is not None and found.tensors.keys() == {"x", "relu"} and told == []
    for name, stats in found.tensors.items():
        np.testing.assert_array_equal(stats.histogram, made.tensors[name].histogram)
        assert (stats.minimum, stats.mean) == (made.tensors[name].minimum, made.tensors[name].mean)
    channels, expected = found.tensors["relu"].channels, made.tensors["relu"].channels
    assert channels is not None and expected is not None and channels.axis == 1
    np.testing.assert_array_equal(channels.table, expected.table)


def test_tensors_are_added_and_never_made_poorer(cache: StatsCache) -> None:
    cache.write(profile("relu"))
    cache.write(profile("x", "relu", extremes_only=True))
    found = cache.read()
    assert found is not None and found.tensors["relu"].full and not found.tensors["x"].full
    cache.write(profile("x"))
    found = cache.read()
    assert found is not None and found.tensors["x"].full
    by_channel = profile("relu", by_channel=("relu",)).tensors
    assert merged(found.tensors, by_channel)["relu"].channels is not None
    assert merged(by_channel, found.tensors)["relu"].channels is not None


def test_other_data_preprocessing_models_and_batches_are_other_files(cache: StatsCache, told: list[str]) -> None:
    other_data = StatsCache.of(cache.folder, GRAPH, replace(SAMPLES, digest="other"), told.append)
    other_model = StatsCache.of(cache.folder, replace(GRAPH, model_hash="sha256:1"), SAMPLES, told.append)
    renamed = replace(GRAPH, nodes=(replace(GRAPH.nodes[0], name="other"), *GRAPH.nodes[1:]))
    other_cleaning = StatsCache.of(cache.folder, renamed, SAMPLES, told.append)
    same = StatsCache.of(cache.folder, net(), ArraySamples(SAMPLES.inputs), told.append)
    assert len({c.path for c in (cache, other_data, other_model, other_cleaning)}) == 4
    assert replace(GRAPH).model_hash != same.origin.inputs["model"] or same.path == cache.path
    cache.write(profile("relu"))
    assert other_data.read() is other_model.read() is other_cleaning.read() is None


@pytest.mark.parametrize("part", ["attribute", "constant"])
def test_what_the_clean_up_wrote_is_part_of_the_key(cache: StatsCache, part: str, told: list[str]) -> None:
    """Names alone do not show another constant, such as that of a mask."""

    def written(value: float) -> Graph:
        made = Net()
        x = made.conv(made.input(None, 2, 4, 4), 2, 3)
        low = made.constant(np.float32(value if part == "constant" else 0))
        alpha = {"alpha": value} if part == "attribute" else {}
        made.output(made.node("Add", made.node("LeakyRelu", x, **alpha), low))
        return replace(load(made), model_hash="sha256:0")

    a, b, again = (StatsCache.of(cache.folder, written(v), SAMPLES, told.append).path for v in (0.25, 0.5, 0.25))
    assert a != b and a == again


def test_another_version_measures_again(cache: StatsCache, monkeypatch: pytest.MonkeyPatch, told: list[str]) -> None:
    monkeypatch.setattr(module, "__version__", "0")
    assert StatsCache.of(cache.folder, GRAPH, SAMPLES, told.append).path != cache.path


def test_a_damaged_file_is_told_and_replaced(cache: StatsCache, told: list[str]) -> None:
    cache.write(profile("relu"))
    cache.path.write_bytes(cache.path.read_bytes()[:-100])
    assert cache.read() is None
    assert "damaged" in told[0] and str(cache.path) in told[0]
    cache.write(profile("relu"))
    assert len(told) == 1 and cache.read() is not None


def test_a_file_of_another_key_is_not_taken(cache: StatsCache, told: list[str]) -> None:
    other = StatsCache.of(cache.folder, GRAPH, replace(SAMPLES, digest="other"), told.append)
    other.write(profile("relu"))
    other.path.rename(cache.path)
    assert cache.read() is None and "belongs to another model" in told[0]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, told: list[str]) -> None:
    (tmp_path / "file").write_text("")
    cache = StatsCache.of(tmp_path / "file" / "below", GRAPH, SAMPLES, told.append)
    assert cache.read() is None
    cache.write(profile("relu"))
    assert len(told) == 1 and "cannot be written" in told[0] and "calibrate.cache" in told[0]


def test_reading_needs_no_writing(cache: StatsCache, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write(profile("relu"))

    def refuse(*arguments: object) -> None:
        raise PermissionError("read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    assert cache.read() is not None and told == []


def test_the_files_used_longest_ago_go_first(
    cache: StatsCache, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = profile("relu")
    files = [StatsCache.of(cache.folder, GRAPH, replace(SAMPLES, digest=str(i)), told.append) for i in range(4)]
    for i, one in enumerate(files[:3]):
        one.write(made)
        os.utime(one.path, (1000 + i, 1000 + i))
    assert files[0].read() is not None  # used again: the oldest is now the second
    monkeypatch.setattr(module, "LIMIT_BYTES", 3 * files[0].path.stat().st_size + 100)
    files[3].write(made)
    assert [f.path.is_file() for f in files] == [True, False, True, True]
    monkeypatch.setattr(module, "LIMIT_BYTES", 1)
    files[3].write(made)
    assert [f.path.is_file() for f in files] == [False, False, False, True], "the one just written stays"


def test_many_writers_leave_a_whole_file(cache: StatsCache, told: list[str]) -> None:
    parts = [profile("x"), profile("relu")]
    threads = [threading.Thread(target=cache.write, args=(parts[i % 2],)) for i in range(12)]
    for thread in threads:
        thread.start()
    seen = [cache.read() for _ in range(20)]
    for thread in threads:
        thread.join()
    found = cache.read()
    assert told == [] and found is not None and found.tensors.keys() <= {"x", "relu"}
    assert all(s is None or s.tensors.keys() <= {"x", "relu"} for s in seen)
    assert [p.name for p in cache.path.parent.iterdir()] == [cache.path.name]


def test_which_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("QUANTPIPE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder("auto") == tmp_path / ".cache" / "quantpipe"
    assert cache_folder("~/mine") == tmp_path / "mine"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder("auto") == Path("/xdg/quantpipe")
    monkeypatch.setenv("QUANTPIPE_CACHE", "/here")
    assert cache_folder("auto") == Path("/here") and cache_folder("/there") == Path("/there")
    monkeypatch.setenv("QUANTPIPE_CACHE", "none")
    assert cache_folder("auto") is None and cache_folder("none") is None


def test_a_partial_state_is_taken_by_its_own_measurement_only(tmp_path: Path) -> None:
    path, origin = tmp_path / "calibrate" / "partial.npz", Origin("calibrate/partial", {"tensors": "a"})
    mine, other = StateCheckpoint(path, origin), StateCheckpoint(path, Origin("calibrate/partial", {"tensors": "b"}))
    assert mine.read() is None
    mine.write({"0.recent": np.arange(3.0)})
    state = mine.read()
    assert state is not None and state["0.recent"].tolist() == [0, 1, 2]
    with zipfile.ZipFile(path) as archive:
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}, "it is soon deleted"
    assert other.read() is None
    path.write_bytes(path.read_bytes()[:50])
    assert mine.read() is None, "a damaged state costs a measurement, not the run"
