from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantpipe.data import NpzDataset
from quantpipe.errors import ConfigError, DataError, QuantpipeError
from quantpipe.types import TensorInfo
from tests.data.helpers import FLAT, RGB8, assert_disjoint, contents, count_right, labels_of, write_npz
from tests.zoo import requires_zoo, zoo

ALL = {"calibrate": None, "search": None, "evaluate": None}


@pytest.mark.parametrize("compressed", [False, True])
def test_one_source_is_divided(tmp_path: Path, compressed: bool) -> None:
    path = write_npz(tmp_path / "d.npz", compressed=compressed)
    splits = NpzDataset(path=str(path), samples=ALL).splits(RGB8, 10, seed=3)
    assert [len(s) for s in (splits.calibrate, splits.search, splits.evaluate)] == [10, 10, 20]
    assert_disjoint(splits)
    with np.load(path) as stored:
        for batch in splits.evaluate.batches(6):
            assert (np.diff(batch.indices) > 0).all()
            np.testing.assert_array_equal(
                batch.inputs["image"], stored["images"][batch.indices].transpose(0, 3, 1, 2).astype(np.float32)
            )
            np.testing.assert_array_equal(batch.labels, stored["labels"][batch.indices])


@pytest.mark.parametrize("kind", ["uint8", "float32"])
def test_a_model_with_channels_last_takes_pictures_as_they_are(tmp_path: Path, kind: str) -> None:
    """Its last axis shows it, so no option is needed, and means are per channel."""
    path = write_npz(tmp_path / "d.npz")
    last = [TensorInfo("image", (None, 8, 8, 3), kind)]
    dataset = NpzDataset(path=str(path), samples=ALL, preprocess={} if kind == "uint8" else {"mean": [1, 2, 3]})
    batch = next(iter(dataset.splits(last, 10, seed=3).evaluate.batches(6)))
    with np.load(path) as stored:
        images = stored["images"][batch.indices]
    np.testing.assert_array_equal(batch.inputs["image"], images if kind == "uint8" else images - np.float32([1, 2, 3]))


def test_two_sources_set_search_samples_aside(tmp_path: Path) -> None:
    first, second = write_npz(tmp_path / "a.npz"), write_npz(tmp_path / "b.npz", seed=1)
    dataset = NpzDataset(calibrate={"path": str(first)}, search={"share": 0.1}, evaluate={"path": str(second)})
    splits = dataset.splits(RGB8, 10, seed=0)
    assert [len(s) for s in (splits.calibrate, splits.search, splits.evaluate)] == [36, 4, 40]
    assert_disjoint(splits)


def test_three_sources(tmp_path: Path) -> None:
    paths = [write_npz(tmp_path / f"{i}.npz", seed=i) for i in range(3)]
    roles = [{"path": str(p)} for p in paths]
    splits = NpzDataset(calibrate=roles[0], search=roles[1], evaluate=roles[2]).splits(RGB8, 10, seed=0)
    assert [len(s) for s in (splits.calibrate, splits.search, splits.evaluate)] == [40, 40, 40]
    assert_disjoint(splits)


def test_batches_are_stable_and_digest_names_the_content(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "d.npz")
    samples = NpzDataset(path=str(path)).splits(RGB8, 10, 0).evaluate
    assert contents(samples) == contents(samples)
    assert labels_of(samples) == labels_of(samples)
    assert [len(b) for b in samples.batches(8)] == [8, 8, 4]
    same = NpzDataset(path=str(write_npz(tmp_path / "z.npz", compressed=True))).splits(RGB8, 10, 0).evaluate
    scaled = NpzDataset(path=str(path), preprocess={"scale": "1/255"}).splits(RGB8, 10, 0).evaluate
    fewer = NpzDataset(path=str(path), samples={"evaluate": 19}).splits(RGB8, 10, 0).evaluate
    other = NpzDataset(path=str(write_npz(tmp_path / "o.npz", seed=9))).splits(RGB8, 10, 0).evaluate
    unlabelled = NpzDataset(path=str(path), keys={"labels": None}).splits(RGB8, 10, 0).evaluate
    assert samples.digest == same.digest
    assert len({s.digest for s in (samples, scaled, fewer, other, unlabelled)}) == 5
    assert len(fewer) == 19
    assert contents(fewer) == contents(samples)[:19]


