"""dataset.groups: a column with one value per sample, from every kind of source that has one; bad ones are rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantpipe.data import GivenDataset, ImageFolderDataset, NpzDataset, TableDataset
from quantpipe.data.subset import First
from quantpipe.errors import ConfigError, DataError, QuantpipeError
from quantpipe.types import TensorInfo, groups_of, sample_name
from tests.data.helpers import RGB8, write_pictures

FLAT = [TensorInfo("x", (None, 3), "float32")]


def npz(folder: Path, groups: Any) -> NpzDataset:
    x = np.arange(60, dtype=np.float32).reshape(20, 3)
    np.savez(folder / "all.npz", images=x, groups=groups)
    return NpzDataset(path=str(folder / "all.npz"), groups="groups")


def test_the_groups_of_a_split_follow_its_samples(tmp_path: Path) -> None:
    names = np.array([f"g{i % 3}" for i in range(20)])
    samples = npz(tmp_path, names).splits(FLAT, None, 0).evaluate
    rows = np.concatenate([batch.indices for batch in samples.batches(4)])
    found = groups_of(samples)
    assert found is not None and found.tolist() == names[rows].tolist()
    cut = groups_of(First(samples, 3))
    assert cut is not None and cut.tolist() == names[rows[:3]].tolist()
    assert str(rows[1]) in sample_name(First(samples, 3), 1)


def test_integers_are_groups_and_other_groups_are_other_data(tmp_path: Path) -> None:
    digests = [npz(tmp_path, np.arange(20) // n).splits(FLAT, None, 0).evaluate.digest for n in (5, 10)]
    assert digests[0] != digests[1]


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (np.arange(7), r"shape \[7\].*\[20\]"),
        (np.zeros((20, 2), int), r"shape \[20, 2\]"),
        (np.linspace(0, 1, 20), "float64.*integers and texts"),
    ],
)
def test_groups_that_do_not_fit_are_rejected(tmp_path: Path, groups: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        npz(tmp_path, groups).splits(FLAT, None, 0)


def test_unknown_columns_are_rejected(tmp_path: Path) -> None:
    npz(tmp_path, np.arange(20))
    with pytest.raises(DataError, match=r"group.*did you mean 'groups'"):
        NpzDataset(path=str(tmp_path / "all.npz"), groups="group").splits(FLAT, None, 0)
    with pytest.raises(ConfigError, match=r"dataset\.groups"):
        NpzDataset(path=str(tmp_path / "all.npz"), groups=3)  # type: ignore[arg-type]


def test_a_column_of_a_table(tmp_path: Path) -> None:
    rows = "\n".join(f"{i},{i + 1},{i + 2},{'ab'[i % 2]}" for i in range(20))
    (tmp_path / "t.csv").write_text(f"a,b,c,room\n{rows}\n")
    samples = TableDataset(path=str(tmp_path / "t.csv"), groups="room").splits(FLAT, None, 0).evaluate
    assert set(groups_of(samples) if groups_of(samples) is not None else ()) == {"a", "b"}
    with pytest.raises(QuantpipeError, match=r"dataset\.groups"):
        TableDataset(path=str(tmp_path / "t.csv"), groups="rom").splits(FLAT, None, 0)


def test_a_file_of_groups_for_pictures(tmp_path: Path) -> None:
    write_pictures(tmp_path / "p", {"cat": 9, "dog": 9})
    files = sorted(path for path in (tmp_path / "p").rglob("*.*") if path.is_file())
    lines = [
        f"{path.relative_to(tmp_path / 'p').as_posix()},{'night' if n % 2 else 'day'}" for n, path in enumerate(files)
    ]
    (tmp_path / "g.csv").write_text("file,group\n" + "\n".join(lines) + "\n")
    options = {"path": str(tmp_path / "p"), "force_few": True, "groups": str(tmp_path / "g.csv")}
    samples = ImageFolderDataset(**options).splits(RGB8, None, 0).evaluate  # type: ignore[arg-type]
    found = groups_of(samples)
    assert found is not None and set(found) <= {"night", "day"}
    (tmp_path / "g.csv").write_text("file,group\n" + "\n".join(lines[:1]) + "\n")
    with pytest.raises(DataError, match="has no row for"):
        ImageFolderDataset(**options).splits(RGB8, None, 0)  # type: ignore[arg-type]


def test_an_entry_of_samples_in_memory() -> None:
    arrays = {"x": np.zeros((20, 3), np.float32) + np.arange(20)[:, None], "room": np.arange(20) % 2}
    samples = GivenDataset(given=arrays, groups="room").splits(FLAT, None, 0).evaluate
    assert set(groups_of(samples) if groups_of(samples) is not None else ()) == {"0", "1"}
    each = [{"x": np.full(3, i, np.float32), "room": i % 2} for i in range(20)]
    samples = GivenDataset(given=each, groups="room").splits(FLAT, None, 0).evaluate
    assert set(groups_of(samples) if groups_of(samples) is not None else ()) == {"0", "1"}
    with pytest.raises(DataError, match="room2"):
        GivenDataset(given=arrays, groups="room2").splits(FLAT, None, 0)
