"""Texts for decoders: pieces of a text, empty caches by name, and the state from piece to piece."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantpipe.data import TextDataset
from quantpipe.data.cache_inputs import empty_cache, is_cache
from quantpipe.data.recurrent_state import carry
from quantpipe.data.sources.text import Lengths, TextPieces
from quantpipe.errors import DataError, ModelError, QuantpipeError
from quantpipe.types import TensorInfo

Array = np.ndarray[Any, Any]
CACHE = TensorInfo("past_key_values.0.key", (None, 2, None, 4), "float32")
INPUTS = [
    TensorInfo("input_ids", (None, None), "int64"),
    TensorInfo("position_ids", (None, None), "int64"),
    TensorInfo("attention_mask", (None, None), "int64"),
    CACHE,
]
LINES = [chr(97 + n) * 7 for n in range(12)]
STATE = {"present.0.key": CACHE.name}


def tokens(text: str) -> dict[str, Any]:
    return {
        "input_ids": [*map(ord, text)],
        "position_ids": np.arange(2, 2 + len(text)),
        "attention_mask": [1] * len(text),
    }


def dataset(folder: Path, **options: Any) -> Any:
    path = folder / "lines.txt"
    path.write_text("\n".join(LINES), encoding="utf-8")
    every = {"calibrate": None, "search": None, "evaluate": None}
    return TextDataset(path=str(path), tokenizer=tokens, samples=every, **options)


def grown(feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return a cache with one more column for each token, which holds the token."""
    rows = np.broadcast_to(feeds["input_ids"][:, None, :, None], (1, 2, feeds["input_ids"].shape[1], 4))
    return {"present.0.key": np.concatenate([feeds[CACHE.name], rows.astype(np.float32)], 2)}


