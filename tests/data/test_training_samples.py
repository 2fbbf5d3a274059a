"""Samples to train on: never those that judge, of the calibrate part or of a source of their own, and recorded."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantpipe.data import CallableDataset, DigitsDataset, NpzDataset
from quantpipe.data.holdout import with_holdout
from quantpipe.data.splits import Splits
from quantpipe.errors import ConfigError, DataError
from quantpipe.pipeline.inputs import record_of
from quantpipe.types import Samples, TensorInfo
from tests.data.helpers import FLAT, GREY8, RGB8, contents, write_npz

JUDGING = ("search", "evaluate", "judge")


def rows(samples: Samples | None) -> list[bytes]:
    assert samples is not None
    return contents(samples)


def assert_apart(splits: Splits) -> None:
    """No sample that judges is trained on, and none is trained on twice."""
    train = rows(splits.train)
    assert train and len(set(train)) == len(train)
    for role in JUDGING:
        samples = splits.roles.get(role)
        assert samples is None or not set(train) & set(rows(samples)), role


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("count", [8, 20, None])
def test_of_the_calibrate_part(count: int | None, shuffle: bool, tmp_path: Path) -> None:
    """The same samples come first: more of them hold those of calibration, and fewer are among these."""
    path = write_npz(tmp_path / "d.npz", 100)
    limits = {"calibrate": 12, "search": None, "evaluate": None}
    data = NpzDataset(path=str(path), samples=limits | {"train": count}, shuffle=shuffle)
    splits = with_holdout(data.splits(RGB8, 10, 0), 0.5, 0)
    assert splits.aside is not None
    if count is None:  # the default: the calibration samples
        assert splits.train is None and "train" not in splits.roles
        return
    assert_apart(splits)
    train, calibrate = rows(splits.train), rows(splits.calibrate)
    assert len(train) == count and len(calibrate) == 12
    assert train[:12] == calibrate[:count]


def test_sequences_are_not_divided() -> None:
    def target() -> Any:
        return [{"x": np.full(5, i, np.float32), "turn": i // 4} for i in range(64)]

    limits = {"calibrate": 4, "search": None, "evaluate": None, "train": 14}
    splits = CallableDataset(target=target, sequence="turn", samples=limits).splits(FLAT, None, 0)
    assert_apart(splits)
    turns = [{int(np.frombuffer(row, np.float32)[0]) // 4 for row in rows(s)} for s in (splits.train, splits.search)]
    assert not turns[0] & turns[1]


def test_the_digits() -> None:
    limits = {"calibrate": 32, "search": 64, "evaluate": 64}
    splits = DigitsDataset(samples=limits | {"train": 500}).splits(GREY8, 10, 0)
    assert_apart(splits)
    assert len(rows(splits.train)) == 500 and rows(splits.train)[:32] == rows(splits.calibrate)


def own_source(tmp_path: Path, **options: Any) -> NpzDataset:
    """One file that is divided; to train on, another with 30 samples of its own and 40 of the first."""
    whole, further = (np.load(write_npz(tmp_path / f"{n}.npz", 40, seed=n)) for n in (1, 2))
    arrays = {key: np.concatenate([further[key][:30], whole[key]]) for key in ("images", "labels")}
    np.savez(tmp_path / "train.npz", **arrays)
    every = {"calibrate": None, "search": None, "evaluate": None}
    train = {"path": str(tmp_path / "train.npz")}
    return NpzDataset(path=str(tmp_path / "1.npz"), train=train, samples=every, **options)


def test_of_a_source_of_their_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What judges is left out of it; what calibration has too may stay."""
    with caplog.at_level(logging.WARNING):
        splits = with_holdout(own_source(tmp_path).splits(RGB8, 10, 0), 0.5, 0)
    assert_apart(splits)
    judging = [rows(splits.roles[role]) for role in JUDGING]
    assert all(judging)
    dropped = sum(map(len, judging))
    assert len(rows(splits.train)) == 70 - dropped
    assert set(rows(splits.calibrate)) < set(rows(splits.train))
    assert f"{dropped} samples of the train split are also in search or evaluate" in caplog.text
    record = record_of(splits.roles["train"])
    assert record["samples"] == 70 - dropped and record["source"].endswith("train.npz")
    assert sum(last - first + 1 for first, last in record["duplicates"]) == dropped


