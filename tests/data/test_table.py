"""Tables: columns, groups, labels, damage; equal samples from CSV and Parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from quantpipe.data import TableDataset
from quantpipe.data.sources.tablefile import ROWS
from quantpipe.errors import DataError, QuantpipeError
from quantpipe.types import Samples, TensorInfo
from tests.data.helpers import assert_disjoint, labels_of

THREE = [TensorInfo("x", (None, 3), "float32")]
ALL = {"calibrate": None, "search": None, "evaluate": None}


def write(path: Path, columns: Mapping[str, Sequence[Any]]) -> str:
    """The same table in the format of the path's ending."""
    if path.suffix == ".parquet":
        parquet.write_table(pa.table(dict(columns)), path)
    else:
        cut = "\t" if path.suffix == ".tsv" else ","
        rows = [cut.join(columns), *(cut.join(map(str, row)) for row in zip(*columns.values(), strict=True))]
        path.write_text("\n".join(rows) + "\n")
    return str(path)


def rows_of(samples: Samples, name: str = "x") -> np.ndarray:
    return np.concatenate([batch.inputs[name] for batch in samples.batches(5)])


def everything(splits: Any, name: str = "x") -> tuple[np.ndarray, list[int]]:
    """All samples in the order of the source, and where they stand there."""
    parts = [splits.calibrate, splits.search, splits.evaluate]
    indices = [int(i) for part in parts for i in part.indices]
    return np.concatenate([rows_of(part, name) for part in parts])[np.argsort(indices)], sorted(indices)


@settings(max_examples=20, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(-(2**31), 2**31), st.floats(-1e6, 1e6), st.floats(-1, 1), st.integers(0, 4)),
        min_size=8,
        max_size=40,
    ),
    seed=st.integers(0, 5),
)
def test_csv_and_parquet_hold_the_same(tmp_path_factory: pytest.TempPathFactory, rows: list[Any], seed: int) -> None:
    folder = tmp_path_factory.mktemp("t")
    columns = dict(zip(("a", "b", "c", "label"), zip(*rows, strict=True), strict=True))
    found = []
    for ending in ("csv", "tsv", "parquet"):
        splits = TableDataset(path=write(folder / f"d.{ending}", columns), samples=ALL, duplicates="allow").splits(
            THREE, 5, seed
        )
        values, indices = everything(splits)
        assert indices == list(range(len(rows)))
        np.testing.assert_array_equal(values, np.array([row[:3] for row in rows], np.float64).astype(np.float32))
        labels = dict(zip(splits.evaluate.indices.tolist(), labels_of(splits.evaluate), strict=True))
        assert labels == {i: rows[i][3] for i in labels}
        found.append(splits.evaluate.digest)
    assert found[0] == found[1] == found[2]


def test_more_rows_than_are_in_memory_at_once(tmp_path: Path) -> None:
    count = 2 * ROWS + 7
    columns = {"a": range(count), "b": [0.5] * count, "c": [1] * count}
    for ending in ("csv", "parquet"):
        values, _ = everything(
            TableDataset(path=write(tmp_path / f"d.{ending}", columns), samples=ALL).splits(THREE, None, 0)
        )
        np.testing.assert_array_equal(values[:, 0], np.arange(count))


def test_integers_stay_integers_and_go_into_their_inputs(tmp_path: Path) -> None:
    columns = {
        "big": [2**40 + i for i in range(12)],
        "p": [0.5] * 12,
        "q": range(12),
        "turn": [i // 3 for i in range(12)],
    }
    ports = [TensorInfo("ids", (None,), "int64"), TensorInfo("z", (None, 2), "float32")]
    path = write(tmp_path / "d.csv", columns)
    dataset = TableDataset(path=path, inputs={"ids": ["big"], "z": ["q", "p"]}, sequence="turn", samples=ALL)
    splits = dataset.splits(ports, None, 0)
    ids, _ = everything(splits, "ids")
    np.testing.assert_array_equal(ids, np.arange(12) + 2**40)
    assert {len(s) % 3 for s in (splits.calibrate, splits.search, splits.evaluate)} == {0}  # sequences stay whole
    assert rows_of(splits.evaluate, "z").dtype == np.float32


def test_a_row_fills_an_input_of_several_axes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (20, 12))
    path = write(tmp_path / "d.csv", {f"p{i}": pixels[:, i] for i in range(12)})
    image = [TensorInfo("x", (None, 1, 3, 4), "float32")]
    values, _ = everything(TableDataset(path=path, samples=ALL, preprocess={"scale": "1/255"}).splits(image, None, 0))
    np.testing.assert_allclose(values, (pixels / 255).reshape(-1, 1, 3, 4), rtol=1e-6)


