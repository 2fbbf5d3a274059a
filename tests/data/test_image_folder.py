from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from quantpipe.data import ImageFolderDataset
from quantpipe.errors import DataError, QuantpipeError
from quantpipe.types import TensorInfo
from tests.data.helpers import GREY8, RGB8, assert_disjoint, contents, count_right, labels_of, write_pictures
from tests.zoo import requires_zoo, zoo

ALL = {"calibrate": None, "search": None, "evaluate": None}


def write_csv(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_sorted_sub_folders_are_the_classes(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "d", {"cat": 8, "ant": 8, "bee": 8})
    splits = ImageFolderDataset(path=str(folder), samples=ALL).splits(RGB8, 3, seed=0)
    assert [len(s) for s in (splits.calibrate, splits.search, splits.evaluate)] == [6, 6, 12]
    assert_disjoint(splits)
    everything = [s for split in (splits.calibrate, splits.search, splits.evaluate) for s in labels_of(split)]
    assert sorted(everything) == [0] * 8 + [1] * 8 + [2] * 8


def test_first_samples_take_turns_among_the_classes(tmp_path: Path) -> None:
    write_pictures(tmp_path / "a", {"ant": 1})
    folder = write_pictures(tmp_path / "b", {"bee": 3, "ant": 2, "cat": 1}, start=50)
    dataset = ImageFolderDataset(
        calibrate={"path": str(folder)}, search={"path": str(tmp_path / "a")}, evaluate={"path": str(folder / "nope")}
    )
    with pytest.raises(DataError, match=r"no such file or folder"):
        dataset.splits(RGB8, 3, 0)
    other = write_pictures(tmp_path / "c", {"ant": 1}, start=90)
    splits = ImageFolderDataset(
        calibrate={"path": str(folder)}, search={"path": str(tmp_path / "a")}, evaluate={"path": str(other)}
    ).splits(RGB8, 3, 0)
    assert labels_of(splits.calibrate) == [0, 1, 2, 0, 1, 1]
    assert_disjoint(splits)


def test_classes_are_counted_over_all_sources(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = write_pictures(tmp_path / "a", {"ant": 4, "cat": 4})
    second = write_pictures(tmp_path / "b", {"bee": 2, "cat": 2}, start=50)
    dataset = ImageFolderDataset(calibrate={"path": str(first)}, evaluate={"path": str(second)})
    splits = dataset.splits(RGB8, 7, seed=0)
    assert labels_of(splits.evaluate) == [1, 2, 1, 2]
    assert set(labels_of(splits.calibrate) + labels_of(splits.search)) == {0, 2}
    assert "there are 3 sub-folders for 7 classes" in caplog.text
    assert_disjoint(splits)


def test_labels_from_csv_by_sub_folder(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "d", {"n01": 4, "n02": 4})
    labels = write_csv(tmp_path / "l.csv", "wnid,index,name\nn02,5,bee\nn01,9,ant\nn03,1,cat\n")
    splits = ImageFolderDataset(path=str(folder), labels=labels).splits(RGB8, 10, 0)
    assert set(labels_of(splits.evaluate)) <= {5, 9}
    assert splits.evaluate.labelled


def test_labels_from_csv_by_file_in_a_flat_folder(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "d", {"": 4})
    labels = write_csv(tmp_path / "l.csv", "file,class\n000.png,3\n001,2\n002.png,1\n003,0\n")
    dataset = ImageFolderDataset(path=str(folder), labels=labels, label_columns=["file", "class"])
    splits = dataset.splits(RGB8, 10, 0)
    for samples in (splits.calibrate, splits.search, splits.evaluate):
        for batch in samples.batches(1):
            assert batch.labels is not None
            assert batch.labels[0] == 3 - batch.indices[0]


def test_flat_folder_is_unlabelled(tmp_path: Path) -> None:
    splits = ImageFolderDataset(path=str(write_pictures(tmp_path, {"": 8}))).splits(RGB8, 10, 0)
    assert not splits.evaluate.labelled
    assert next(splits.evaluate.batches(2)).labels is None


def test_channels_and_size_follow_the_model(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path, {"a": 4, "b": 4}, size=(10, 12))
    sized = {"size": [8, 8]}
    grey = ImageFolderDataset(path=str(folder), preprocess=sized).splits(GREY8, 2, 0)
    assert next(grey.evaluate.batches(4)).inputs["image"].shape == (4, 1, 8, 8)
    nhwc = [TensorInfo("x", (None, 8, 8, 3), "uint8")]
    colour = ImageFolderDataset(path=str(folder), preprocess={**sized, "layout": "NHWC"}).splits(nhwc, 2, 0)
    assert next(colour.evaluate.batches(4)).inputs["x"].dtype == np.uint8
    last = [TensorInfo("x", (None, 8, 8, 1), "uint8")]
    shown = ImageFolderDataset(path=str(folder), preprocess=sized).splits(last, 2, 0)
    assert next(shown.evaluate.batches(4)).inputs["x"].shape == (4, 8, 8, 1), "its last axis shows the layout"


def test_batches_are_stable_and_digest_names_the_content(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path, {"a": 6, "b": 6})
    first, again = (ImageFolderDataset(path=str(folder)).splits(RGB8, 2, 0).evaluate for _ in range(2))
    scaled = ImageFolderDataset(path=str(folder), preprocess={"scale": "1/255"}).splits(RGB8, 2, 0).evaluate
    assert contents(first) == contents(again) == contents(first)
    assert first.digest == again.digest != scaled.digest
    write_pictures(tmp_path, {"a": 6, "b": 6}, start=100)
    changed = ImageFolderDataset(path=str(folder)).splits(RGB8, 2, 0).evaluate
    assert changed.digest != first.digest


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ("wnid,number\na,1\n", r"no column 'index'.*wnid, number.*dataset\.label_columns"),
        ("wnid,index\na,one\n", r"line 2.*'one'.*not a class index"),
        ("wnid,index\na,0\na,1\n", r"line 3.*two class indices"),
        ("wnid,index\na,0\n", r"no row for 'b'"),
        ("wnid,index\na,0\nb,-1\n", r"label -1"),
        ("wnid,index\na,0\nb,2\n", r"label 2.*0 to 1"),
        ("", r"nothing"),
    ],
)
def test_csv_that_cannot_be_used(tmp_path: Path, table: str, match: str) -> None:
    folder = write_pictures(tmp_path / "d", {"a": 4, "b": 4})
    labels = write_csv(tmp_path / "l.csv", table)
    with pytest.raises(DataError, match=match):
        ImageFolderDataset(path=str(folder), labels=labels).splits(RGB8, 2, 0)


