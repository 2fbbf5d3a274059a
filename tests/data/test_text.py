"""Text: lines and columns, tokenizers of one and of several arrays, lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantpipe.data import TextDataset
from quantpipe.data.sources.text import Lengths
from quantpipe.errors import QuantpipeError
from quantpipe.types import TensorInfo
from tests.data.helpers import labels_of

IDS = [TensorInfo("ids", (None, None), "int64")]
BOTH = [*IDS, TensorInfo("mask", (None, None), "int64")]
ALL = {"calibrate": None, "search": None, "evaluate": None}
LINES = ["ab", "über 1", "c d e", '"quoted, text"', "x", "longer than the others", "日本", "end"]


def codes(text: str) -> list[int]:
    return [ord(c) for c in text]


def both(text: str) -> dict[str, Any]:
    return {"ids": codes(text), "mask": np.ones(len(text), np.int32)}


def write(path: Path, lines: list[str] = LINES) -> str:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def samples_of(splits: Any) -> dict[int, dict[str, list[int]]]:
    found = {}
    for part in (splits.calibrate, splits.search, splits.evaluate):
        for batch in part.batches(3):
            for row, index in enumerate(batch.indices.tolist()):
                found[index] = {name: values[row].tolist() for name, values in batch.inputs.items()}
    return found


def test_lines_of_any_length(tmp_path: Path) -> None:
    path = write(tmp_path / "d.txt", [*LINES[:3], "", *LINES[3:]])  # empty lines do not count
    found = samples_of(TextDataset(path=path, tokenizer=codes, samples=ALL).splits(IDS, None, 0))
    assert found == {i: {"ids": codes(line)} for i, line in enumerate(LINES)}


@pytest.mark.parametrize("pad", [None, 0, {"ids": 9}])
def test_cut_and_filled_up(tmp_path: Path, pad: Any) -> None:
    dataset = TextDataset(path=write(tmp_path / "d.txt"), tokenizer=both, max_length=4, pad=pad, samples=ALL)
    for index, sample in samples_of(dataset.splits(BOTH, None, 0)).items():
        text = LINES[index][:4]
        fill = {None: [], 0: [0] * (4 - len(text))}.get(pad if not isinstance(pad, dict) else None, [])
        ids = [9] * (4 - len(text)) if isinstance(pad, dict) else fill
        assert sample == {"ids": codes(text) + ids, "mask": [1] * len(text) + fill}


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 10))
def test_padding_keeps_what_fits(ids: list[int], length: int) -> None:
    found = Lengths(length, 0).apply({"ids": np.array(ids, np.int64)})["ids"].tolist()
    assert len(found) == length
    assert found == (ids + [0] * length)[:length]


def test_a_column_with_labels(tmp_path: Path) -> None:
    rows = ["label,text", *(f'{i % 2},"{t.strip(chr(34))}"' for i, t in enumerate(LINES))]
    path = write(tmp_path / "d.csv", rows)
    splits = TextDataset(path=path, tokenizer=codes, samples=ALL).splits(IDS, 2, 0)
    assert {i: s["ids"] for i, s in samples_of(splits).items()} == {i: codes(t.strip('"')) for i, t in enumerate(LINES)}
    assert labels_of(splits.evaluate) == [i % 2 for i in splits.evaluate.indices]
    unlabelled = TextDataset(path=path, tokenizer=codes, label=None).splits(IDS, 2, 0)
    assert not unlabelled.evaluate.labelled


def test_each_text_is_tokenized_once_and_digests_see_the_tokens(tmp_path: Path) -> None:
    calls = []
    path = write(tmp_path / "d.txt")

    def counted(text: str) -> list[int]:
        calls.append(text)
        return codes(text)

    splits = TextDataset(path=path, tokenizer=counted, samples=ALL).splits(IDS, None, 0)
    for _ in range(3):
        samples_of(splits)
    assert sorted(calls) == sorted(LINES)
    other = TextDataset(path=path, tokenizer=lambda t: codes(t[::-1]), samples=ALL).splits(IDS, None, 0)
    again = TextDataset(path=path, tokenizer=codes, samples=ALL).splits(IDS, None, 0)
    assert splits.evaluate.digest == again.evaluate.digest != other.evaluate.digest


def test_texts_that_cannot_be_tokenized_are_left_out(tmp_path: Path) -> None:
    def picky(text: str) -> list[int]:
        if " " in text:
            raise KeyError(text)
        return codes(text)

    dataset = {"path": write(tmp_path / "d.txt"), "tokenizer": picky, "samples": ALL}
    with pytest.raises(QuantpipeError, match=r"sample \d of .*d\.txt: dataset\.tokenizer=.*picky failed: KeyError"):
        samples_of(TextDataset(**dataset).splits(IDS, None, 0))
    found = samples_of(TextDataset(**dataset, on_error="skip").splits(IDS, None, 0))
    assert found == {i: {"ids": codes(line)} for i, line in enumerate(LINES) if " " not in line}


@pytest.mark.parametrize(
    ("config", "ports", "match"),
    [
        ({}, IDS, r"dataset\.tokenizer: is None; it must name a function"),
        ({"tokenizer": codes, "pad": 0}, IDS, r"dataset\.pad: .*dataset\.max_length"),
        ({"tokenizer": codes, "max_length": 0}, IDS, r"dataset\.max_length"),
        ({"tokenizer": codes}, BOTH, r"'ids' \(\[N, \?\] int64\), 'mask'"),
        ({"tokenizer": lambda t: {"ids": codes(t)}}, BOTH, r"no data for model input 'mask' \(\[N, \?\] int64\)"),
        ({"tokenizer": lambda t: [codes(t)]}, IDS, r"leave its first axis of size 1 out"),
        ({"tokenizer": lambda t: t}, IDS, r"legal are arrays, lists and numbers"),
        ({"tokenizer": lambda t: [0.5]}, IDS, r"samples are float64 after preprocessing, and casting would lose"),
    ],
)
def test_refused(tmp_path: Path, config: dict[str, Any], ports: Any, match: str) -> None:
    with pytest.raises(QuantpipeError, match=match):
        TextDataset(path=write(tmp_path / "d.txt"), **config).splits(ports, None, 0)


def test_files_that_hold_no_text(tmp_path: Path) -> None:
    (tmp_path / "d.txt").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(QuantpipeError, match=r"UTF-8"):
        TextDataset(path=str(tmp_path / "d.txt"), tokenizer=codes).splits(IDS, None, 0)
    with pytest.raises(QuantpipeError, match=r"is a folder"):
        TextDataset(path=str(tmp_path), tokenizer=codes).splits(IDS, None, 0)
    with pytest.raises(QuantpipeError, match=r"no column 'text' \(dataset\.column\)"):
        TextDataset(path=write(tmp_path / "d.csv", ["a,b", "1,2"]), tokenizer=codes).splits(IDS, None, 0)
