"""Characters as tokens: the vocabulary of `model=tiny_decoder`, whose tokens are the 128 characters of ASCII."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 128


def ascii_ids(text: str) -> NDArray[np.int64]:
    """Return the code of each character of a text, int64; characters outside ASCII become a question mark."""
    return np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int64)


def ascii_tokens(text: str) -> dict[str, NDArray[np.int64]]:
    """Return the inputs `input_ids` and `position_ids` of a decoder for a text, `[T]` each."""
    ids = ascii_ids(text)
    return {"input_ids": ids, "position_ids": np.arange(len(ids))}