def test_classes_by_name(tmp_path: Path) -> None:
    columns = {"a": range(12), "b": range(12), "c": range(12), "kind": ["dog", "cat", "cow"] * 4}
    path = write(tmp_path / "d.csv", columns)
    given_names = TableDataset(path=path, features=["a", "b", "c"], label="kind", classes=["cat", "dog", "cow"])
    splits = given_names.splits(THREE, 3, 0)
    assert labels_of(splits.evaluate) == [[1, 0, 2][i % 3] for i in splits.evaluate.indices]
    assert_disjoint(splits)


def test_shuffle_is_seeded(tmp_path: Path) -> None:
    path = write(tmp_path / "d.csv", {"a": range(60), "b": [0] * 60, "c": [0] * 60})

    def taken(seed: int, shuffle: bool) -> list[int]:
        splits = TableDataset(path=path, shuffle=shuffle, samples={"evaluate": 9}).splits(THREE, None, seed)
        return [int(i) for i in splits.evaluate.indices]

    assert taken(0, False) == sorted(taken(0, False))
    assert taken(0, True) == taken(0, True) != sorted(taken(0, True))
    assert taken(0, True) != taken(1, True)
    # Which samples belong to the split does not depend on the order in which they are taken.
    whole = TableDataset(path=path, samples=ALL).splits(THREE, None, 0).evaluate.indices
    mixed = TableDataset(path=path, shuffle=True, samples=ALL).splits(THREE, None, 0).evaluate.indices
    assert sorted(whole) == sorted(mixed)


HOLED = {"a": ["1", "x", "3", "4", "", "6", "7", "8"], "b": range(8), "c": range(8)}


def test_cells_that_are_no_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "d.csv", HOLED)
    with pytest.raises(
        DataError, match=r"sample [14] of .*d\.csv: line [36]: column 'a' (holds 'x', which is not|is empty)"
    ):
        TableDataset(path=path, samples=ALL).splits(THREE, None, 0)
    splits = TableDataset(path=path, samples=ALL, on_error="skip").splits(THREE, None, 0)
    values, indices = everything(splits)
    assert indices == [0, 2, 3, 5, 6, 7]
    np.testing.assert_array_equal(values[:, 0], [1, 3, 4, 6, 7, 8])


def test_nulls_in_parquet(tmp_path: Path) -> None:
    path = write(tmp_path / "d.parquet", {"a": [1, None, *range(10)], "b": range(12), "c": [0.5] * 12})
    with pytest.raises(DataError, match=r"sample 1 of .*row 1: column 'a' is empty"):
        TableDataset(path=path, samples=ALL).splits(THREE, None, 0)
    _, indices = everything(TableDataset(path=path, samples=ALL, on_error="skip").splits(THREE, None, 0))
    assert indices == [0, *range(2, 12)]


PLAIN = {"a": range(12), "b": range(12), "c": range(12)}


@pytest.mark.parametrize(
    ("columns", "config", "match"),
    [
        (PLAIN, {"features": ["a", "bb", "c"]}, r"no column 'bb' \(dataset\.features\).*its columns are a, b, c"),
        (PLAIN, {"label": "kind"}, r"no column 'kind' \(dataset\.label\)"),
        (PLAIN, {"sequence": "turn"}, r"no column 'turn' \(dataset\.sequence\)"),
        (PLAIN, {"features": ["a", "b"]}, r"'x' takes \[N, 3\] float32, but a sample is \[N, 2\]"),
        (PLAIN, {"inputs": {"y": ["a"]}}, r"dataset\.inputs\.y: legal is a list of columns"),
        (PLAIN, {"inputs": {"x": ["a"]}, "features": ["a"]}, r"dataset\.features: given together"),
        (PLAIN | {"kind": ["dog"] * 12}, {"label": "kind"}, r"'dog' in column 'kind' is no label.*dataset\.classes"),
        (PLAIN | {"kind": ["dog"] * 12}, {"label": "kind", "classes": ["cat"]}, r"legal is one of dataset\.classes"),
        (PLAIN | {"label": [9] * 12}, {}, r"label 9"),
        (dict.fromkeys("abc", np.zeros(0)), {}, r"holds no samples"),
    ],
)
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_refused(tmp_path: Path, ending: str, columns: Any, config: dict[str, Any], match: str) -> None:
    path = write(tmp_path / f"d.{ending}", columns)
    with pytest.raises(QuantpipeError, match=match) as caught:
        TableDataset(path=path, **config).splits(THREE, 3, 0)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    for name, data in (("d.csv", b"\xff\xfe\x00"), ("d.parquet", b"nothing"), ("e.csv", b""), ("d.xlsx", b"1")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=name.replace(".", r"\.")):
            TableDataset(path=str(tmp_path / name)).splits(THREE, None, 0)
    text = write(tmp_path / "t.parquet", {"a": ["x"] * 12, "b": range(12), "c": range(12)})
    with pytest.raises(DataError, match=r"'a' holds string"):
        TableDataset(path=text).splits(THREE, None, 0)