def test_duplicates_may_be_allowed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    splits = own_source(tmp_path, duplicates="allow").splits(RGB8, 10, 0)
    assert len(rows(splits.train)) == 70 and not caplog.records


def test_beside_a_source_for_each_split(tmp_path: Path) -> None:
    paths = {n: str(write_npz(tmp_path / f"{n}.npz", 40, seed=n)) for n in (1, 2, 3)}
    sources = {"calibrate": {"path": paths[1]}, "evaluate": {"path": paths[2]}, "train": {"path": paths[3]}}
    splits = NpzDataset(**sources, samples={"train": 25}).splits(RGB8, 10, 0)
    assert_apart(splits)
    assert len(rows(splits.train)) == 25 and not set(rows(splits.train)) & set(rows(splits.calibrate))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"calibrate": 1, "evaluate": 2, "train": 2}, "dataset.evaluate.path and dataset.train.path share samples"),
        ({"calibrate": 1, "evaluate": 2, "search": 3, "train": 3}, "dataset.search.path and dataset.train.path share"),
        ({"calibrate": 1, "evaluate": 2, "train": 1}, "dataset.train.path is, or holds, what is divided or calibrated"),
        ({"path": 1, "train": 1}, "dataset.train.path is, or holds, what is divided or calibrated on"),
        ({"path": 1, "train": 9}, "from dataset.train.path"),
    ],
)
def test_sources_that_judge_are_rejected(given: dict[str, int], said: str, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        write_npz(tmp_path / f"{number}.npz", 40, seed=number)
    places = {role: str(tmp_path / f"{number}.npz") for role, number in given.items()}
    options: dict[str, Any] = {r: place if r == "path" else {"path": place} for r, place in places.items()}
    with pytest.raises(DataError, match=said):
        NpzDataset(**options).splits(RGB8, 10, 0)


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "all"])
def test_counts_that_are_none(count: Any, tmp_path: Path) -> None:
    path = str(write_npz(tmp_path / "d.npz"))
    with pytest.raises(ConfigError, match=r"dataset\.samples\.train"):
        NpzDataset(path=path, samples={"train": count}).splits(RGB8, 10, 0)


def test_all_samples_of_the_source_judge(tmp_path: Path) -> None:
    """A copy of the file that is evaluated on, under another name."""
    for name, seed in (("a", 1), ("b", 2), ("copy", 2)):
        write_npz(tmp_path / f"{name}.npz", 40, seed=seed)
    sources = {
        r: {"path": str(tmp_path / f"{n}.npz")} for r, n in (("calibrate", "a"), ("evaluate", "b"), ("train", "copy"))
    }
    with pytest.raises(DataError, match="all 40 samples of the train split are also in search or evaluate"):
        NpzDataset(**sources).splits(RGB8, 10, 0)


def test_samples_to_train_on_fit_the_model(tmp_path: Path) -> None:
    write_npz(tmp_path / "d.npz")
    np.savez(tmp_path / "t.npz", images=np.zeros((20, 9, 9, 3), np.uint8), labels=np.zeros(20, np.int64))
    data = NpzDataset(path=str(tmp_path / "d.npz"), train={"path": str(tmp_path / "t.npz")})
    with pytest.raises(DataError, match=r"t\.npz"):
        data.splits(RGB8, 10, 0)


def test_an_unknown_key_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"dataset\.train\.pth"):
        NpzDataset(path="d.npz", train={"pth": "t.npz"})


def test_inputs_of_other_names_keep_their_train_samples() -> None:
    """Splits that exchange their samples, as carried states do, exchange these too."""
    splits = DigitsDataset(samples={"train": 40}).splits([TensorInfo("image", (None, 1, 8, 8), "float32")], 10, 0)
    again = splits.with_roles(splits.roles)
    assert again.train is splits.train and again.roles.keys() == splits.roles.keys()
