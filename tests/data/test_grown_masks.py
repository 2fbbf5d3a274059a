"""Masks of texts in pieces count the tokens of the cache, too: columns of earlier pieces come first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from quantpipe.data import CallableDataset
from quantpipe.data.grown_masks import GrownMasks
from quantpipe.data.recurrent_state import carry
from quantpipe.types import TensorInfo

PAST, PRESENT = "past_key_values.0.key", "present.0.key"
INPUTS = [
    TensorInfo("attention_mask", (None, None), "int64"),
    TensorInfo("input_ids", (None, None), "int64"),
    TensorInfo(PAST, (None, 1, None, 2), "float32"),
]
ALL = {"calibrate": None, "search": None, "evaluate": None}


def decoder(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """A cache that takes the tokens."""
    ids = feeds["input_ids"]
    new = np.repeat(ids[:, None, :, None], 2, -1).astype(np.float32)
    return {"logits": ids.astype(np.float32), PRESENT: np.concatenate([feeds[PAST], new], axis=2)}


def pieces(masks: list[list[int]], turns: list[int], **first: Any) -> list[dict[str, Any]]:
    """Samples of three tokens with these masks."""
    ids = np.arange(3)
    return [
        {"input_ids": ids, "attention_mask": np.int64(m), "turn": t, **first} for m, t in zip(masks, turns, strict=True)
    ]


def masks_of(masks: list[list[int]], turns: list[int], size: int = 4, **first: Any) -> list[list[int]]:
    data = pieces(masks, turns, **first)
    dataset = CallableDataset(
        target=lambda: data, sequence="turn", state={PRESENT: PAST}, samples=ALL, shuffle=False, duplicates="allow"
    )
    splits = carry(dataset.splits(INPUTS, None, 0), INPUTS, decoder)
    found = {}
    for samples in splits.roles.values():
        for batch in samples.batches(size):
            assert batch.inputs[PAST].shape[2] + 3 >= batch.inputs["attention_mask"].shape[1]
            found |= {int(i): m.tolist() for i, m in zip(batch.indices, batch.inputs["attention_mask"], strict=True)}
    return [found[i] for i in sorted(found)]


@pytest.mark.parametrize("size", [1, 4])
def test_columns_of_earlier_pieces_come_first(size: int) -> None:
    given = [[0, 1, 1], [1, 1, 1], [1, 1, 0]] * 4
    turns = [n // 3 for n in range(12)]
    one = [[0, 1, 1], [0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 1, 0]]
    assert masks_of(given, turns, size) == one * 4


def test_masks_that_count_the_cache_stay() -> None:
    given = [[1] * 3, [1] * 6, [0] + [1] * 8] * 4
    assert masks_of(given, [n // 3 for n in range(12)]) == given


def test_a_cache_that_the_data_give_is_seen() -> None:
    first = {PAST: np.zeros((1, 2, 2), np.float32)}
    found = masks_of([[0, 1, 1], [1, 1, 1]] * 6, [n // 2 for n in range(12)], **first)
    assert found == [[1, 1, 0, 1, 1], [1, 1, 0, 1, 1, 1, 1, 1]] * 6


def test_masks_of_an_encoder_stay_and_tokens_are_integers() -> None:
    given = [
        TensorInfo("encoder_hidden_states", (None, None, 8), "float32"),
        TensorInfo("encoder_attention_mask", (None, None), "int64"),
        TensorInfo("decoder_attention_mask", (None, None), "int64"),
        TensorInfo("input_ids", (None, None), "int64"),
    ]
    masks = GrownMasks(given, ())
    assert masks.names == ("decoder_attention_mask",)
    ids, mask = np.ones((1, 3), np.int64), np.zeros((1, 3), np.int64)
    states = np.zeros((1, 3, 8), np.float32)
    feeds = {"encoder_hidden_states": states, "decoder_attention_mask": mask, "input_ids": ids}
    assert masks.of(feeds, 2, {})["decoder_attention_mask"].tolist() == [[1, 1, 0, 0, 0]]