def test_missing_csv_and_wrong_columns(tmp_path: Path) -> None:
    folder = str(write_pictures(tmp_path / "d", {"a": 4}))
    with pytest.raises(DataError, match=r"l\.csv: no such file"):
        ImageFolderDataset(path=folder, labels=str(tmp_path / "l.csv")).splits(RGB8, 2, 0)
    with pytest.raises(QuantpipeError, match=r"dataset\.label_columns"):
        ImageFolderDataset(path=folder, labels=str(tmp_path / "l.csv"), label_columns=["a"]).splits(RGB8, 2, 0)


def spoil(folder: Path, how: str) -> None:
    """Make the folder unusable in one way."""
    target = folder / "a" / "002.png"
    if how == "text":
        target.write_text("not a picture")
    elif how == "truncated":
        target.write_bytes(target.read_bytes()[:60])
    elif how == "deep":
        Image.fromarray(np.zeros((8, 8), np.uint16)).save(target)
    elif how == "size":
        Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(target)
    elif how == "loose":
        target.rename(folder / "loose.png")
    else:
        for path in folder.rglob("*.png"):
            path.unlink()


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ("text", r"002\.png: is not a picture"),
        ("truncated", r"002\.png: is not a picture"),
        ("deep", r"002\.png: has more than 8 bits"),
        ("size", r"dataset\.preprocess\.size"),
        ("loose", r"mixes pictures \(loose\.png"),
        ("empty", r"holds no pictures"),
    ],
)
def test_folder_that_cannot_be_used(tmp_path: Path, how: str, match: str) -> None:
    folder = write_pictures(tmp_path, {"a": 6, "b": 6})
    spoil(folder, how)
    with pytest.raises(DataError, match=match) as caught:
        splits = ImageFolderDataset(path=str(folder)).splits(RGB8, 2, 0)
        for samples in (splits.calibrate, splits.search, splits.evaluate):
            contents(samples)
    assert "\n" not in str(caught.value)


def test_unequal_pictures_for_a_model_with_free_size(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path, {"a": 6, "b": 6})
    spoil(folder, "size")
    port: Any = [TensorInfo("x", (None, 3, None, None), "float32")]
    splits = ImageFolderDataset(path=str(folder)).splits(port, 2, 0)
    batches = [b for samples in (splits.calibrate, splits.search, splits.evaluate) for b in samples.batches(64)]
    assert sum(len(b) for b in batches) == 12
    assert sorted({b.inputs["x"].shape[1:] for b in batches}) == [(3, 8, 8), (3, 9, 9)]


def test_a_file_is_not_a_folder_and_nested_sources_overlap(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "d", {"a": 4, "b": 4})
    with pytest.raises(DataError, match=r"is a file"):
        ImageFolderDataset(path=str(folder / "a" / "000.png")).splits(RGB8, 2, 0)
    with pytest.raises(DataError, match=r"share samples"):
        ImageFolderDataset(calibrate={"path": str(folder / "a")}, evaluate={"path": str(folder)}).splits(RGB8, 2, 0)


@requires_zoo
@pytest.mark.program
def test_zoo_efficientnet_lite0_gets_390_of_436_right() -> None:
    dataset = ImageFolderDataset(
        calibrate={"path": str(zoo("data/imagenet/calib"))},
        evaluate={"path": str(zoo("data/imagenet/val"))},
        labels=str(zoo("data/imagenet/labels.csv")),
        preprocess={"mean": 127, "std": 128},
    )
    splits = dataset.splits([TensorInfo("input", (None, 3, 224, 224), "float32")], 1000, seed=0)
    assert len(splits.evaluate) == 436
    model = zoo("models/imagenet_efficientnet_lite0.onnx")
    assert count_right(model, splits.evaluate, batch=16) == 390