def test_pieces_leave_nothing_out_and_begin_with_an_empty_cache(tmp_path: Path) -> None:
    splits = dataset(tmp_path, cut=3).splits(INPUTS, None, 0)
    found: dict[int, list[int]] = {}
    for part in (splits.calibrate, splits.search, splits.evaluate):
        texts = set()
        for batch in part.batches(4):
            assert batch.inputs[CACHE.name].shape == (len(batch), 2, 0, 4)
            for row, index in enumerate(batch.indices.tolist()):
                found[index] = batch.inputs["input_ids"][row].tolist()
                texts.add(index // 3)
                assert batch.inputs["position_ids"][row].tolist() == list(range(2, 2 + len(found[index])))
                assert batch.inputs["attention_mask"][row].tolist() == [1] * len(found[index])
        assert texts
    assert [n for i in sorted(found) for n in found[i]] == [ord(c) for line in LINES for c in line]
    owners = [{i // 3 for i in part.indices.tolist()} for part in (splits.calibrate, splits.search, splits.evaluate)]
    assert not owners[0] & owners[1] and not owners[1] & owners[2] and not owners[0] & owners[2]


def test_states_go_from_piece_to_piece(tmp_path: Path) -> None:
    splits = carry(dataset(tmp_path, cut=3, state=STATE).splits(INPUTS, None, 0), INPUTS, grown)
    seen = []
    for batch in splits.evaluate.batches(8):
        cache, ids = batch.inputs[CACHE.name], batch.inputs["input_ids"]
        begin = cache.shape[2]
        assert (cache == ids[:, :1, None, None]).all()  # all tokens of a line are equal
        assert (batch.inputs["position_ids"] == np.arange(2 + begin, 2 + begin + ids.shape[1])).all()
        assert batch.inputs["attention_mask"].shape[1] == begin + ids.shape[1]
        seen += [(begin, ids.shape[1])] * len(batch)
    assert set(seen) == {(0, 3), (3, 3), (6, 1)}


def test_only_inputs_of_that_name_and_form_are_caches() -> None:
    assert is_cache(CACHE) and empty_cache(CACHE, 3).shape == (3, 2, 0, 4)
    assert is_cache(TensorInfo("past_key_3", (None, 2, None, 4), "float32"))
    assert not is_cache(TensorInfo("past_h", (None, 8), "float32"))
    assert not is_cache(TensorInfo("past_values", (None, None, 3), "float32")), "a time series"
    assert not is_cache(TensorInfo("key", (None, 2, None, 4), "float32"))
    assert not is_cache(TensorInfo("past_0", (2, None, 2, None, 4), "float32"))


@pytest.mark.parametrize("cut", [0, -1, "many"])
def test_a_wrong_length_of_pieces_is_refused(cut: Any, tmp_path: Path) -> None:
    with pytest.raises(QuantpipeError, match=r"dataset\.cut.*must be null or an integer above 0"):
        dataset(tmp_path, cut=cut).splits(INPUTS, None, 0)


def test_pieces_and_a_greatest_length_exclude_each_other() -> None:
    with pytest.raises(QuantpipeError, match=r"dataset\.cut.*dataset\.max_length"):
        Lengths(4, None, TextPieces(3))


def test_arrays_without_an_axis_of_tokens_stay_whole() -> None:
    pieces = TextPieces(4)
    arrays = {"input_ids": np.arange(10), "use_cache_branch": np.asarray([True]), "encoded": np.ones((7, 16))}
    assert pieces.begins(arrays) == [0, 4, 8]
    last = pieces.piece(arrays, 8)
    assert last["input_ids"].tolist() == [8, 9]
    assert last["use_cache_branch"].shape == (1,) and last["encoded"].shape == (7, 16)


def test_a_mask_that_contradicts_the_cache_is_refused_with_the_sizes(tmp_path: Path) -> None:
    def contradicted(feeds: Mapping[str, Array]) -> dict[str, Array]:
        if feeds[CACHE.name].shape[2]:
            raise ModelError("onnxruntime cannot run it: 6 by 3", stage="run", where="model")
        return grown(feeds)

    splits = carry(dataset(tmp_path, cut=3, state=STATE).splits(INPUTS, None, 0), INPUTS, contradicted)
    with pytest.raises(DataError) as caught:
        list(splits.evaluate.batches(8))
    text = str(caught.value)
    assert "\n" not in text and "sample 1 cannot be run with its cache: " in text and "6 by 3" in text
    assert "'attention_mask'" in text and f"the cache {CACHE.name!r} is" in text and "up to 7" in text
    assert "a column for each token of cache and sample" in text and "positions within the tables" in text


COUNTED = TensorInfo("cache_position", (1,), "int64")
"""A position without a sample axis, as a decoder with a static cache takes it, for one token at a time."""


def counted(text: str) -> dict[str, Any]:
    return {"input_ids": [*map(ord, text)], "cache_position": np.arange(len(text))}


def test_a_step_of_one_token_takes_one_position(tmp_path: Path) -> None:
    data = replace(dataset(tmp_path, cut=1, state=STATE), tokenizer=counted)
    (batch, *_) = data.splits([INPUTS[0], COUNTED, CACHE], None, 0).calibrate.batches(7)
    assert batch.inputs["input_ids"].shape == (7, 1)
    assert batch.inputs[COUNTED.name].tolist() == list(range(7))


def test_positions_without_a_sample_axis_need_steps_of_one_token(tmp_path: Path) -> None:
    data = replace(dataset(tmp_path, cut=3, state=STATE), tokenizer=counted)
    free = TensorInfo("cache_position", (None,), "int64")
    with pytest.raises(DataError, match=r"export the model for one sample"):
        next(iter(data.splits([INPUTS[0], free, CACHE], None, 0).calibrate.batches(4)))


def test_all_caches_are_carried_by_name(tmp_path: Path) -> None:
    pairs = {"present.0.key": CACHE.name, "present_1_value": "past_1_value", "present.key": "past.key"}
    ports = [*INPUTS[:3], *(replace(CACHE, name=name) for name in pairs.values())]
    splits = dataset(tmp_path, cut=3, state="caches").splits(ports, None, 0)
    assert splits.state == pairs
    with pytest.raises(QuantpipeError, match=r"dataset\.state: is caches, and no input has the name of a cache"):
        dataset(tmp_path, cut=3, state="caches").splits(INPUTS[:3], None, 0)
    with pytest.raises(QuantpipeError, match="is 'cache'; legal is null, OUTPUT: INPUT pairs, or caches"):
        dataset(tmp_path, cut=3, state="cache")
