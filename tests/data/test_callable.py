"""Samples from iterables: forms of samples, splits, seeds, what breaks; read once, the same ever after."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from quantpipe.data import CallableDataset
from quantpipe.data import splits as splits_module
from quantpipe.errors import DataError, QuantpipeError
from quantpipe.types import TensorInfo
from tests.data.helpers import FLAT, assert_disjoint, contents, labels_of

ALL = {"calibrate": None, "search": None, "evaluate": None}
TWO = [TensorInfo("ids", (None, None), "int64"), TensorInfo("mask", (None, None), "bool")]


def vector(number: int) -> np.ndarray:
    return np.random.default_rng(number).standard_normal(5).astype(np.float32)


def splits_of(target: Callable[..., Any], ports: Any = FLAT, classes: int | None = 5, **config: Any) -> Any:
    return CallableDataset(target=target, **{"samples": ALL, **config}).splits(ports, classes, 0)


def test_a_generator_is_read_once_and_divided() -> None:
    calls = []

    def rows() -> Iterator[Any]:
        calls.append(1)
        yield from ((vector(i), i % 5) for i in range(20))

    splits = splits_of(rows)
    assert calls == [1]
    assert [len(s) for s in (splits.calibrate, splits.search, splits.evaluate)] == [5, 5, 10]
    assert_disjoint(splits)
    for _ in range(2):
        for batch in splits.evaluate.batches(3):
            np.testing.assert_array_equal(batch.inputs["x"], [vector(int(i)) for i in batch.indices])
    assert labels_of(splits.evaluate) == [i % 5 for i in splits.evaluate.indices]
    assert calls == [1]
    assert splits_of(rows).evaluate.digest == splits.evaluate.digest != splits_of(rows, shuffle=True).evaluate.digest


def test_split_and_seed_are_given_to_who_takes_them() -> None:
    seen = []

    def rows(split: str, *, seed: int) -> Iterator[Any]:
        seen.append((split, seed))
        return iter([vector(100 * len(seen) + i) for i in range(6)])

    splits = CallableDataset(target=rows).splits(FLAT, None, 7)
    assert seen == [("calibrate", 7), ("search", 7), ("evaluate", 7)]
    assert [len(s) for s in (splits.calibrate, splits.search, splits.evaluate)] == [6, 6, 6]
    assert not splits.evaluate.labelled
    seen.clear()
    CallableDataset(target=lambda **options: seen.append(options) or rows("x", seed=0)).splits(FLAT, None, 7)
    assert {"split": "search", "seed": 7} in seen


def test_no_more_is_asked_for_than_is_taken() -> None:
    def endless(split: str) -> Iterator[Any]:
        start = {"calibrate": 0, "search": 1000, "evaluate": 2000}[split]
        yield from (vector(start + i) for i in range(10**9))

    splits = splits_of(endless, samples={"calibrate": 4, "search": 3, "evaluate": 5})
    assert [len(s) for s in (splits.calibrate, splits.search, splits.evaluate)] == [4, 3, 5]
    assert len(splits_of(endless, samples={}, limit=9).evaluate) == 9


def test_memory_does_not_grow_with_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows() -> Iterator[Any]:
        yield from (np.full(250_000, i, np.float32) for i in range(60))  # 1 MB each

    monkeypatch.setattr(splits_module, "CHECK_BYTES", 4 << 20)
    tracemalloc.start()
    splits = splits_of(rows, [TensorInfo("x", (None, 250_000), "float32")], None)
    assert splits.evaluate.digest
    assert [int(b.inputs["x"][0, 0]) for b in splits.evaluate.batches(1)] == splits.evaluate.indices.tolist()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20, f"{peak >> 20} MiB for 60 MB of samples"


def test_mappings_and_lengths_that_differ() -> None:
    def rows() -> Iterator[Any]:
        yield from ({"ids": [i] * (1 + i // 4), "mask": np.ones(1 + i // 4, bool)} for i in range(24))

    splits = splits_of(rows, TWO, None)
    seen = []
    for batch in splits.evaluate.batches(6):
        assert batch.inputs["ids"].dtype == np.int64 and batch.inputs["mask"].dtype == np.bool_
        assert batch.inputs["ids"].shape == batch.inputs["mask"].shape == (len(batch), 1 + batch.indices[0] // 4)
        seen += batch.indices.tolist()
    assert seen == splits.evaluate.indices.tolist()  # the order stays; only borders move


class MapStyle:
    """A data set with a length, as deep learning frameworks have it; two items are broken."""

    def __init__(self, broken: tuple[int, ...] = ()) -> None:
        self.broken = broken

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        if index in self.broken:
            raise ValueError(f"corrupt {index}")
        return vector(index), np.int64(index % 5)


def test_map_style_data_sets_go_on_behind_a_broken_sample(caplog: pytest.LogCaptureFixture) -> None:
    assert len(splits_of(MapStyle).evaluate) == 6
    with pytest.raises(DataError, match=r"sample [27] of .*failed: ValueError: corrupt [27]"):
        splits_of(lambda: MapStyle((2, 7)))
    splits = splits_of(lambda: MapStyle((2, 7)), on_error="skip")
    parts = (splits.calibrate, splits.search, splits.evaluate)
    kept = sorted(int(i) for s in parts for i in s.indices)
    assert kept == [0, 1, 3, 4, 5, 6, 8, 9, 10, 11]
    skipped = {s.index: s.reason for part in parts for s in part.skipped}
    assert set(skipped) == {2, 7} and "corrupt 7" in skipped[7]
    assert "cannot be used and are left out (dataset.on_error=skip)" in caplog.text
    for part in parts:
        assert labels_of(part) == [i % 5 for i in part.indices]
        assert contents(part) == [vector(int(i)).tobytes() for i in part.indices]


def test_skipped_samples_are_replaced_up_to_the_limit() -> None:
    limited = splits_of(lambda: MapStyle((2, 7)), on_error="skip", samples={**ALL, "evaluate": 4})
    whole = splits_of(lambda: MapStyle(), samples=ALL).evaluate.indices
    assert limited.evaluate.indices.tolist() == [i for i in whole if i not in (2, 7)][:4]


def test_sequences_by_an_entry() -> None:
    def rows() -> Iterator[Any]:
        yield from ({"x": vector(i), "turn": i // 5} for i in range(40))

    splits = splits_of(rows, sequence="turn")
    turns = [set(s.indices // 5) for s in (splits.calibrate, splits.search, splits.evaluate)]
    assert [len(t) for t in turns] == [2, 2, 4]
    assert len(turns[0] | turns[1] | turns[2]) == 8


def failing() -> Iterator[Any]:
    yield vector(0)
    raise OSError("disk gone")


def same(split: str) -> list[Any]:
    return [vector(i) for i in range(5)]


@pytest.mark.parametrize(
    ("target", "match"),
    [
        (failing, r"failed at sample 1: OSError: disk gone.*a generator\s+cannot"),
        (lambda: 1 / 0, r"dataset\.target=.*failed: ZeroDivisionError"),
        (lambda: 7, r"gave a int; legal is an iterable"),
        (lambda: "text", r"gave a str"),
        (list, r"holds no samples"),
        (lambda: [vector(0), "word"] * 5, r"sample \d of .*legal are arrays, lists and numbers"),
        (lambda: [(vector(0), 1), vector(1)] * 5, r"sample \d of .*first sample one array and a label"),
        (lambda: [(vector(0), 0.5)] * 5, r"sample 0 of .*label 0\.5"),
        (lambda: [(vector(0), 1, 2)] * 5, r"tuple of 3"),
        (lambda: [(vector(0), 8)] * 8, r"label 8"),
        (lambda: [vector(0)[:4]] * 8, r"'x' takes \[N, 5\] float32, but a sample is \[N, 4\]"),
        (lambda: [vector(0)[None]] * 8, r"leave its first axis of size 1 out"),
        (lambda: [[1, [2, 3]]] * 8, r"cannot be made an array"),
        (lambda: [{"y": vector(0)}] * 8, r"no data for model input 'x' \(\[N, 5\] float32\).*samples hold y"),
        (lambda: [vector(0) * np.nan] * 8, r"which is not finite"),
        (same, r"gives the same samples for calibrate and for search"),
        ("pkg.mod:fn", r"dataset\.target: is 'pkg\.mod:fn'; it must name a function"),
    ],
)
def test_refused(target: Any, match: str) -> None:
    with pytest.raises(QuantpipeError, match=match) as caught:
        splits_of(target)
    assert "\n" not in str(caught.value)


def test_an_input_given_with_all_of_its_axes_may_be_a_state() -> None:
    inputs = [TensorInfo("x", (1, 5), "float32"), TensorInfo("state", (2, 1, 3), "float32")]
    with pytest.raises(
        DataError, match=r"'state' takes \[2, 1, 3\].*is \[N, 2, 1, 3\].*dataset\.state=\{OUTPUT: state\}"
    ):
        splits_of(lambda: [{"x": vector(0), "state": np.zeros((2, 1, 3), np.float32)}] * 8, inputs)


def test_several_inputs_need_names() -> None:
    with pytest.raises(DataError, match=r"2 inputs \('ids' \(\[N, \?\] int64\), 'mask' \(\[N, \?\] bool\)\)"):
        splits_of(lambda: [vector(0)] * 8, TWO)
