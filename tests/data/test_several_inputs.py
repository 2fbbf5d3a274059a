"""Models with several inputs: arrays by name, by map; what is missing is named. What was used is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantpipe.data import ImageFolderDataset, NpzDataset
from quantpipe.data.samples import ranges
from quantpipe.data.subset import First
from quantpipe.errors import QuantpipeError
from quantpipe.pipeline.inputs import record_of
from quantpipe.types import TensorInfo
from tests.data.helpers import FLAT, RGB8, labels_of, write_pictures

PORTS = [*RGB8, *FLAT, TensorInfo("ids", (None, 4), "int64")]
ALL = {"calibrate": None, "search": None, "evaluate": None}


def arrays(count: int = 12) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "image": rng.integers(0, 256, (count, 8, 8, 3), np.uint8),
        "x": rng.standard_normal((count, 5)),
        "ids": rng.integers(0, 99, (count, 4)),
        "labels": np.arange(count) % 3,
    }


@pytest.mark.parametrize("mapped", [False, True])
def test_an_array_for_each_input(tmp_path: Path, mapped: bool) -> None:
    stored = arrays()
    names = {name: name.upper() if mapped and name != "labels" else name for name in stored}
    np.savez(tmp_path / "d.npz", **{names[name]: array for name, array in stored.items()})
    keys = {"inputs": {n: names[n] for n in ("image", "x", "ids")}} if mapped else {}
    dataset = NpzDataset(path=str(tmp_path / "d.npz"), keys=keys, samples=ALL, preprocess={"scale": "1/255"})
    splits = dataset.splits(PORTS, 3, 0)
    for batch in splits.evaluate.batches(4):
        chosen = batch.indices
        np.testing.assert_array_equal(batch.inputs["ids"], stored["ids"][chosen])  # integers are not scaled
        np.testing.assert_allclose(batch.inputs["x"], stored["x"][chosen] / 255, rtol=1e-6)
        np.testing.assert_allclose(
            batch.inputs["image"], stored["image"][chosen].transpose(0, 3, 1, 2) / 255, rtol=1e-6
        )
    assert labels_of(splits.evaluate) == [i % 3 for i in splits.evaluate.indices]


def test_one_input_by_its_own_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=arrays()["x"])
    assert next(NpzDataset(path=str(tmp_path / "d.npz")).splits(FLAT, None, 0).search.batches(1)).inputs["x"].shape == (
        1,
        5,
    )


@pytest.mark.parametrize(
    ("changes", "keys", "match"),
    [
        (
            {"x": None},
            {},
            r"no data for model input 'x' \(\[N, 5\] float32\).*samples hold image, ids.*dataset\.keys\.inputs",
        ),
        ({"x": None, "ids": None}, {}, r"'x' \(\[N, 5\] float32\), 'ids' \(\[N, 4\] int64\)"),
        ({}, {"inputs": {"y": "x"}}, r"dataset\.keys\.inputs\.y: is no input of the model.*image, x, ids"),
        ({}, {"inputs": {"x": "xx"}}, r"no array 'xx'"),
        ({"x": np.zeros((11, 5))}, {}, r"must have one row per sample each.*\[x\] has 11"),
        ({"ids": np.zeros((12, 3), np.int64)}, {}, r"'ids' takes \[N, 4\] int64, but a sample is \[N, 3\]"),
        ({"ids": np.full((12, 4), 0.5)}, {}, r"'ids' takes \[N, 4\] int64, but samples are float64"),
    ],
)
def test_refused(tmp_path: Path, changes: dict[str, Any], keys: dict[str, Any], match: str) -> None:
    np.savez(tmp_path / "d.npz", **{k: v for k, v in {**arrays(), **changes}.items() if v is not None})
    with pytest.raises(QuantpipeError, match=match):
        NpzDataset(path=str(tmp_path / "d.npz"), keys=keys).splits(PORTS, 3, 0)


def test_a_scalar_is_given_as_a_constant(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **arrays())
    with pytest.raises(QuantpipeError, match=r"'rate' is a scalar, .* 'model\.fixed=\{rate: VALUE\}'"):
        NpzDataset(path=str(tmp_path / "d.npz")).splits([*PORTS, TensorInfo("rate", (), "int64")], None, 0)


def test_pictures_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path, {"a": 8, "b": 8})
    before = ImageFolderDataset(path=str(folder), samples=ALL).splits(RGB8, 2, 0)
    (folder / "b" / "003.png").write_text("no picture")
    after = ImageFolderDataset(path=str(folder), samples=ALL, on_error="skip").splits(RGB8, 2, 0)
    for role in ("calibrate", "search", "evaluate"):
        old, new = getattr(before, role), getattr(after, role)
        assert new.indices.tolist() == [i for i in old.indices.tolist() if i != 7]  # the other splits are as they were
        assert labels_of(new) == [i % 2 for i in new.indices]
    skipped = [s for part in (after.calibrate, after.search, after.evaluate) for s in part.skipped]
    assert [(s.index, Path(s.name).name) for s in skipped] == [(7, "003.png")]
    for path in folder.rglob("*.png"):
        path.write_text("none")
    with pytest.raises(QuantpipeError, match=r"none of 8 samples can be used; the first: .*is not a picture"):
        ImageFolderDataset(path=str(folder), on_error="skip").splits(RGB8, 2, 0)


def test_what_was_used_is_recorded(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", images=arrays()["x"])
    splits = NpzDataset(path=str(tmp_path / "d.npz"), samples=ALL).splits(FLAT, None, 0)
    record = record_of(splits.evaluate)
    listed = [i for first, last in record["indices"] for i in range(first, last + 1)]
    assert listed == splits.evaluate.indices.tolist()
    assert record["source"].endswith("d.npz") and record["digest"] == splits.evaluate.digest
    short = record_of(First(splits.evaluate, 4))
    assert [i for first, last in short["indices"] for i in range(first, last + 1)] == listed[:4]
    assert short["samples"] == 4


def test_ranges() -> None:
    assert ranges(np.array([], np.int64)) == []
    assert ranges(np.array([3, 4, 5, 9, 8, 1, 2])) == [[3, 5], [9, 9], [8, 8], [1, 2]]


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_left_out(tmp_path: Path, wrong: float) -> None:
    values = arrays()["x"]
    values[[2, 9], 1] = wrong
    np.savez(tmp_path / "d.npz", images=values, labels=np.arange(12) % 4)
    splits = NpzDataset(path=str(tmp_path / "d.npz"), samples=ALL, on_error="skip").splits(FLAT, 4, 0)
    parts = (splits.calibrate, splits.search, splits.evaluate)
    assert sorted(int(i) for part in parts for i in part.indices) == [i for i in range(12) if i not in (2, 9)]
    for part in parts:
        assert labels_of(part) == [i % 4 for i in part.indices]
    reasons = [s["reason"] for part in parts for s in part.record["skipped"]]
    assert len(reasons) == 2 and all("which is not finite" in r for r in reasons)