@pytest.mark.parametrize("compressed", [False, True])
def test_samples_travel_to_other_processes(tmp_path: Path, compressed: bool) -> None:
    path = write_npz(tmp_path / "d.npz", compressed=compressed)
    samples = NpzDataset(path=str(path)).splits(RGB8, 10, 0).evaluate
    assert contents(pickle.loads(pickle.dumps(samples))) == contents(samples)


def test_features_from_a_plain_array(tmp_path: Path) -> None:
    features = np.asfortranarray(np.random.default_rng(0).normal(size=(20, 5)))
    np.save(tmp_path / "x.npy", features)
    splits = NpzDataset(path=str(tmp_path / "x.npy"), preprocess={"mean": [1, 2, 3, 4, 5]}).splits(FLAT, 5, 0)
    batch = next(splits.evaluate.batches(4))
    assert not splits.evaluate.labelled
    assert batch.labels is None
    np.testing.assert_allclose(batch.inputs["x"], features[batch.indices] - [1, 2, 3, 4, 5], rtol=1e-6)


def test_integer_inputs_stay_integers(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", images=np.arange(60).reshape(12, 5) + 2**40)
    splits = NpzDataset(path=str(tmp_path / "t.npz")).splits([TensorInfo("ids", (None, None), "int64")], None, 0)
    batch = next(splits.search.batches(3))
    assert batch.inputs["ids"].dtype == np.int64
    assert batch.inputs["ids"][0, 0] == batch.indices[0] * 5 + 2**40


def arrays(count: int = 12, **changes: Any) -> dict[str, Any]:
    base = {"images": np.zeros((count, 8, 8, 3), np.uint8), "labels": np.zeros(count, np.int64)}
    return {k: v for k, v in {**base, **changes}.items() if v is not None}


def with_label(value: int) -> dict[str, Any]:
    labels = np.zeros(12, np.int64)
    labels[7] = value
    return arrays(labels=labels)


@pytest.mark.parametrize(
    ("stored", "config", "match"),
    [
        (with_label(-1), {}, r"sample 7 has label -1.*0 to 9"),
        (with_label(10), {}, r"sample 7 has label 10.*10 classes"),
        (arrays(10, labels=np.arange(1, 11)), {}, r"counted from 1"),
        (arrays(labels=np.zeros(11, np.int64)), {}, r"12 images but 11 labels"),
        (arrays(labels=np.zeros(12)), {}, r"labels are float64"),
        (arrays(labels=np.zeros((12, 10), np.int64)), {}, r"One-hot"),
        (arrays(0), {}, r"holds no samples"),
        (arrays(2), {}, r"leave none to"),
        (
            arrays(images=None, pictures=np.zeros((3, 8, 8, 3)), more=np.zeros((3, 8, 8, 3))),
            {},
            r"no array 'images'.*labels, pictures, more.*dataset\.keys",
        ),
        (arrays(images=None), {}, r"no array 'images'.*labels.*dataset\.keys"),
        (arrays(images=None), {"keys": {"labels": None}}, r"no array 'images'.*labels.*dataset\.keys"),
        (arrays(images=None, x=np.zeros((12, 8, 8, 3))), {"keys": {"images": "y"}}, r"no array 'y'.*labels, x"),
        (arrays(), {"keys": {"labels": "lables"}}, r"no array 'lables'.*did you mean 'labels'"),
        (arrays(images=np.zeros((12, 8, 8, 3), np.float32)), {}, r"Set dataset\.source_layout=NHWC and"),
        (
            arrays(images=np.zeros((12, 3, 8, 8), np.uint8)),
            {"source_layout": "NCHW", "preprocess": {"layout": "NHWC"}},
            r"layout=NCHW\.$",
        ),
        (arrays(images=np.zeros((12, 9, 9, 3))), {}, r"Give data of that shape"),
        (arrays(), {"preprocess": {"layout": "NHWC"}}, r"Set dataset\.preprocess\.layout=NCHW"),
        (arrays(images=np.zeros((12, 9, 9, 3), np.uint8)), {}, r"Set dataset\.preprocess\.size=\[8,8\]"),
        (arrays(images=np.zeros((12, 8, 8), np.uint8)), {}, r"dataset\.source_layout=NHW"),
        (arrays(images=np.zeros((12, 8, 8), complex)), {}, r"legal are numbers"),
        (arrays(images=np.array([{}] * 12)), {}, r"legal are numbers"),
        (arrays(), {"preprocess": {"mean": [1, 2]}}, r"2 values for samples with 3 channels"),
        (arrays(), {"samples": {"search": 0}}, r"dataset\.samples\.search"),
        (arrays(), {"split": {"evaluate": 0.9}}, r"dataset\.split"),
        (arrays(), {"source_layout": "HWCN"}, r"dataset\.source_layout"),
    ],
)
def test_refused(tmp_path: Path, stored: dict[str, Any], config: dict[str, Any], match: str) -> None:
    np.savez(tmp_path / "d.npz", **stored)
    with pytest.raises(QuantpipeError, match=match) as caught:
        NpzDataset(path=str(tmp_path / "d.npz"), **config).splits(RGB8, 10, 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("labels", [{}, {"labels": np.arange(40) % 5}, {"y": np.arange(40) % 5}])
def test_the_only_array_feeds_the_only_input(tmp_path: Path, labels: dict[str, Any]) -> None:
    """TensorFlow Lite files name inputs twice, so a file of arrays may have either name; a note names both."""
    features, path = np.random.default_rng(0).normal(size=(40, 5)), tmp_path / "d.npz"
    np.savez(path, input_1=features, **labels)
    port = TensorInfo("serving_default_input_1:0", (None, 5), "float32")
    splits = NpzDataset(path=str(path), keys={"labels": "y"} if "y" in labels else {}).splits([port], 5, 0)
    batch = next(splits.evaluate.batches(4))
    np.testing.assert_allclose(batch.inputs[port.name], features[batch.indices], rtol=1e-6)
    assert splits.evaluate.labelled == bool(labels)
    assert splits.notes == (f"array 'input_1' feeds model input '{port.name}', as the only one of each ({path})",)
    np.savez(path, images=features)
    assert NpzDataset(path=str(path)).splits([port], None, 0).notes == ()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_not_finite_is_named_before_anything_runs(tmp_path: Path, value: float) -> None:
    images = np.zeros((10, 5), np.float32)
    images[6, 2] = value
    np.savez(tmp_path / "d.npz", images=images)
    samples = NpzDataset(path=str(tmp_path / "d.npz"), split={"calibrate": 0.1, "search": 0.1, "evaluate": 0.8})
    with pytest.raises(DataError, match=r"sample 6 of .*d\.npz\[images\].*1 of 5 elements"):
        samples.splits(FLAT, None, 0)


@pytest.mark.parametrize(
    ("dtype", "port", "match"),
    [
        ("float32", "int64", r"samples are float32.*lose their fractions"),
        ("int64", "uint8", r"holds 300 .*does not fit uint8"),
        ("float32", "bfloat99", r"NumPy has not"),
        ("float64", "float16", r"holds inf .*not finite"),
    ],
)
def test_dtype_that_would_lose_something(tmp_path: Path, dtype: str, port: str, match: str) -> None:
    value = {"float16": 1e9, "int64": 300.5}.get(port, 300)
    np.savez(tmp_path / "d.npz", images=np.full((10, 5), value, dtype))
    with pytest.raises(DataError, match=match):
        NpzDataset(path=str(tmp_path / "d.npz")).splits([TensorInfo("x", (None, 5), port)], None, 0)


def test_whole_numbers_in_floats_are_integers(tmp_path: Path) -> None:
    """As a mask of ones and zeros often comes; one that is too large is named."""
    port, free = TensorInfo("mask", (None, 5), "uint8"), {"duplicates": "allow"}
    np.savez(tmp_path / "d.npz", mask=np.tile(np.float32([1, 0, 1, 1, 255]), (40, 1)))
    batch = next(iter(NpzDataset(path=str(tmp_path / "d.npz"), **free).splits([port], None, 0).calibrate.batches(2)))
    assert batch.inputs["mask"].dtype == np.uint8 and batch.inputs["mask"][0].tolist() == [1, 0, 1, 1, 255]
    np.savez(tmp_path / "e.npz", mask=np.full((40, 5), 256, np.float32))
    with pytest.raises(DataError, match=r"holds 256 .*does not fit uint8"):
        NpzDataset(path=str(tmp_path / "e.npz"), **free).splits([port], None, 0)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.npz: no such file"):
        NpzDataset(path=str(tmp_path / "gone.npz")).splits(RGB8, 10, 0)
    with pytest.raises(DataError, match=r"is a folder"):
        NpzDataset(path=str(tmp_path)).splits(RGB8, 10, 0)
    (tmp_path / "text.npz").write_text("nothing")
    with pytest.raises(DataError, match=r"neither a \.npz nor a \.npy"):
        NpzDataset(path=str(tmp_path / "text.npz")).splits(RGB8, 10, 0)


@pytest.mark.parametrize("compressed", [False, True])
def test_damaged_file(tmp_path: Path, compressed: bool) -> None:
    path = write_npz(tmp_path / "d.npz", compressed=compressed, labels=False)
    if compressed:
        content = bytearray(path.read_bytes())
        content[500:700] = bytes(200)
        path.write_bytes(content)
    else:
        np.save(tmp_path / "d.npy", np.zeros((40, 8, 8, 3), np.uint8))
        path = tmp_path / "d.npy"
        path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DataError, match=r"damaged"):
        NpzDataset(path=str(path)).splits(RGB8, 10, 0)


def test_sources_that_contradict_each_other(tmp_path: Path) -> None:
    path = str(write_npz(tmp_path / "d.npz"))
    (tmp_path / "link.npz").symlink_to(path)
    with pytest.raises(ConfigError, match=r"given together with dataset\.evaluate\.path"):
        NpzDataset(path=path, evaluate={"path": path}).splits(RGB8, 10, 0)
    with pytest.raises(ConfigError, match=r"dataset\.calibrate\.path is not set"):
        NpzDataset().splits(RGB8, 10, 0)
    with pytest.raises(ConfigError, match=r"dataset\.evaluate\.path is not set"):
        NpzDataset(calibrate={"path": path}).splits(RGB8, 10, 0)
    with pytest.raises(DataError, match=r"share samples"):
        NpzDataset(calibrate={"path": path}, evaluate={"path": str(tmp_path / "link.npz")}).splits(RGB8, 10, 0)


def test_calibrate_source_too_small_to_share(tmp_path: Path) -> None:
    roles = [{"path": str(write_npz(tmp_path / f"{i}.npz", count=1, seed=i))} for i in range(2)]
    with pytest.raises(DataError, match=r"single sample"):
        NpzDataset(calibrate=roles[0], evaluate=roles[1]).splits(RGB8, 10, 0)


def test_models_with_other_ports(tmp_path: Path) -> None:
    dataset = NpzDataset(path=str(write_npz(tmp_path / "d.npz")))
    with pytest.raises(DataError, match=r"no data for model input 'image' \(\[N, 3, 8, 8\] float32\), 'x'"):
        dataset.splits([*RGB8, *FLAT], 10, 0)
    with pytest.raises(DataError, match=r"scalar"):
        dataset.splits([TensorInfo("s", (), "float32")], 10, 0)
    free = dataset.splits([TensorInfo("image", (None, 3, None, None), "float32")], None, 0)
    assert next(free.search.batches(1)).inputs["image"].shape == (1, 3, 8, 8)
    with pytest.raises(ConfigError, match=r"batch of 0"):
        next(free.search.batches(0))


@pytest.mark.grid
@requires_zoo
def test_zoo_resnet20_gets_1615_of_2000_right() -> None:
    dataset = NpzDataset(
        calibrate={"path": str(zoo("data/cifar10_calib.npz"))},
        evaluate={"path": str(zoo("data/cifar10_val.npz"))},
        preprocess={"scale": "1/255", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
    )
    splits = dataset.splits([TensorInfo("input", (None, 3, 32, 32), "float32")], 10, seed=0)
    assert len(splits.evaluate) == 2000
    assert count_right(zoo("models/cifar10_resnet20.onnx"), splits.evaluate) == 1615
