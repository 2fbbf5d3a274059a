"""No sample serves two splits, by content: copies are found wherever they lie, and left out of what is fitted."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantpipe.data import CallableDataset, ImageFolderDataset, NpzDataset, TableDataset
from quantpipe.data.duplicates import fingerprints
from quantpipe.data.few import ENOUGH, FEWEST, few_notes, refuse_few
from quantpipe.data.holdout import with_holdout
from quantpipe.data.splits import Splits
from quantpipe.errors import ConfigError, DataError
from quantpipe.pipeline.inputs import record_of
from quantpipe.types import TensorInfo
from tests.data.helpers import write_pictures

ROW = [TensorInfo("x", (None, 4), "float32")]
RGB8 = [TensorInfo("image", (None, 3, 8, 8), "float32")]
ALL = {"calibrate": None, "search": None, "evaluate": None}
NO_SAMPLES: dict[str, Any] = {"samples": ALL}


def contents(samples: Any) -> set[bytes]:
    return {row.tobytes() for batch in samples.batches(7) for row in next(iter(batch.inputs.values()))}


def disjoint(splits: Splits) -> bool:
    parts = [contents(samples) for samples in splits.roles.values()]
    return sum(map(len, parts)) == len(set().union(*parts))


def rows(count: int, copies: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """`count` different rows, of which the first `copies` come twice."""
    made = np.random.default_rng(seed).standard_normal((count, 4)).astype(np.float32)
    return np.concatenate([made, made[:copies]])


def test_rows_that_come_twice_serve_one_split(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.savez(tmp_path / "d.npz", images=rows(60, 30))
    source = {"path": str(tmp_path / "d.npz"), **NO_SAMPLES}
    allowed = NpzDataset(**source, duplicates="allow").splits(ROW, None, 0)
    assert not disjoint(allowed) and not caplog.records
    with caplog.at_level(logging.WARNING):
        splits = NpzDataset(**source).splits(ROW, None, 0)
    assert disjoint(splits)
    assert splits.evaluate.indices.tolist() == allowed.evaluate.indices.tolist(), "what judges stays as it is"
    dropped = len(allowed.calibrate) - len(splits.calibrate)
    assert dropped > 0 and f"{dropped} samples of the calibrate split are also in search or evaluate" in caplog.text
    record = record_of(splits.calibrate)
    listed = [i for first, last in record["duplicates"] for i in range(first, last + 1)]
    assert len(listed) == dropped and not set(listed) & set(splits.calibrate.indices.tolist())
    assert set(listed) | set(splits.calibrate.indices.tolist()) == set(allowed.calibrate.indices.tolist())


def test_dropped_samples_are_replaced_up_to_the_limit(tmp_path: Path) -> None:
    np.savez(tmp_path / "c.npz", images=rows(50, 0))
    np.savez(tmp_path / "e.npz", images=rows(5, 0))  # the first five of the others
    dataset = NpzDataset(
        calibrate={"path": str(tmp_path / "c.npz")}, evaluate={"path": str(tmp_path / "e.npz")},
        samples={"calibrate": 20, "search": 5, "evaluate": None},
    )  # fmt: skip
    splits = dataset.splits(ROW, None, 0)
    assert [len(s) for s in (splits.calibrate, splits.search, splits.evaluate)] == [20, 5, 5] and disjoint(splits)


def test_pictures_under_other_names_and_in_other_folders(tmp_path: Path) -> None:
    calibrate = write_pictures(tmp_path / "c", {"a": 8, "b": 8})
    evaluate = write_pictures(tmp_path / "e", {"a": 8, "b": 8}, start=500)
    for number, path in enumerate(sorted((calibrate / "a").iterdir())[:3]):
        shutil.copy(path, evaluate / "b" / f"copy{number}.png")
    options: dict[str, Any] = {"calibrate": {"path": str(calibrate)}, "evaluate": {"path": str(evaluate)}, **NO_SAMPLES}
    splits = ImageFolderDataset(**options).splits(RGB8, 2, 0)
    assert disjoint(splits) and len(splits.evaluate) == 19
    assert len(splits.calibrate) + len(splits.search) == 13
    assert not disjoint(ImageFolderDataset(**options, duplicates="allow").splits(RGB8, 2, 0))


def test_tables_and_iterables(tmp_path: Path) -> None:
    made = rows(40, 20)
    lines = ["a,b,c,d", *(",".join(map(str, row)) for row in made.tolist())]
    (tmp_path / "d.csv").write_text("\n".join(lines))
    assert disjoint(TableDataset(path=str(tmp_path / "d.csv"), **NO_SAMPLES).splits(ROW, None, 0))
    assert disjoint(CallableDataset(target=lambda: iter(made), **NO_SAMPLES).splits(ROW, None, 0))

    def by_split(split: str) -> Any:
        own = {"calibrate": rows(20, 0, 1), "search": rows(20, 0, 2), "evaluate": rows(20, 0, 3)}
        return iter([*own[split], *own["evaluate"][:5]])

    splits = CallableDataset(target=by_split, **NO_SAMPLES).splits(ROW, None, 0)
    assert disjoint(splits) and [len(s) for s in splits.roles.values()] == [20, 20, 25]


def test_what_is_set_aside_to_judge_shares_nothing_either(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", images=rows(60, 60))
    splits = NpzDataset(path=str(tmp_path / "d.npz"), **NO_SAMPLES).splits(ROW, None, 0)
    assert disjoint(with_holdout(splits, 0.5, 0))


def test_splits_that_hold_nothing_else_are_refused(tmp_path: Path) -> None:
    for name in ("c", "e"):
        np.savez(tmp_path / f"{name}.npz", images=rows(10, 0))
    source = {role: {"path": str(tmp_path / f"{role[0]}.npz")} for role in ("calibrate", "evaluate")}
    with pytest.raises(DataError, match=r"all \d+ samples of the search split are also in evaluate.*duplicates=allow"):
        NpzDataset(**source).splits(ROW, None, 0)
    assert NpzDataset(**source, duplicates="allow").splits(ROW, None, 0)
    with pytest.raises(ConfigError, match=r"dataset\.duplicates: is 'no'; legal are drop, allow"):
        NpzDataset(**source, duplicates="no").splits(ROW, None, 0)


def test_fingerprints_are_of_the_content(tmp_path: Path) -> None:
    made = rows(4, 4)
    np.savez(tmp_path / "d.npz", images=made, labels=np.arange(8))
    splits = NpzDataset(path=str(tmp_path / "d.npz"), duplicates="allow", **NO_SAMPLES).splits(ROW, None, 0)
    found = fingerprints(splits.evaluate.source, np.arange(8))
    assert len(set(found.tolist())) == 4 and found[:4].tolist() == found[4:].tolist()


class Many:
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count


def test_too_few_samples_are_refused_and_few_are_said() -> None:
    roles: Any = {"calibrate": Many(1), "search": Many(ENOUGH), "evaluate": Many(FEWEST)}
    with pytest.raises(DataError, match=r"calibrate has 1, and fewer than 4 samples .* dataset\.force_few=true"):
        refuse_few(roles, forced=False)
    refuse_few(roles, forced=True)
    refuse_few({**roles, "calibrate": Many(FEWEST), "judge": Many(1)}, forced=False)
    assert [note.split(":")[0] for note in few_notes(roles)] == [
        "calibrate has only 1 samples", "evaluate has only 4 samples"
    ]  # fmt: skip
